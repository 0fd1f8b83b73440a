"""A batch on its way, and the queue of one partition's batches."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ..protocol.batch import encoded_size_estimate
from ..protocol.columns import Headers
from ..protocol.errors import SeglogError
from ..protocol.produce_frame import produce_target
from .delivery import BatchMetadata, Outcome, RecordMetadata

EMPTY_BATCH_BYTES: Final = encoded_size_estimate(0, 0)
RECORD_BYTES: Final = encoded_size_estimate(1, 0) - EMPTY_BATCH_BYTES
HEADERS_BYTES: Final = 5
HEADER_BYTES: Final = 11

Cells = list[bytes | None]


def record_size(value: bytes | None, key: bytes | None, headers: Headers | None) -> int:
    """The most that a record adds to its batch."""
    size = RECORD_BYTES
    if value is not None:
        size += len(value)
    if key is not None:
        size += len(key)
    if headers:
        size += HEADERS_BYTES
        for name, cell in headers:
            # A character is at most four bytes in UTF-8.
            size += HEADER_BYTES + 4 * len(name) + (len(cell) if cell is not None else 0)
    return size


class Batch:
    """Records of one partition, from the first `send` to the broker's answer."""

    __slots__ = (
        "base_sequence",
        "deadline",
        "encoded",
        "first_timestamp_us",
        "headers",
        "is_awaited",
        "is_due",
        "is_plain",
        "is_settled",
        "keys",
        "on_wait",
        "outcome",
        "queue",
        "record_count",
        "size_bytes",
        "timestamps",
        "values",
    )

    def __init__(self, queue: PartitionQueue, deadline: float) -> None:
        self.queue = queue
        self.deadline = deadline
        self.values: Cells = []
        # The other columns are there from the first record that has one.
        self.keys: Cells | None = None
        self.headers: list[Headers | None] | None = None
        self.timestamps: Sequence[int] | None = None
        self.first_timestamp_us = time.time_ns() // 1000
        self.size_bytes = EMPTY_BATCH_BYTES
        self.record_count = 0  # once it is closed
        self.is_plain = True  # only values so far
        self.is_due = False
        self.is_awaited = False  # by somebody, while it was open
        self.on_wait: Callable[[Batch], None] | None = None
        self.encoded: bytearray | None = None
        self.base_sequence = -1  # not numbered yet
        self.is_settled = False  # the broker's answer is final, and this one was it
        self.outcome = Outcome()

    def add(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        timestamp_us: int | None,
    ) -> None:
        """Add one record, its columns as they are needed; the size is the caller's."""
        count = len(self.values)
        self.values.append(value)
        if key is not None and self.keys is None:
            self.keys = [None] * count
        if self.keys is not None:
            self.keys.append(key)
        if headers is not None and self.headers is None:
            self.headers = [None] * count
        if self.headers is not None:
            self.headers.append(headers)
        if timestamp_us is not None and self.timestamps is None:
            self.timestamps = [self.first_timestamp_us] * count
        if isinstance(self.timestamps, list):
            default = self.first_timestamp_us
            self.timestamps.append(default if timestamp_us is None else timestamp_us)
        self.is_plain = self.keys is None and self.headers is None and self.timestamps is None

    def wait(self) -> asyncio.Future[None]:
        """Done when there is an outcome; the batch goes without lingering, if it may."""
        if self.on_wait is not None:
            self.on_wait(self)
        return self.outcome.wait()

    def drop_records(self) -> None:
        """Free the memory of records that nobody will need again."""
        self.values, self.keys, self.headers = [], None, None

    # --- the outcome, as deliveries tell it ---

    def record_metadata(self, index: int) -> RecordMetadata:
        outcome = self.outcome
        if outcome.error is not None:
            if outcome.reported is not None:
                outcome.reported.add(index)
            raise outcome.error
        offset = outcome.base_offset + index if outcome.base_offset >= 0 else -1
        time_us = self.first_timestamp_us if self.timestamps is None else self.timestamps[index]
        return RecordMetadata(self.queue.topic, self.queue.partition, offset, time_us)

    def batch_metadata(self) -> BatchMetadata:
        queue = self.queue
        return BatchMetadata(
            queue.topic, queue.partition, self.outcome.base_offset, self.record_count
        )

    def report_all(self) -> SeglogError | None:
        """The error, if any; from now on it counts as seen for all records."""
        self.outcome.reported = None
        return self.outcome.error

    @property
    def unreported_count(self) -> int:
        """Records that were not delivered, and nobody was told."""
        if self.outcome.error is None or self.outcome.reported is None:
            return 0
        return self.record_count - len(self.outcome.reported)


class PartitionQueue:
    """One partition's batches in their order, and its place in the producer's sequence."""

    __slots__ = (
        "attempt",
        "epoch",
        "in_flight",
        "is_doubtful",
        "is_recovering",
        "needs_epoch",
        "next_sequence",
        "opened",
        "partition",
        "target",
        "topic",
        "unanswered",
        "waiting",
    )

    def __init__(self, topic: str, partition: int, epoch: int) -> None:
        self.topic = topic
        self.partition = partition
        self.target = produce_target(topic, partition)
        self.opened: Batch | None = None
        self.waiting: deque[Batch] = deque()  # closed
        self.in_flight: deque[Batch] = deque()  # sent, and not settled or behind one that is not
        self.unanswered = 0  # of those in flight
        self.epoch = epoch
        self.next_sequence = 0
        self.attempt = 0  # failures since the last success
        self.is_recovering = False  # nothing is sent until everything in flight has its answer
        self.needs_epoch = False
        self.is_doubtful = False  # the broker does not know the partition

    @property
    def has_work(self) -> bool:
        return bool(self.waiting) or self.is_opened_due

    @property
    def is_opened_due(self) -> bool:
        """Whether the open batch may go: its time is over, or somebody awaits it. What is awaited
        while something is under way goes with the answer to that: others join it meanwhile.
        """
        batch = self.opened
        if batch is None:
            return False
        return batch.is_due or (batch.is_awaited and not self.in_flight)

    def forget_settled(self) -> None:
        """Take what is settled from the front: an answer may come before an earlier batch's."""
        while self.in_flight and self.in_flight[0].is_settled:
            self.in_flight.popleft()

    def take_back(self) -> None:
        """Everything in flight that is not settled waits again, in its old order."""
        again = [b for b in self.in_flight if not b.is_settled and not b.outcome.is_done]
        self.in_flight.clear()
        self.waiting.extendleft(reversed(again))
