"""One partition as a reader sees it: where it fetches, what it has buffered, where its application
is.

    position ≤ what is buffered ≤ fetch_offset

Everything a fetch brings is queued in the order of the log: batches, and between them what the
reader must be told (a jump, an error). So a report comes exactly before the records that follow it.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ..protocol.constants import UNKNOWN_EPOCH
from ..protocol.errors import (
    DamagedLog,
    LogTruncated,
    OffsetOutOfRange,
    SeglogError,
)
from .metadata import TopicPartition


class RawBatch(NamedTuple):
    """A stored batch, not looked at but for its header's first fields."""

    data: memoryview
    next_offset: int


class Jump(NamedTuple):
    """The reader goes on elsewhere, because of `error`."""

    error: SeglogError
    from_offset: int
    to_offset: int


class FetchState:
    """Belongs to one fetcher."""

    __slots__ = (
        "attempt",
        "buffered_bytes",
        "durable_end",
        "epoch",
        "fetch_offset",
        "is_fetching",
        "is_halted",
        "is_paused",
        "is_withheld",
        "log_start",
        "name",
        "pending",
        "position",
        "taken_epoch",
        "version",
    )

    def __init__(self, name: TopicPartition, offset: int) -> None:
        self.name = name
        self.position = offset  # the next record that the application gets
        self.fetch_offset = offset  # the next one to ask for
        self.epoch = UNKNOWN_EPOCH  # of the last batch that came
        self.taken_epoch = UNKNOWN_EPOCH  # of the last batch that the application got
        self.version = 0  # raised by a seek: what was asked before it is not wanted any more
        self.pending: deque[RawBatch | Jump | SeglogError] = deque()
        self.buffered_bytes = 0
        self.is_fetching = False
        self.is_paused = False
        self.is_withheld = False  # as paused, but by the group that assigns it
        self.is_halted = False  # an error is pending: nothing is asked before it was raised
        self.attempt = 0
        self.log_start = -1
        self.durable_end = -1

    def seek(self, offset: int) -> int:
        """Go on at `offset`; how many buffered bytes that freed."""
        freed = self.buffered_bytes
        self.position = self.fetch_offset = offset
        # A seek is a new reading: what was read before says nothing about it.
        self.epoch = UNKNOWN_EPOCH
        self.version += 1
        self.pending.clear()
        self.buffered_bytes = 0
        self.is_fetching = False  # a poll that is under way asks for something else
        self.is_halted = False
        self.attempt = 0
        return freed


def resume_offset(state: FetchState, error: SeglogError, on_reset: str) -> int | None:
    """Where reading goes on after `error`; None: nowhere, it must be raised.

    `earliest` is the first record that is still there to be read; `latest` skips all there is.
    """
    if on_reset == "error":
        return None
    if isinstance(error, OffsetOutOfRange):
        offset = error.log_start if on_reset == "earliest" else error.durable_end
    elif isinstance(error, LogTruncated):
        offset = error.cut_offset if on_reset == "earliest" else state.durable_end
    elif isinstance(error, DamagedLog):
        offset = error.resume_offset if on_reset == "earliest" else state.durable_end
    else:
        return None
    return offset if offset >= 0 else None
