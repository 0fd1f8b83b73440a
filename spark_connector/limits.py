"""How much of what waits goes into one micro-batch.

Each partition gets its share by what waits in it, and at least one record while there is room, so
that a small one is not starved by a large one. The number of records is never passed. Bytes are
reckoned: a log tells the size of each segment, and within one every record counts the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..client.metadata import TopicPartition
from .offsets import Positions


class SegmentSize(NamedTuple):
    """Part of a log: these offsets take so many bytes."""

    first_offset: int
    end_offset: int
    size_bytes: int


Segments = Mapping[TopicPartition, Sequence[SegmentSize]]


def limit_records(start: Positions, end: Positions, max_records: int) -> Positions:
    """Ends that are at most `max_records` after `start`, in all."""
    waiting = {name: max(0, end[name] - start[name]) for name in end}
    shares = _shares(waiting, max_records, sum(start.values()))
    return {name: start[name] + shares[name] for name in end}


def _shares(
    waiting: Mapping[TopicPartition, int], room: int, turn: int
) -> dict[TopicPartition, int]:
    total = sum(waiting.values())
    if total <= room:
        return dict(waiting)
    names = [name for name, count in waiting.items() if count]
    # Where there is less room than partitions, it is another one's turn each time.
    first = turn % len(names)
    shares = dict.fromkeys(waiting, 0)
    for name in (names[first:] + names[:first])[:room]:
        shares[name] = 1
    rest = room - sum(shares.values())
    others = total - sum(shares.values())
    for name in names if rest else ():
        shares[name] += rest * (waiting[name] - 1) // others
    for name in sorted(names, key=lambda name: shares[name] - waiting[name]):
        # What rounding left, to where most waits.
        shares[name] += min(room - sum(shares.values()), waiting[name] - shares[name])
    return shares


def limit_bytes(start: Positions, end: Positions, segments: Segments, max_bytes: int) -> Positions:
    """Ends that are about `max_bytes` after `start`, in all, and at least one record."""
    sizes = {name: _bytes_between(segments[name], start[name], end[name]) for name in end}
    total = sum(sizes.values())
    if total <= max_bytes:
        return dict(end)
    limited = {
        name: _offset_after(segments[name], start[name], end[name], max_bytes * sizes[name] / total)
        for name in end
    }
    if limited == {name: start[name] for name in end}:
        return limit_records(start, end, 1)
    return limited


def _bytes_between(segments: Sequence[SegmentSize], start: int, end: int) -> float:
    return sum(
        _overlap(each, start, end) * each.size_bytes / (each.end_offset - each.first_offset)
        for each in segments
        if each.end_offset > each.first_offset
    )


def _overlap(segment: SegmentSize, start: int, end: int) -> int:
    return max(0, min(end, segment.end_offset) - max(start, segment.first_offset))


def _offset_after(segments: Sequence[SegmentSize], start: int, end: int, room_bytes: float) -> int:
    """How far `room_bytes` reach from `start`."""
    offset = start
    for each in segments:
        count = _overlap(each, offset, end)
        if not count:
            continue
        per_record = each.size_bytes / (each.end_offset - each.first_offset)
        if count * per_record > room_bytes:
            return max(offset, each.first_offset) + int(room_bytes / per_record)
        room_bytes -= count * per_record
        offset = min(end, each.end_offset)
    return end
