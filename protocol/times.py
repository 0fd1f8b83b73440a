"""Times: microseconds since 1970, UTC, as datetimes and as ISO 8601 text, and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_MICROSECOND: Final = timedelta(microseconds=1)


def to_datetime(time_us: int) -> datetime:
    """OverflowError beyond the years 1 to 9999."""
    return EPOCH + timedelta(microseconds=time_us)


def from_datetime(moment: datetime) -> int:
    """Of one that is aware."""
    return (moment - EPOCH) // _MICROSECOND


@lru_cache(maxsize=64)  # the records of a batch mostly share their time
def iso_time(time_us: int) -> str | None:
    """UTC, to the microsecond; None beyond the years 1 to 9999."""
    try:
        moment = to_datetime(time_us)
    except OverflowError:
        return None
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


@lru_cache(maxsize=64)
def parse_time(text: str) -> datetime | None:
    """ISO 8601, UTC where it names no zone; None where it is not that."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
