"""Reports of many processes, added up: the whole run, and second by second."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final, NamedTuple

from scripts.loading.broker import BrokerWatch
from scripts.loading.histogram import Latencies
from scripts.loading.messages import Report
from scripts.loading.result import Second, Side

#: A report that comes this much after the second it tells of still belongs to it.
_GRACE_S: Final = 0.25
#: After so many seconds, a second's histogram is told and dropped: memory does not grow with time.
_OPEN_SECONDS: Final = 3
_TOLD: Final = (50.0, 99.0, 100.0)


class Moment(NamedTuple):
    """What is seen of a run while it lasts."""

    phase: str
    elapsed_s: float
    produce: SideTally | None
    consume: SideTally | None
    record_bytes: float
    watch: BrokerWatch | None
    kills: int


class SecondTally(NamedTuple):
    """What one side did in one second; microseconds."""

    records: int
    p50_us: float
    p99_us: float
    max_us: float


class SideTally:
    """All producers, or all consumers."""

    def __init__(self) -> None:
        self.start_ns = 0
        self.records = 0
        self.last_ns = 0
        self.failed: Counter[str] = Counter()
        self.latency = Latencies()
        self.lateness = Latencies()
        self._open: dict[int, tuple[int, Latencies]] = {}
        self._told: dict[int, SecondTally] = {}

    def add(self, report: Report) -> None:
        self.records += report.records
        self.last_ns = max(self.last_ns, report.last_ns)
        self.failed.update(report.failed)
        passed = (report.at_ns - self.start_ns) / 1e9
        second = max(0, math.ceil(passed - _GRACE_S) - 1)
        records, histogram = self._open.get(second) or (0, Latencies())
        if report.latency:
            latency = Latencies.decode(report.latency)
            histogram.add(latency)
            self.latency.add(latency)
        if report.lateness:
            self.lateness.add(Latencies.decode(report.lateness))
        self._open[second] = (records + report.records, histogram)
        for done in [number for number in self._open if number <= second - _OPEN_SECONDS]:
            self._tell(done)

    def _tell(self, second: int) -> None:
        records, histogram = self._open.pop(second)
        before = self._told.get(second)
        if before is not None:  # a worker was very late: its records count, its latencies come too
            records += before.records  # late to be told by the second
        values = histogram.percentiles_us(_TOLD)
        self._told[second] = (
            SecondTally(records, *values) if before is None else before._replace(records=records)
        )

    def seconds(self) -> dict[int, SecondTally]:
        """Told so far; those that are still open as they are now."""
        now = dict(self._told)
        for second, (records, histogram) in self._open.items():
            now[second] = SecondTally(records, *histogram.percentiles_us(_TOLD))
        return now

    @property
    def lasted_s(self) -> float:
        """From the begin to the last record."""
        return max(0.0, (self.last_ns - self.start_ns) / 1e9)

    def side(self, record_bytes: float, cpu_percents: list[float]) -> Side:
        rate = self.records / self.lasted_s if self.lasted_s else 0.0
        return Side(
            records=self.records,
            seconds=round(self.lasted_s, 6),
            records_per_second=round(rate, 3),
            bytes_per_second=round(rate * record_bytes, 1),
            failed=dict(self.failed),
            latency=self.latency.summary() if self.latency.count else None,
            lateness=self.lateness.summary() if self.lateness.count else None,
            processes_cpu_percent=cpu_percents,
        )


def timeline(produce: SideTally | None, consume: SideTally | None) -> list[Second]:
    """Both sides, without a gap."""
    made = produce.seconds() if produce else {}
    read = consume.seconds() if consume else {}
    nothing = SecondTally(0, 0.0, 0.0, 0.0)
    found = []
    for number in range(max([*made, *read], default=-1) + 1):
        p, c = made.get(number, nothing), read.get(number, nothing)
        found.append(
            Second(
                second=number,
                produced=p.records,
                consumed=c.records,
                produce_p50_us=p.p50_us,
                produce_p99_us=p.p99_us,
                produce_max_us=p.max_us,
                end_to_end_p50_us=c.p50_us,
                end_to_end_p99_us=c.p99_us,
                end_to_end_max_us=c.max_us,
            )
        )
    return found
