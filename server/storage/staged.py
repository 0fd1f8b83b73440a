"""What a log gives to its writer and to who looks at it: staged batches, answers, descriptions."""

from __future__ import annotations

from typing import NamedTuple

from ...protocol.errors import SeglogError
from ...protocol.header import BatchHeader, Buffer
from .producer_state import Producer
from .segment import ActiveSegment


class AppendResult(NamedTuple):
    """The answer to one batch."""

    base_offset: int
    append_time_us: int
    is_duplicate: bool = False


class Staged:
    """Batches of one log that have their offsets and wait to be written, to one segment."""

    __slots__ = (
        "append_time_us",
        "batches",
        "buffers",
        "end_offset",
        "length",
        "position",
        "producers_before",
        "results",
        "segment",
    )

    def __init__(self, segment: ActiveSegment, end_offset: int, append_time_us: int) -> None:
        self.segment = segment
        self.position = segment.size
        self.length = 0
        self.end_offset = end_offset
        self.append_time_us = append_time_us
        self.buffers: list[Buffer] = []
        self.batches: list[tuple[int, int, BatchHeader]] = []  # offset, length, header
        self.results: list[AppendResult | SeglogError] = []  # of the batches taken, in order
        self.producers_before: dict[int, Producer | None] = {}

    @property
    def taken(self) -> int:
        """How many of the given batches were taken; the rest goes into the next segment."""
        return len(self.results)


class SegmentInfo(NamedTuple):
    """One row of a log's description."""

    file: str
    start_offset: int
    end_offset: int  # exclusive
    size_bytes: int
    is_sealed: bool
