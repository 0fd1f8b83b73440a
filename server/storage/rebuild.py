"""What can be made again from the batches themselves: an index, the producer state."""

from __future__ import annotations

from collections.abc import Sequence

from ...protocol.constants import HEADER_BYTES
from ...protocol.errors import DamagedBatch
from ...protocol.header import check_prefix, unpack_header
from . import snapshots
from .filesystem import FileSystem
from .index import SegmentIndex
from .producer_state import ProducerState
from .resync import find_next_batch


def cover_batch(index: SegmentIndex, view: memoryview, position: int, at: int | None = None) -> int:
    """Add the stored batch at `position` of `view` to the index; returns where the next one begins.

    `at` is the batch's place in the segment where the view is not the segment.
    """
    check_prefix(view, position)
    header = unpack_header(view, position)
    if not HEADER_BYTES <= header.length <= len(view) - position:
        raise DamagedBatch(f"the batch at byte {position} is cut short")
    place = position if at is None else at
    if place != index.covered_bytes:  # behind damage: where a reader can go on
        index.mark(header.base_offset, place)
    index.covered_bytes = place
    index.add(
        header.base_offset,
        header.next_offset,
        header.length,
        header.max_timestamp_us,
        header.append_time_us,
        header.log_epoch,
    )
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
    position = 0
    while position < index.covered_bytes and unpack_header(view, position).next_offset <= offset:
        position = cover_batch(part, view, position)
    return part


def restore_producers(
    fs: FileSystem,
    folder: str,
    readable: Sequence[tuple[SegmentIndex, memoryview]],
    end: int,
) -> ProducerState:
    """The producers as they stand before offset `end`: a snapshot, and the batches behind it.

    `readable` are the segments that hold batches behind the snapshot, in order.
    """
    start, producers = snapshots.load_newest(fs, folder, end)
    for index, view in readable:
        position = index.position_of_offset(max(start, index.base_offset))
        while position < index.covered_bytes:
            header = unpack_header(view, position)
            if header.base_offset >= end:
                return producers
            if header.is_idempotent and header.base_offset >= start:
                producers.add(header, header.base_offset, header.append_time_us)
            position += header.length
    return producers
