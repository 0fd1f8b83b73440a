"""What is seen of a run while it lasts: a table that renews itself on a terminal, lines in a pipe;
and a summary at its end.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from scripts.loading.checker import FAULTS
from scripts.loading.result import Result, Side
from scripts.loading.tally import Moment, SecondTally, SideTally
from scripts.loading.units import bytes_text, count_text, microseconds_text
from scripts.loading.workload import Workload


class PlainView:
    """One line a second."""

    def __init__(self, workload: Workload) -> None:
        self._phase = ""
        print(workload.described(), file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def show(self, moment: Moment) -> None:
        if moment.phase not in {"running", "draining"}:
            if moment.phase != self._phase:
                print(moment.phase, file=sys.stderr, flush=True)
            self._phase = moment.phase
            return
        parts = [f"{moment.elapsed_s:6.1f} s"]
        for name, side in (("produced", moment.produce), ("consumed", moment.consume)):
            if side is not None:
                last = last_second(side)
                parts.append(f"{name} {side.records:,} ({last.records:,}/s)")
                if last.p99_us:
                    parts.append(f"p99 {microseconds_text(last.p99_us)}")
        if moment.watch is not None and moment.watch.samples:
            sample = moment.watch.samples[-1]
            parts.append(f"broker {sample.cpu_percent:.0f} % CPU")
        print(", ".join(parts), file=sys.stderr, flush=True)


class LiveView:
    """A table on a terminal."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._began = time.monotonic()
        # On stderr, as progress is: stdout has the summary.
        self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def show(self, moment: Moment) -> None:
        self._live.update(self._drawn(moment), refresh=True)

    def _drawn(self, moment: Moment) -> RenderableType:
        limit = self._workload.seconds
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            Text(moment.phase, style="bold cyan"),
            ProgressBar(total=limit, completed=min(limit, moment.elapsed_s), width=40),
            f"{min(limit, moment.elapsed_s):.0f} of {limit:g} s",
        )
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for heading in ("", "records", "records/s", "MB/s", "p50", "p99", "max", "failed"):
            table.add_column(heading, justify="left" if not heading else "right")
        for name, side in (("produced", moment.produce), ("consumed", moment.consume)):
            if side is not None:
                table.add_row(name, *_row(side, moment.record_bytes))
        parts: list[RenderableType] = [Text(self._workload.described(), style="bold"), bar, table]
        if moment.watch is not None and moment.watch.samples:
            sample = moment.watch.samples[-1]
            text = (
                f"broker    CPU {sample.cpu_percent:.0f} %   "
                f"memory {bytes_text(sample.memory_bytes)}   "
                f"written {bytes_text(sample.written_bytes)}"
            )
            if sample.disk_bytes >= 0:
                text += f"   disk {bytes_text(sample.disk_bytes)}"
            parts.append(Text(text + f"   killed {moment.kills}×" * bool(moment.kills)))
        parts.append(Text("Ctrl-C ends it with the result so far", style="dim"))
        return Group(*parts)


def make_view(workload: Workload) -> PlainView | LiveView:
    return LiveView(workload) if sys.stderr.isatty() else PlainView(workload)


def last_second(side: SideTally) -> SecondTally:
    """The last one that is told of."""
    seconds = side.seconds()
    return seconds[max(seconds)] if seconds else SecondTally(0, 0.0, 0.0, 0.0)


def _row(side: SideTally, record_bytes: float) -> list[str]:
    last = last_second(side)
    times = [microseconds_text(t) if t else "" for t in (last.p50_us, last.p99_us, last.max_us)]
    return [
        f"{side.records:,}", f"{last.records:,}", f"{last.records * record_bytes / 1e6:,.1f}",
        *times, f"{sum(side.failed.values()):,}",
    ]  # fmt: skip


# --- the end -------------------------------------------------------------------------------------


def print_summary(result: Result, console: Console) -> None:
    """What a person wants to know first."""
    console.print(result.name, style="bold", highlight=False)
    table = Table(header_style="dim")
    names = [("produced", result.produce), ("consumed", result.consume)]
    sides = [(name, side) for name, side in names if side is not None]
    table.add_column("")
    for name, _ in sides:
        table.add_column(name, justify="right")
    for label, values in _summary_rows([side for _, side in sides]):
        table.add_row(label, *values)
    console.print(table)
    if result.broker is not None:
        b = result.broker
        text = (
            f"broker: {b.cpu_percent:.0f} % CPU, memory {bytes_text(b.memory_peak_bytes)}, "
            f"written {bytes_text(b.written_bytes)}"
        )
        text += f", on disk {bytes_text(b.disk_bytes)}" if b.disk_bytes >= 0 else ""
        console.print(text + (f", killed {b.kills} times" if b.kills else ""))
    if result.check is not None:
        _print_check(result, console)
    for warning in result.warnings:
        console.print(f"note: {warning}", style="yellow", highlight=False)
    if result.ended_by == "stop":
        console.print("interrupted: this is the result so far", style="yellow")


def _summary_rows(sides: list[Side]) -> list[tuple[str, list[str]]]:
    def times(pick: str, of: str = "latency") -> list[str]:
        found = [getattr(side, of) for side in sides]
        return ["" if each is None else microseconds_text(getattr(each, pick)) for each in found]

    rows = [
        ("records", [f"{side.records:,}" for side in sides]),
        ("records/s", [count_text(side.records_per_second) for side in sides]),
        ("MB/s", [f"{side.bytes_per_second / 1e6:,.1f}" for side in sides]),
    ]
    if any(side.latency for side in sides):
        picks = [("p50", "p50_us"), ("p99", "p99_us"), ("p99.9", "p999_us"), ("max", "max_us")]
        rows += [(f"latency {name}", times(pick)) for name, pick in picks]
    if any(side.lateness for side in sides):
        rows.append(("sent late by, p99", times("p99_us", "lateness")))
    if any(side.failed for side in sides):
        rows.append(("not delivered", [f"{sum(side.failed.values()):,}" for side in sides]))
    return rows


def _print_check(result: Result, console: Console) -> None:
    check = result.check
    assert check is not None
    style = "bold green" if check.is_clean else "bold red"
    counts = ", ".join(f"{fault} {getattr(check, fault):,}" for fault in FAULTS)
    console.print(f"check: {counts}", style=style, highlight=False)
    console.print(
        f"  {check.sent:,} sent, {check.acknowledged:,} acknowledged, {check.read:,} read"
        + (f", {check.unsure:,} not acknowledged" if check.unsure else ""),
        highlight=False,
    )
    for finding in check.findings:
        console.print(f"  {finding.fault}: {finding.described()}", style="red", highlight=False)
