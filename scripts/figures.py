"""What the benchmarks share: figures with their aims, a table of them, fair comparisons.

Times on a shared machine drift by the minute. So a figure that has an aim is a ratio to a baseline
of the same run: both sides run in turns, each round gives a ratio, and the median counts.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import msgspec
from rich.console import Console
from rich.table import Table


class Figure(msgspec.Struct):
    """One measured number, with the aim beside it."""

    group: str
    name: str
    value: float
    unit: str = ""
    aim: str = ""
    met: bool | None = None  # None: there is no aim, the number is for the reader
    note: str = ""

    @classmethod
    def at_least(cls, group: str, name: str, value: float, least: float, note: str) -> Figure:
        return cls(group, name, value, "×", f"≥ {least:g}", value >= least, note)

    @classmethod
    def at_most(
        cls, group: str, name: str, value: float, most: float, unit: str, note: str
    ) -> Figure:
        return cls(group, name, value, unit, f"≤ {most:g} {unit}", value <= most, note)


def timed(action: Callable[[], object]) -> float:
    """Seconds that `action` takes."""
    started = perf_counter()
    action()
    return perf_counter() - started


def alternate(
    first: Callable[[], object], second: Callable[[], object], rounds: int
) -> tuple[list[float], list[float]]:
    """The seconds of both, round by round; who begins changes from round to round."""
    firsts, seconds = [], []
    for number in range(rounds):
        if number % 2:
            seconds.append(timed(second))
            firsts.append(timed(first))
        else:
            firsts.append(timed(first))
            seconds.append(timed(second))
    return firsts, seconds


def median_ratio(tops: list[float], bottoms: list[float]) -> float:
    """The median of the rounds' own ratios: a slow minute slows both sides of its round."""
    return median(top / bottom for top, bottom in zip(tops, bottoms, strict=True))


def report(figures: list[Figure], command: str, save_as: Path | None) -> None:
    """Print the figures as a table, and save them where asked."""
    table = Table(title=command, title_justify="left")
    for heading in ("", "figure", "aim", "", "how"):
        table.add_column(heading, justify="right" if heading in {"figure", "aim"} else "left")
    group = ""
    for figure in figures:
        if figure.group != group:
            group = figure.group
            table.add_section()
            table.add_row(f"[bold]{group}")
        met = {True: "[green]met", False: "[red]not met", None: ""}[figure.met]
        value = f"{figure.value:,.3g}" if figure.value < 1000 else f"{figure.value:,.0f}"
        table.add_row(f"  {figure.name}", f"{value} {figure.unit}", figure.aim, met, figure.note)
    Console().print(table)
    if save_as is not None:
        content = {
            "command": command,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "figures": [msgspec.to_builtins(figure) for figure in figures],
        }
        save_as.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
