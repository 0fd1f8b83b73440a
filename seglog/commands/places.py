"""Places as flags name them, and where they are in each partition that a command works on.

A whole number from 10^12 on is a time in milliseconds. An offset is one of any partition: where
another does not have it, that one is read from as near to it as there is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final

import typer

from .. import places
from ..places import Place, offsets_at
from ..protocol.errors import OffsetOutOfRange
from ..protocol.times import to_datetime

if TYPE_CHECKING:
    from ..client.blocking import SyncAdmin
    from ..client.log_ends import LogEnds

#: Of a whole number that stands for a place: from here on it is a time, in milliseconds (2001).
LEAST_EPOCH_MS: Final = 10**12
_SHOWN_ENDS: Final = 8


def parse_place(text: str, flag: str) -> Place:
    place = places.parse_place(text)
    if isinstance(place, int) and place >= LEAST_EPOCH_MS:
        try:
            return to_datetime(place * 1000)
        except OverflowError:
            place = None
    if place is None:
        raise typer.BadParameter(
            f"{text!r} is neither earliest, latest, an offset, nor a time such as "
            "2026-01-31T12:00:00Z",
            param_hint=flag,
        )
    return place


def find_log_ends(
    admin: SyncAdmin, topic: str, partitions: Collection[int] | None
) -> dict[int, LogEnds]:
    """Of these partitions, or of all (None)."""
    from ..client.log_ends import LogEnds  # noqa: PLC0415 - other commands need no client

    wanted = sorted(set(partitions)) if partitions else None
    starts = admin.list_offsets(topic, "earliest", wanted)
    ends = admin.list_offsets(topic, "latest", starts)
    return {number: LogEnds(starts[number].offset, ends[number].offset) for number in starts}


def find_offsets(
    admin: SyncAdmin, topic: str, place: Place, log_ends: Mapping[int, LogEnds]
) -> dict[int, int]:
    by_time = {}
    if isinstance(place, datetime):
        by_time = admin.list_offsets(topic, place, log_ends)
    return offsets_at(place, log_ends, by_time)


def find_starts(
    admin: SyncAdmin, topic: str, place: Place, log_ends: Mapping[int, LogEnds]
) -> dict[int, int]:
    """Where to begin in each partition. OffsetOutOfRange where no partition has that offset."""
    found = find_offsets(admin, topic, place, log_ends)
    if not isinstance(place, int):
        return found
    if not any(start <= place <= end for start, end in log_ends.values()):
        raise OffsetOutOfRange(f"no partition of {topic} has offset {place} ({_told(log_ends)})")
    return {n: min(max(place, start), end) for n, (start, end) in log_ends.items()}


def find_ends(
    admin: SyncAdmin,
    topic: str,
    place: Place | None,
    exit_at_end: bool,
    log_ends: Mapping[int, LogEnds],
) -> dict[int, int] | None:
    """Before which offset to stop in each partition; None: nowhere."""
    if place is None and not exit_at_end:
        return None
    found = find_offsets(admin, topic, "latest" if place is None else place, log_ends)
    if not exit_at_end:
        return found
    return {number: min(at, log_ends[number].durable_end) for number, at in found.items()}


def _told(log_ends: Mapping[int, LogEnds]) -> str:
    told = [f"{n}: {start} to {end}" for n, (start, end) in log_ends.items()]
    more = [f"and {len(told) - _SHOWN_ENDS} more"] if len(told) > _SHOWN_ENDS else []
    return "there are " + ", ".join(told[:_SHOWN_ENDS] + more)
