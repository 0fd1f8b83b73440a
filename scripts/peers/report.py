"""A result for people: as tables on the terminal, and in docs/benchmarks.md."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from scripts.peers.reasons import reason_for
from scripts.peers.results import SEGLOG, Absent, Result, Row, Strength, save

ROOT: Final = Path(__file__).resolve().parents[2]
RESULT: Final = ROOT / "docs" / "benchmarks.json"
STRENGTHS: Final[dict[Strength, str]] = {
    "durable": "Durable: acknowledged when synced to disk",
    "written": "Written: acknowledged when handed to the operating system",
    "any": "The same for both",
}
NO_REASON: Final = "not explained yet"


def number(value: float) -> str:
    """Three digits that count."""
    if value >= 1000:
        digits = len(str(int(value))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"


def times(ratio: float) -> str:
    """How many times better, in two digits that count."""
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


def cell(row: Row, system: str) -> str:
    """Seglog's figure; a peer's figure and the ratio to it, with the range of the rounds."""
    value, note = row.value(system), row.notes.get(system, "")
    if value is None:
        return note or ("in each cell" if system == SEGLOG and row.beside else "–")
    ratio = row.ratio(system)
    if ratio is None:
        return number(value)
    span = ""
    if len(row.rounds[system]) > 1:
        span = f" ({times(ratio.lowest)}–{times(ratio.highest)})"
    ours = ""
    if system in row.beside:
        rounds = sorted(row.beside[system])
        ours = f"Seglog {number(rounds[len(rounds) // 2])}, "
    shown = f"{ours}{number(value)} · {times(ratio.middle)}×{span}"
    return f"{shown} {note}" if note else shown


def missing_lines(absent: list[Absent]) -> Iterator[str]:
    for each in absent:
        how = f" To have it: {each.install}" if each.install else ""
        yield f"{each.title}, {each.strength}: not measured: {each.reason}.{how}"


def loss_lines(result: Result) -> Iterator[str]:
    for row, peer, ratio in result.losses():
        reason = reason_for(row.key, peer, ratio) or NO_REASON
        strength = "" if row.strength == "any" else f" ({row.strength})"
        yield f"{row.title}{strength}, {result.systems[peer].title}, {ratio.middle:.2g}×: {reason}"


def show(result: Result, console: Console) -> None:
    """The tables, what is missing or failed, and the losses."""
    for strength, title in STRENGTHS.items():
        rows = [row for row in result.rows if row.strength == strength]
        if not rows:
            continue
        table = Table(title=title, title_justify="left")
        table.add_column("")
        for system in result.systems.values():
            table.add_column(system.title, justify="right")
        for row in rows:
            shown = (cell(row, name) for name in result.systems)
            table.add_row(f"{row.title}, {row.unit}", *shown)
        console.print(table)
    console.print("×: how many times better Seglog is; in brackets the range of the rounds.")
    for line in (*missing_lines(result.absent), *result.failures()):
        console.print(line, style="yellow", soft_wrap=True)
    for line in loss_lines(result):
        console.print(f"Behind: {line}", soft_wrap=True)


def write_docs(result: Result, console: Console) -> None:
    """Keep this result in the repository, and fill the docs from it."""
    save(result, RESULT)
    subprocess.run([sys.executable, ROOT / "scripts" / "update_docs.py"], check=True)
    for row, peer, ratio in result.losses():
        if reason_for(row.key, peer, ratio) is None:
            console.print(
                f"{row.key} against {peer} ({ratio.middle:.2g}×) needs a reason in "
                "scripts/peers/reasons.py",
                style="red",
                soft_wrap=True,
            )
