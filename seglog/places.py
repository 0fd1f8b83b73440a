"""Places in a topic as people name them, and which offset each is in every partition.

    earliest   the log start              OFFSET   that offset, whether it is there or not
    latest     the durable end            -N       N offsets before the end, or the log start
    TIME       the first record with that time or a later one; the end where there is none

The command line and the HTTP gateway both read them here. What an offset that is not there means is
theirs to say; `out_of_range` is how it is told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from .protocol.constants import MAX_OFFSET
from .protocol.errors import OffsetOutOfRange
from .protocol.times import EPOCH, parse_time

if TYPE_CHECKING:
    from .client.log_ends import LogEnds
    from .client.offsets import FoundOffset

_NUMBER: Final = re.compile(r"(-?)([0-9]{1,19})")


class Last(NamedTuple):
    """So many offsets before the end, or all there are."""

    offsets: int


#: As the client library has them; a time is never before 1970.
Place = Literal["earliest", "latest"] | int | Last | datetime


def parse_place(text: str) -> Place | None:
    """None where it is no place."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    number = _NUMBER.fullmatch(text)
    if number is not None:
        offsets = int(number[2])
        if offsets > MAX_OFFSET:
            return None
        return Last(offsets) if number[1] else offsets
    moment = parse_time(text)
    # A time before 1970 is a negative number, and to a broker those mean the ends of the log.
    return None if moment is None else max(moment, EPOCH)


def offsets_at(
    place: Place, ends: Mapping[int, LogEnds], by_time: Mapping[int, FoundOffset]
) -> dict[int, int]:
    """The offset in each partition. `by_time`: where the place is a time, what a broker found."""
    match place:
        case "earliest":
            return {number: each.log_start for number, each in ends.items()}
        case "latest":
            return {number: each.durable_end for number, each in ends.items()}
        case Last(offsets):
            return {
                number: max(each.log_start, each.durable_end - offsets)
                for number, each in ends.items()
            }
        case int():
            return dict.fromkeys(ends, place)
        case _:
            return {
                number: by_time[number].offset if by_time[number].offset >= 0 else each.durable_end
                for number, each in ends.items()
            }


def out_of_range(topic: str, partition: int, offset: int, ends: LogEnds) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"{topic}/{partition} has offsets {ends.log_start} to {ends.durable_end}, there is no"
        f" {offset}",
        *ends,
    )
