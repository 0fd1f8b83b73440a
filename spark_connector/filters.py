"""Filters that Spark hands down, as far as they tell what need not be read.

    partition   =, <=>, in, <, <=, >, >=      other partitions are left out
    offset      =, <=>, in, <, <=, >, >=      ranges are cut
    timestamp   =, <=>, >, >=                 what lies before the first such record is left out

A time can only be cut from the front: times need not rise with the offsets, so that a record with
an early time may come at any place. Spark applies every filter itself as well; here they only save
work, and one that is not understood saves none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from ..protocol.times import from_datetime
from .offsets import Span


@dataclass(slots=True)
class Bounds:
    """Whole numbers from `low` up to and with `high`; None: no bound."""

    low: int | None = None
    high: int | None = None

    def narrow(self, low: int | None, high: int | None) -> None:
        if low is not None:
            self.low = low if self.low is None else max(self.low, low)
        if high is not None:
            self.high = high if self.high is None else min(self.high, high)

    def hold(self, number: int) -> bool:
        return (self.low is None or number >= self.low) and (
            self.high is None or number <= self.high
        )


@dataclass(slots=True)
class Pushed:
    """What the filters of one query leave to be read."""

    partition: Bounds
    offset: Bounds
    timestamp_us: Bounds

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Pushed:
        found = cls(Bounds(), Bounds(), Bounds())
        for each in filters:
            found._take(each)
        return found

    def _take(self, each: Filter) -> None:
        bounds = self._bounds(getattr(each, "attribute", ()))
        given = each.value if isinstance(each, In) else (getattr(each, "value", None),)
        numbers = [number for value in given if (number := _whole(value)) is not None]
        # A null among the values is equal to nothing that a column here holds.
        if bounds is not None and numbers and len(numbers) == len(given):
            bounds.narrow(*_interval(each, min(numbers), max(numbers)))

    def _bounds(self, attribute: tuple[str, ...]) -> Bounds | None:
        columns: dict[tuple[str, ...], Bounds] = {
            ("partition",): self.partition,
            ("offset",): self.offset,
            ("timestamp",): self.timestamp_us,
        }
        return columns.get(tuple(map(str.lower, attribute)))

    def cut(self, spans: Iterable[Span]) -> list[Span]:
        """By partition and offset."""
        found = []
        for span in spans:
            first = (
                span.first_offset
                if self.offset.low is None
                else max(span.first_offset, self.offset.low)
            )
            end = (
                span.end_offset
                if self.offset.high is None
                else min(span.end_offset, self.offset.high + 1)
            )
            if first < end and self.partition.hold(span.name.partition):
                found.append(Span(span.name, first, end))
        return found


def _interval(each: Filter, low: int, high: int) -> tuple[int | None, int | None]:
    match each:
        case EqualTo() | EqualNullSafe() | In():
            return low, high
        case GreaterThan():
            return low + 1, None
        case GreaterThanOrEqual():
            return low, None
        case LessThan():
            return None, high - 1
        case LessThanOrEqual():
            return None, high
    return None, None


def _whole(value: Any) -> int | None:
    """A number, or a time in microseconds; None where it is neither."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.astimezone()
        return from_datetime(aware)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
