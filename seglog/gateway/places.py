"""Where to read: `earliest`, `latest`, an offset, `-N` (the last N), or a time, for each partition.

An offset that is not there is an error (416) before anything is read, never a silent jump.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

from ..client.admin import Admin
from ..protocol.errors import BadRequest, OffsetOutOfRange
from .problems import Refused

MAX_OFFSET: Final = 2**63 - 1

_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Last(NamedTuple):
    """So many offsets before the end, or all there are."""

    offsets: int


Place = Literal["earliest", "latest"] | int | Last | datetime


class Span(NamedTuple):
    """One partition: where to begin, and what there was when it was looked at."""

    at: int
    log_start: int
    durable_end: int


def parse_place(name: str, text: str) -> Place:
    """Of a query parameter; refused with 422 and its name."""
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    if _NUMBER.fullmatch(text):
        number = int(text)
        if number < 0:
            return Last(-number)
        if number <= MAX_OFFSET:
            return number
    moment = parse_time(text)
    if moment is None:
        told = BadRequest(
            f"{name}: neither earliest, latest, an offset, -N, nor a time such as"
            " 2026-01-31T12:00:00Z"
        )
        raise Refused(422, told)
    return moment


def parse_time(text: str) -> datetime | None:
    """ISO 8601, UTC where no zone is given; never before 1970. None where it is not that."""
    try:
        # A plus sign that nobody escaped came as a space.
        moment = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max(moment, _EPOCH)
    except (ValueError, OverflowError):
        return None


async def find_spans(
    admin: Admin, topic: str, place: Place, partitions: Iterable[int] | None = None
) -> dict[int, Span]:
    """Where a place is in each partition; None: in all. OffsetOutOfRange where it is in none."""
    latest = await admin.list_offsets(topic, "latest", partitions)
    numbers = list(latest)
    earliest = await admin.list_offsets(topic, "earliest", numbers)
    by_time = {}
    if isinstance(place, datetime):
        by_time = await admin.list_offsets(topic, place, numbers)
    spans = {}
    for number in numbers:
        start, end = earliest[number].offset, latest[number].offset
        if place == "earliest":
            at = start
        elif place == "latest":
            at = end
        elif isinstance(place, Last):
            at = max(start, end - place.offsets)
        elif isinstance(place, datetime):
            at = by_time[number].offset if by_time[number].offset >= 0 else end
        else:
            at = place
        spans[number] = Span(at, start, end)
    check_spans(topic, spans)
    return spans


def check_spans(topic: str, spans: Mapping[int, Span]) -> None:
    """OffsetOutOfRange where a partition does not have the offset to begin at."""
    for number, (at, log_start, durable_end) in spans.items():
        if not log_start <= at <= durable_end:
            raise OffsetOutOfRange(
                f"{topic}/{number} has offsets {log_start} to {durable_end}, there is no {at}",
                log_start,
                durable_end,
            )
