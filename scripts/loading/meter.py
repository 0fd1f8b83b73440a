"""What one process counts between two reports; adding to it is a few list operations a batch."""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

from scripts.loading.histogram import Latencies
from scripts.loading.messages import Report

#: Latencies kept as plain numbers before they go into the histogram together.
GATHERED: Final = 20_000


class Meter:
    """Records that were acknowledged or read, how long they took, and how late they were sent."""

    def __init__(self) -> None:
        self.records = 0
        self.last_ns = 0
        self.failed: Counter[str] = Counter()
        #: One latency a record, gathered by who appends here; `settle` now and then.
        self.latencies_ns: list[int] = []
        self._shared_ns: list[int] = []
        self._shares: list[int] = []
        self._latency = Latencies()
        self._lateness = Latencies()

    def done(self, latency_ns: int, count: int, now_ns: int) -> None:
        """`count` records took this long."""
        self.records += count
        self.last_ns = now_ns
        self._shared_ns.append(latency_ns)
        self._shares.append(count)
        if len(self._shares) >= GATHERED:
            self._settle_shared()

    def late(self, lateness_ns: int, count: int) -> None:
        self._lateness.record(lateness_ns, count)

    def settle(self) -> None:
        """Put what was gathered into the histogram."""
        self.records += len(self.latencies_ns)
        self._latency.record_many(self.latencies_ns)
        self.latencies_ns.clear()

    def _settle_shared(self) -> None:
        self._latency.record_many(self._shared_ns, self._shares)
        self._shared_ns.clear()
        self._shares.clear()

    def report(self) -> Report:
        """Since the last one."""
        self.settle()
        self._settle_shared()
        report = Report(
            at_ns=time.monotonic_ns(),
            records=self.records,
            last_ns=self.last_ns,
            failed=dict(self.failed),
            latency=_encoded(self._latency),
            lateness=_encoded(self._lateness),
            cpu_s=time.process_time(),
        )
        self.records = 0
        self.failed.clear()
        self._latency.reset()
        self._lateness.reset()
        return report


def _encoded(latencies: Latencies) -> str:
    return latencies.encode() if latencies.count else ""
