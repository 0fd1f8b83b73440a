"""What a broker counts while it works: plain numbers, always on, read when somebody asks.

No lock and no library on the hot path: a number belongs to one thread, which alone changes it, and
anyone may read it. What belongs to whom is said below; `server/scrape.py` reads it all and
`server/metrics_table.py` has the names that the world sees.

Promise: a number never goes down, and what was answered was counted before.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from ..protocol.api import APIS
from ..protocol.constants import KIB, MIB

#: The key of what cannot be told apart: no request at all, or one for an api that there is not.
UNKNOWN_API: Final = 0

DURATION_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
BATCH_BOUNDS: Final = tuple(2**power for power in range(14))  # a group has 10,000 at the most
PARTITION_BOUNDS: Final = tuple(4**power for power in range(7))
BYTE_BOUNDS: Final = (
    256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB
)  # fmt: skip


class Buckets(NamedTuple):
    """A histogram as it was at one moment."""

    bounds: Sequence[float]
    cumulative: Sequence[int]  # one more than bounds: the last counts everything
    total: float


class Histogram:
    """How many values were at most as large as each of a few bounds. One thread observes."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total: float = 0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def read(self) -> Buckets:
        """A copy, from any thread. Taken between the two lines of `observe`, its total lacks the
        last value; the buckets always agree with each other.
        """
        return Buckets(self._bounds, list(accumulate(self._counts.copy())), self._total)


class SharedHistogram(Histogram):
    """One that several threads observe, for what takes far longer than a lock: a sync."""

    __slots__ = ("_lock",)

    def __init__(self, bounds: Sequence[float]) -> None:
        super().__init__(bounds)
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        with self._lock:
            super().observe(value)


class TopicTraffic:
    """What went into a topic and out of it, counted from batch headers, never by record.

    What goes in belongs to whoever writes, one at a time, what goes out to the loop. `total` counts
    it too.
    """

    __slots__ = (
        "batches_in",
        "bytes_in",
        "bytes_out",
        "duplicate_batches",
        "records_in",
        "records_out",
        "total",
    )

    def __init__(self, total: TopicTraffic | None = None) -> None:
        self.total = total
        self.records_in = 0
        self.batches_in = 0
        self.bytes_in = 0
        self.duplicate_batches = 0
        self.records_out = 0
        self.bytes_out = 0

    def appended(self, records: int, batches: int, length: int) -> None:
        self.records_in += records
        self.batches_in += batches
        self.bytes_in += length
        if self.total is not None:
            self.total.appended(records, batches, length)

    def repeated(self, batches: int) -> None:
        self.duplicate_batches += batches
        if self.total is not None:
            self.total.repeated(batches)

    def fetched(self, records: int, length: int) -> None:
        self.records_out += records
        self.bytes_out += length
        if self.total is not None:
            self.total.fetched(records, length)


class Metrics:
    """Everything that one broker counts."""

    __slots__ = (
        "compacted_records",
        "compactions",
        "connections_accepted",
        "connections_closed",
        "connections_refused",
        "deleted_segments",
        "errors",
        "fetch_wait",
        "group_batches",
        "group_bytes",
        "group_partitions",
        "group_seconds",
        "housekeeping_failures",
        "published_steps",
        "received_bytes",
        "requests",
        "sent_bytes",
        "staged_batches",
        "started",
        "syncs",
        "traffic",
    )

    def __init__(self) -> None:
        self.started = time.monotonic()
        #: Of the topics that clients write to; internal ones have their own figures only.
        self.traffic = TopicTraffic()
        # --- the loop's ---
        self.requests = {key: Histogram(DURATION_BOUNDS_S) for key in (UNKNOWN_API, *APIS)}
        self.fetch_wait = Histogram(DURATION_BOUNDS_S)
        self.errors: Counter[tuple[int, int]] = Counter()  # (api key, error code)
        self.received_bytes = 0
        self.sent_bytes = 0
        self.connections_accepted = 0
        self.connections_refused: Counter[str] = Counter()  # by the setting that was in the way
        self.connections_closed: Counter[str] = Counter()  # by the broker, and why
        self.compactions = 0
        self.compacted_records = 0
        self.housekeeping_failures = 0
        self.staged_batches = 0
        self.published_steps = 0
        # --- the writer's, one at a time ---
        self.group_batches = Histogram(BATCH_BOUNDS)
        self.group_bytes = Histogram(BYTE_BOUNDS)
        self.group_partitions = Histogram(PARTITION_BOUNDS)
        self.group_seconds = Histogram(DURATION_BOUNDS_S)
        self.deleted_segments = 0
        # --- any thread's ---
        self.syncs = {kind: SharedHistogram(DURATION_BOUNDS_S) for kind in ("log", "journal")}

    def failed(self, api_key: int, code: int) -> None:
        """An error was told to a client."""
        self.errors[api_key, code] += 1

    def group_committed(self, batches: int, partitions: int, length: int, seconds: float) -> None:
        """Called by whoever writes, before the group is answered."""
        self.group_batches.observe(batches)
        self.group_partitions.observe(partitions)
        self.group_bytes.observe(length)
        self.group_seconds.observe(seconds)

    def synced(self, kind: str, seconds: float) -> None:
        self.syncs[kind].observe(seconds)
