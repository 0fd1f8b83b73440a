"""Two results side by side: B in ratio to A, and whether the difference is more than noise.

Noise is judged from the runs themselves. Each whole second of a run is a sample; half of the
samples lie within the spread between the quartiles. A ratio counts as better or worse only where
it is further from 1 than the spreads of both runs together, and than 5 %. With fewer than five
whole seconds there is nothing to judge from, and 25 % must be passed.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median, quantiles
from typing import Final, Literal, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from scripts.loading.checker import FAULTS
from scripts.loading.result import Result, Second, Side
from scripts.loading.units import bytes_text, count_text, microseconds_text

LEAST_NOISE: Final = 0.05
UNKNOWN_NOISE: Final = 0.25
LEAST_SECONDS: Final = 5
#: The extremes of a run vary by nature: they must differ by more.
TAIL_NOISE: Final = 0.25

Judgement = Literal["better", "worse", "same"]


class Row(NamedTuple):
    """One figure of both."""

    name: str
    before: str
    after: str
    ratio: float | None
    noise: float
    judgement: Judgement


class Comparison(NamedTuple):
    """All of them, and what makes them hard to compare."""

    before: Result
    after: Result
    rows: list[Row]
    differences: list[str]

    @property
    def is_worse(self) -> bool:
        return any(row.judgement == "worse" for row in self.rows)


def compare_results(before: Result, after: Result) -> Comparison:
    rows: list[Row] = []
    for name in ("produce", "consume"):
        a, b = getattr(before, name), getattr(after, name)
        if a is not None and b is not None:
            rows += _side_rows(name, before, after, a, b)
    rows += _broker_rows(before, after)
    rows += _check_rows(before, after)
    return Comparison(before, after, rows, _differences(before, after))


def spread(samples: list[float]) -> float | None:
    """Between the quartiles, in ratio to the median; None where there are too few samples."""
    if len(samples) < LEAST_SECONDS or not median(samples):
        return None
    low, _, high = quantiles(samples, n=4)
    return (high - low) / median(samples)


def noise_of(before: list[float], after: list[float], least: float = LEAST_NOISE) -> float:
    spreads = [spread(before), spread(after)]
    if None in spreads:
        return max(least, UNKNOWN_NOISE)
    return max(least, sum(each for each in spreads if each is not None))


def judged(
    name: str, a: float, b: float, noise: float, text: Callable[[float], str], *, more_is: str
) -> Row:
    """`more_is` better, or worse."""
    ratio = b / a if a else None
    judgement: Judgement = "same"
    # As far below as above: half is as much as double.
    if ratio is not None and not 1 / (1 + noise) <= ratio <= 1 + noise:
        judgement = "better" if (ratio > 1) == (more_is == "better") else "worse"
    return Row(name, text(a), text(b), ratio, noise, judgement)


def _samples(result: Result, pick: Callable[[Second], float]) -> list[float]:
    """Of whole seconds: not the first, in which things warm up, nor the last, which is cut off."""
    whole = [pick(second) for second in result.timeline[1:-1]]
    return [sample for sample in whole if sample]


def _side_rows(name: str, before: Result, after: Result, a: Side, b: Side) -> list[Row]:
    counted = "produced" if name == "produce" else "consumed"
    prefix = "produce" if name == "produce" else "end_to_end"

    def noise(field: str, least: float = LEAST_NOISE) -> float:
        def pick(second: Second) -> float:
            return float(getattr(second, field))

        return noise_of(_samples(before, pick), _samples(after, pick), least)

    rows = [
        judged(
            f"{name}, records/s", a.records_per_second, b.records_per_second, noise(counted),
            count_text, more_is="better",
        )
    ]  # fmt: skip
    if a.latency is None or b.latency is None:
        return rows
    p50, p99 = noise(f"{prefix}_p50_us"), noise(f"{prefix}_p99_us")
    tail = noise(f"{prefix}_max_us", TAIL_NOISE)
    picks = [("p50", "p50_us", p50), ("p99", "p99_us", p99), ("p99.9", "p999_us", tail)]
    for label, field, each in picks:
        x, y = getattr(a.latency, field), getattr(b.latency, field)
        title = f"{name}, latency {label}" if name == "produce" else f"end to end, {label}"
        rows.append(judged(title, x, y, each, microseconds_text, more_is="worse"))
    return rows


def _broker_rows(before: Result, after: Result) -> list[Row]:
    a, b = before.broker, after.broker
    if a is None or b is None:
        return []
    records = [_records(result) for result in (before, after)]
    rows = [
        judged(
            "broker, memory", a.memory_peak_bytes, b.memory_peak_bytes, 0.1, bytes_text,
            more_is="worse",
        )
    ]  # fmt: skip
    if all(records):
        cpu_a, cpu_b = (1e6 * each.cpu_seconds / n for each, n in zip((a, b), records, strict=True))
        noise = noise_of(
            [sample.cpu_percent for sample in a.samples[1:-1]],
            [sample.cpu_percent for sample in b.samples[1:-1]],
            0.1,
        )
        rows.append(judged("broker, CPU a record", cpu_a, cpu_b, noise, fine_text, more_is="worse"))
    if all(records) and min(a.disk_bytes, b.disk_bytes) >= 0:
        disk_a, disk_b = (each.written_bytes / n for each, n in zip((a, b), records, strict=True))
        rows.append(
            judged("broker, written a record", disk_a, disk_b, 0.1, bytes_text, more_is="worse")
        )
    return rows


def fine_text(microseconds: float) -> str:
    return f"{microseconds:.3g} µs"


def _records(result: Result) -> int:
    return sum(side.records for side in (result.produce, result.consume) if side is not None)


def _check_rows(before: Result, after: Result) -> list[Row]:
    a, b = before.check, after.check
    if a is None or b is None:
        return []
    rows = []
    for fault in FAULTS:
        x, y = getattr(a, fault), getattr(b, fault)
        judgement: Judgement = "worse" if y > x else "better" if y < x else "same"
        rows.append(Row(f"check, {fault}", f"{x:,}", f"{y:,}", None, 0.0, judgement))
    return rows


def _differences(before: Result, after: Result) -> list[str]:
    """Settings that were not the same: the figures may differ because of them."""
    found = []
    for part in ("machine", "workload"):
        a, b = (msgspec.to_builtins(getattr(each, part)) for each in (before, after))
        found += [f"{name}: {a[name]} → {b[name]}" for name in a if a[name] != b[name]]
    if "stop" in {before.ended_by, after.ended_by}:
        found.append("a run was interrupted")
    return found


_STYLES: Final = {"better": "green", "worse": "bold red", "same": "dim"}
_MARKS: Final = {"better": "▲ better", "worse": "▼ WORSE", "same": "same, within noise"}


def print_comparison(comparison: Comparison, console: Console) -> None:
    table = Table(title="B in ratio to A", title_justify="left", header_style="dim")
    for heading in ("", "A", "B", "B / A", "noise", ""):
        table.add_column(heading, justify="right" if heading else "left")
    for row in comparison.rows:
        table.add_row(
            row.name,
            row.before,
            row.after,
            "" if row.ratio is None else f"{row.ratio:.2f}",
            f"± {100 * row.noise:.0f} %" if row.noise else "",
            _MARKS[row.judgement],
            style=_STYLES[row.judgement],
        )
    console.print(f"A: {comparison.before.name}, {comparison.before.started_at}", highlight=False)
    console.print(f"B: {comparison.after.name}, {comparison.after.started_at}", highlight=False)
    console.print(table)
    if comparison.differences:
        console.print("Not the same in both:", style="yellow")
        for difference in comparison.differences:
            console.print(f"  {difference}", highlight=False)
