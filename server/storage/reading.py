"""The reading half of a log: which bytes answer an offset or a time. Any thread may read.

The writer publishes what readers see as two immutable values, each replaced in one step: the chain
of segments, and how far it may be read. A reader takes both once and then works on its own copy; so
reading needs no lock, and never waits for the writer. The order matters: a reader takes `_visible`,
then `_chain`, then looks at the log start; the writer changes them the other way round. So whoever
sees a chain without its old segments also sees the new log start, and no reader jumps silently over
what was deleted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from ...protocol.batch import decode_batch
from ...protocol.constants import HEADER_BYTES, KIB, MIB
from ...protocol.errors import DamagedLog, LogTruncated, OffsetOutOfRange
from ...protocol.header import base_offset_at, check_stored, count_records, hop
from .filesystem import storage_error
from .log_state import LogState
from .segment import ActiveSegment, OpenSegment, SealedSegment, SegmentCache

Segment = SealedSegment | ActiveSegment
T = TypeVar("T")

_NOTHING = memoryview(b"")
_HOPS_BYTES: Final = 64 * KIB  # what finding a batch may touch before its first byte
_WARM_STEP_BYTES: Final = 1 * MIB


class Chain(NamedTuple):
    """The segments in order of their first offset, with those offsets beside them to bisect."""

    bases: list[int]
    segments: list[Segment]

    @classmethod
    def of(cls, segments: list[Segment]) -> Chain:
        return cls([segment.base_offset for segment in segments], segments)

    def place(self, offset: int) -> int:
        """The place of the segment that holds `offset`."""
        return max(0, bisect_right(self.bases, offset) - 1)


class Visible(NamedTuple):
    """How far readers may read: an offset, and where that lies."""

    durable_end: int
    base_offset: int  # of the segment that was active when this was published
    position: int


class Found(NamedTuple):
    """Whole batches, and the offsets that they span: from the first one's to behind the last."""

    batches: memoryview
    base_offset: int
    next_offset: int


class TimePosition(NamedTuple):
    """The first record at or after a time."""

    offset: int
    timestamp_us: int


class ReadableLog:
    """What readers know of a log: log start, durable end, and the batches in between."""

    def __init__(self, name: str, cache: SegmentCache, chain: Chain, state: LogState) -> None:
        self.name = name  # topic/partition, for messages
        self._cache = cache
        self._chain = chain
        self._state = state
        self._visible = Visible(0, 0, 0)

    @property
    def log_start(self) -> int:
        return self._state.log_start

    @property
    def durable_end(self) -> int:
        return self._visible.durable_end

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def segments(self) -> list[Segment]:
        return self._chain.segments

    def check_epoch(self, offset: int, epoch: int) -> None:
        """Tell a reader that stands at `offset`, and last read in `epoch`, of a cut below it."""
        if epoch == self._state.epoch:
            return
        cut = self._state.cut_since(epoch, offset)
        if cut is not None:
            raise LogTruncated(
                f"{self.name}: offsets {cut} to {offset - 1} were cut off after they were read", cut
            )

    def read(self, offset: int, max_bytes: int) -> memoryview:
        """Whole batches from the one that holds `offset`, within `max_bytes`, at least one.

        Empty at the durable end. The slice stays valid while it is held, whatever happens to the
        log.
        """
        return self.find(offset, max_bytes).batches

    def read_if_cached(self, offset: int, max_bytes: int) -> memoryview | None:
        """As `read` where that touches no disk; None where it might: `warm` it elsewhere."""
        found = self.find_if_cached(offset, max_bytes)
        return found and found.batches

    def find(self, offset: int, max_bytes: int) -> Found:
        """As `read`, with the offsets of what was found."""
        return self._retry(lambda: self._find(offset, max_bytes, self._cache.open))

    def find_if_cached(self, offset: int, max_bytes: int) -> Found | None:
        opened = self._peek(offset)
        if opened is None:
            return None
        start = opened.index.position_of_offset(offset)
        visible = self._visible
        limit = _limit(opened, visible)
        length = min(max_bytes + _HOPS_BYTES, limit - start)
        if length > 0 and not opened.file.is_cached(length, start):
            return None
        try:
            return self._find(offset, max_bytes, self._open_now)
        except _WouldWait:
            return None

    def warm(self, offset: int, max_bytes: int) -> None:
        """Bring what `read` would touch into memory. Waits for the disk without holding the GIL."""

        def bring() -> None:
            visible, chain = self._visible, self._chain
            self._check_range(offset, visible)
            opened = self._open(chain.segments[chain.place(offset)], self._cache.open)
            position = opened.index.position_of_offset(offset)
            end = min(position + max_bytes + _HOPS_BYTES, _limit(opened, visible))
            while position < end:
                opened.file.read(min(_WARM_STEP_BYTES, end - position), position)
                position += _WARM_STEP_BYTES

        self._retry(bring)

    def append_time_of(self, offset: int) -> int | None:
        """When the batch that holds `offset` was appended; None at the durable end."""
        found = self.read(max(offset, self.log_start), 1)
        return hop(found, 0).append_time_us if found else None

    def offset_for_time(self, timestamp_us: int) -> TimePosition | None:
        """The first readable record whose timestamp is `timestamp_us` or later."""
        return self._retry(lambda: self._offset_for_time(timestamp_us))

    def _offset_for_time(self, timestamp_us: int) -> TimePosition | None:
        visible, chain, log_start = self._visible, self._chain, self.log_start
        for segment in chain.segments[chain.place(log_start) :]:
            if segment.base_offset >= visible.durable_end:
                break
            if (
                isinstance(segment, SealedSegment)
                and segment.summary().max_timestamp_us < timestamp_us
            ):
                continue
            opened = self._open(segment, self._cache.open)
            limit = _limit(opened, visible)
            position = opened.index.position_of_time(timestamp_us)
            while position < limit:
                # Checked in full: a damaged one could hold the record, and hide that it does.
                header = check_stored(opened.view[:limit], position)
                if header.max_timestamp_us >= timestamp_us and header.next_offset > log_start:
                    batch = decode_batch(
                        opened.view[position : position + header.length], verify=False
                    )
                    for offset, timestamp in zip(batch.offsets, batch.timestamps, strict=True):
                        if timestamp >= timestamp_us and offset >= log_start:
                            return TimePosition(offset, timestamp)
                position += header.length
        return None

    def _find(
        self, offset: int, max_bytes: int, opener: Callable[[SealedSegment], OpenSegment]
    ) -> Found:
        visible, chain = self._visible, self._chain
        self._check_range(offset, visible)
        place = chain.place(offset)
        first = chain.bases[place]
        if offset < first:
            raise DamagedLog(f"{self.name}: offsets {offset} to {first - 1} are lost", first)
        if offset == visible.durable_end:
            return Found(_NOTHING, offset, offset)
        segment = self._open(chain.segments[place], opener)
        limit = _limit(segment, visible)
        start = segment.locate(offset, limit)
        if start == limit:
            # Compaction may leave a gap inside a segment, never at its end: this one is damage.
            is_last = place + 1 == len(chain.bases)
            resume = visible.durable_end if is_last else chain.bases[place + 1]
            raise DamagedLog(f"{self.name}: offsets {offset} to {resume - 1} are lost", resume)
        end = segment.extent(start, limit, max_bytes)
        batches = segment.view[start:end]
        base = base_offset_at(batches, 0)
        # A chain that is newer than `visible` has more than that tells: what is sealed is durable.
        newest = max(visible.durable_end, chain.bases[-1])
        if end == limit:
            following = chain.bases[place + 1] if place + 1 < len(chain.bases) else newest
        elif limit - end >= HEADER_BYTES:
            following = base_offset_at(segment.view, end)
        else:
            following = -1
        if not base < following <= newest:  # damage behind the last batch, not yet met by a reader
            following = base + count_records(batches)
        return Found(batches, base, following)

    def _check_range(self, offset: int, visible: Visible) -> None:
        if not self.log_start <= offset <= visible.durable_end:
            raise OffsetOutOfRange(
                f"{self.name}: offset {offset} is not between the log start {self.log_start} "
                f"and the durable end {visible.durable_end}",
                self.log_start,
                visible.durable_end,
            )

    def _peek(self, offset: int) -> OpenSegment | None:
        segment = self._chain.segments[self._chain.place(offset)]
        return self._cache.peek(segment) if isinstance(segment, SealedSegment) else segment

    def _open_now(self, segment: SealedSegment) -> OpenSegment:
        opened = self._cache.peek(segment)
        if opened is None:
            raise _WouldWait
        return opened

    def _open(
        self, segment: Segment, opener: Callable[[SealedSegment], OpenSegment]
    ) -> OpenSegment:
        return opener(segment) if isinstance(segment, SealedSegment) else segment

    def _retry(self, action: Callable[[], T]) -> T:
        """Do it again on the new chain where a segment's file went away meanwhile."""
        while True:
            chain = self._chain
            try:
                return action()
            except FileNotFoundError as error:
                if chain is self._chain:
                    raise DamagedLog(f"{self.name}: {error.filename} is missing") from None
            except OSError as error:
                raise storage_error(error, f"reading {self.name}") from error


class _WouldWait(Exception):
    """A segment must be opened first."""


def _limit(segment: OpenSegment, visible: Visible) -> int:
    """How far a segment may be read.

    What is sealed is on disk, all of it. And its size is its own: a position published while it was
    active means nothing once compaction has put a smaller file in its place.
    """
    if not isinstance(segment, ActiveSegment) or segment.base_offset < visible.base_offset:
        return segment.index.covered_bytes
    return visible.position if segment.base_offset == visible.base_offset else 0
