"""Places as a request names them, and where they are in each partition.

An offset that is not there is an error (416) before anything is read, never a silent jump.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from .. import places
from ..client.admin import Admin
from ..client.log_ends import LogEnds
from ..places import Place, offsets_at, out_of_range
from ..protocol.errors import BadRequest
from .problems import Refused


def unescaped(text: str) -> str:
    """A time of a query: a plus sign that nobody escaped came as a space."""
    return text.replace(" ", "+") if "T" in text else text


def parse_place(name: str, text: str) -> Place:
    """Of a query parameter; refused with 422 and its name."""
    place = places.parse_place(unescaped(text))
    if place is None:
        told = BadRequest(
            f"{name}: neither earliest, latest, an offset, -N, nor a time such as"
            " 2026-01-31T12:00:00Z"
        )
        raise Refused(422, told)
    return place


async def find_log_ends(
    admin: Admin, topic: str, partitions: Iterable[int] | None
) -> dict[int, LogEnds]:
    """Of these partitions, or of all (None)."""
    starts = await admin.list_offsets(topic, "earliest", partitions)
    ends = await admin.list_offsets(topic, "latest", starts)
    return {number: LogEnds(starts[number].offset, ends[number].offset) for number in starts}


async def find_offsets(
    admin: Admin, topic: str, place: Place, log_ends: Mapping[int, LogEnds]
) -> dict[int, int]:
    """Where a place is in each partition; OffsetOutOfRange where one does not have it."""
    by_time = {}
    if isinstance(place, datetime):
        by_time = await admin.list_offsets(topic, place, log_ends)
    found = offsets_at(place, log_ends, by_time)
    # Not for a time: what it finds may have come after the ends were looked at.
    if isinstance(place, int):
        check_offsets(topic, found, log_ends)
    return found


def check_offsets(topic: str, offsets: Mapping[int, int], log_ends: Mapping[int, LogEnds]) -> None:
    """OffsetOutOfRange where a partition does not have the offset to begin at."""
    for number, offset in offsets.items():
        ends = log_ends[number]
        if not ends.log_start <= offset <= ends.durable_end:
            raise out_of_range(topic, number, offset, ends)
