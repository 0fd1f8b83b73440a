"""What can be made again from the batches themselves: an index, the producer state."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from ...protocol.constants import HEADER_BYTES
from ...protocol.errors import DamagedBatch, SeglogError
from ...protocol.header import check_prefix, check_stored, hop, unpack_header
from . import snapshots
from .filesystem import FileSystem
from .index import POSITION_MASK, SegmentIndex
from .producer_state import ProducerState
from .resync import find_next_batch

if TYPE_CHECKING:
    from .segment import ActiveSegment, OpenSegment, SealedSegment

    AnySegment = TypeVar("AnySegment", bound=ActiveSegment | SealedSegment)


def cover_batch(index: SegmentIndex, view: memoryview, position: int, at: int | None = None) -> int:
    """Add the stored batch at `position` of `view` to the index; returns where the next one begins.

    `at` is the batch's place in the segment where the view is not the segment.
    """
    header = unpack_header(view, position)
    check_prefix(view, position)
    if not HEADER_BYTES <= header.length <= len(view) - position:
        raise DamagedBatch(f"the batch at byte {position} is cut short")
    place = position if at is None else at
    if place != index.covered_bytes:  # behind damage: where a reader can go on
        index.mark(header.base_offset, place)
    index.covered_bytes = place
    index.add_stored(header)
    return index.covered_bytes


def rebuild_index(view: memoryview, base: int, interval_bytes: int) -> SegmentIndex:
    """The index of a segment from its batches. A damaged stretch is stepped over."""
    index = SegmentIndex(base, interval_bytes)
    position: int | None = 0
    while position is not None and position < len(view):
        try:
            position = cover_batch(index, view, position)
        except DamagedBatch:
            position = find_next_batch(view, position + 1, index.next_offset)
    index.covered_bytes = len(view)
    return index


def index_up_to(index: SegmentIndex, view: memoryview, offset: int) -> SegmentIndex:
    """The part of a segment's index that covers the batches below `offset`."""
    part = SegmentIndex(index.base_offset, index.interval_bytes)
    # From the last entry below it on: what lies before stays as it is, also where it is damaged.
    kept = bisect_left(index.entries, (offset - index.base_offset) << 32)
    position = 0
    if kept > 1:
        position = index.entries[kept - 1] & POSITION_MASK
        part.entries, part.times = index.entries[: kept - 1], index.times[: kept - 1]
        part.max_timestamp_us = index.times[kept - 1]
        part.covered_bytes = position
    while position < index.covered_bytes and unpack_header(view, position).next_offset <= offset:
        position = cover_batch(part, view, position)
    return part


def batch_positions(index: SegmentIndex, view: memoryview, position: int = 0) -> Iterator[int]:
    """Where the batches from `position` on begin; a damaged stretch is stepped over."""
    view = view[: index.covered_bytes]  # the file may end there
    found: int | None = position
    while found is not None and found < len(view):
        try:
            length = hop(view, found).length
            if length > len(view) - found:
                raise DamagedBatch(f"the batch at byte {found} is cut short")
        except DamagedBatch:
            found = find_next_batch(view, found + 1, index.base_offset)
            continue
        yield found
        found += length


def restore_producers(
    fs: FileSystem,
    folder: str,
    segments: Sequence[AnySegment],
    open_segment: Callable[[AnySegment], OpenSegment],
    end: int,
) -> ProducerState:
    """The producers as they stand before offset `end`: a snapshot, and the batches behind it."""
    start, producers = snapshots.load_newest(fs, folder, end)
    if start == end:
        return producers
    first = max((i for i, s in enumerate(segments) if s.base_offset <= start), default=0)
    for opened in map(open_segment, segments[first:]):
        position = opened.index.position_of_offset(max(start, opened.base_offset))
        for place in batch_positions(opened.index, opened.view, position):
            try:
                header = check_stored(opened.view, place)
            except SeglogError:
                continue  # its readers are told
            if header.is_idempotent and start <= header.base_offset < end:
                producers.add(header, header.base_offset, header.append_time_us)
    return producers
