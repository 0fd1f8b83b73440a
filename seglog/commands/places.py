"""Places in a log as flags name them (earliest, latest, OFFSET, -N, TIME), and which offsets these
are in each partition.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import typer

from ..protocol.errors import OffsetOutOfRange, UnknownPartition
from .common import counted, parse_time

if TYPE_CHECKING:
    from ..client.blocking import SyncAdmin

#: Of a whole number that stands for a place: from here on it is a time, in milliseconds (2001).
LEAST_EPOCH_MS: Final = 10**12
_SHOWN_RANGES: Final = 8

#: The log start and the durable end of each partition that is read.
Ranges = Mapping[int, tuple[int, int]]


class Place(NamedTuple):
    """`number` is an offset, a count or microseconds."""

    kind: Literal["earliest", "latest", "offset", "last", "time"]
    number: int = 0


def parse_place(text: str, flag: str) -> Place:
    if text == "earliest":
        return Place("earliest")
    if text == "latest":
        return Place("latest")
    if re.fullmatch(r"-\d{1,18}", text, re.ASCII):
        return Place("last", int(text[1:]))
    if re.fullmatch(r"\d{1,18}", text, re.ASCII):
        number = int(text)
        if number >= LEAST_EPOCH_MS:
            return Place("time", number * 1000)
        return Place("offset", number)
    time_us = parse_time(text)
    if time_us is None:
        raise typer.BadParameter(
            f"{text!r} is neither earliest, latest, an offset, nor a time such as "
            "2026-01-31T12:00:00Z",
            param_hint=flag,
        )
    return Place("time", time_us)


def find_ranges(
    admin: SyncAdmin, topic: str, partitions: Collection[int] | None
) -> dict[int, tuple[int, int]]:
    """Of these partitions, or of all (None)."""
    starts = admin.list_offsets(topic, "earliest")
    for number in partitions or ():
        if number not in starts:
            count = counted(len(starts), "partition")
            raise UnknownPartition(f"{topic} has {count}, there is no {number}")
    wanted = sorted(set(partitions)) if partitions else sorted(starts)
    ends = admin.list_offsets(topic, "latest", wanted)
    return {number: (starts[number].offset, ends[number].offset) for number in wanted}


def find_starts(admin: SyncAdmin, topic: str, place: Place, ranges: Ranges) -> dict[int, int]:
    match place.kind:
        case "earliest":
            return {number: start for number, (start, _) in ranges.items()}
        case "latest":
            return {number: end for number, (_, end) in ranges.items()}
        case "last":
            return {n: max(start, end - place.number) for n, (start, end) in ranges.items()}
        case "offset":
            if not any(start <= place.number <= end for start, end in ranges.values()):
                raise OffsetOutOfRange(
                    f"no partition of {topic} has offset {place.number} ({_told(ranges)})"
                )
            return {n: min(max(place.number, start), end) for n, (start, end) in ranges.items()}
        case "time":
            return _at_time(admin, topic, place.number, ranges)


def find_ends(
    admin: SyncAdmin, topic: str, place: Place | None, exit_at_end: bool, ranges: Ranges
) -> dict[int, int] | None:
    """Before which offset to stop in each partition; None: nowhere."""
    now = {number: end for number, (_, end) in ranges.items()}
    if place is None:
        return now if exit_at_end else None
    if place.kind == "latest":
        return now
    if place.kind == "time":
        return _at_time(admin, topic, place.number, ranges)
    return {n: min(place.number, end) if exit_at_end else place.number for n, end in now.items()}


def _at_time(admin: SyncAdmin, topic: str, time_us: int, ranges: Ranges) -> dict[int, int]:
    """The first record of that time or later, else the end."""
    found = admin.list_offsets(topic, max(time_us, 0), ranges)
    return {n: each.offset if each.offset >= 0 else ranges[n][1] for n, each in found.items()}


def _told(ranges: Ranges) -> str:
    told = [f"{n}: {start} to {end}" for n, (start, end) in ranges.items()]
    more = [f"and {len(told) - _SHOWN_RANGES} more"] if len(told) > _SHOWN_RANGES else []
    return "there are " + ", ".join(told[:_SHOWN_RANGES] + more)
