"""What applications hand in, as the cells that batches hold: bytes, microseconds, tuples of
pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, cast

from ..protocol.columns import Headers
from ..protocol.errors import BadBatch
from ..protocol.times import from_datetime

#: A value or key: text becomes UTF-8; what can change is copied.
Data = bytes | str | bytearray | memoryview
#: An aware datetime, or microseconds since the epoch.
Timestamp = datetime | int
HeaderValue = bytes | str | None
#: Pairs, or a mapping.
HeadersLike = Mapping[str, HeaderValue] | Iterable[tuple[str, HeaderValue]]

_PLAIN: Final = ({bytes}, {bytes, type(None)}, {type(None)}, set[type]())


def to_cell(name: str, data: Data | None) -> bytes | None:
    """A value or key as bytes."""
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise BadBatch(f"{name} is a {type(data).__name__}, not bytes, str or None")


def to_cells(name: str, column: Sequence[Data | None]) -> list[bytes | None]:
    """A column; a list that holds only bytes and None is taken as it is, so do not change it."""
    if set(map(type, column)) in _PLAIN:
        plain = cast("Sequence[bytes | None]", column)
        return plain if isinstance(plain, list) else list(plain)
    return [to_cell(f"{name}[{index}]", data) for index, data in enumerate(column)]


def to_microseconds(timestamp: Timestamp) -> int:
    """An aware datetime or an int as microseconds since the epoch."""
    if isinstance(timestamp, int):
        return timestamp
    if not isinstance(timestamp, datetime):
        raise BadBatch(f"timestamp is a {type(timestamp).__name__}, not a datetime or an int")
    if timestamp.tzinfo is None:
        raise BadBatch(f"timestamp {timestamp} has no time zone: say which, for example UTC")
    return from_datetime(timestamp)


def to_time_sought(timestamp: Timestamp) -> int:
    """As `to_microseconds`, of a time to look for: to a broker, negative ones mean the ends of a
    log, so one before 1970 is 1970.
    """
    return max(to_microseconds(timestamp), 0)


def to_headers(headers: HeadersLike) -> Headers:
    """Pairs of a name and bytes or None; their order is kept."""
    pairs: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers
    try:
        return tuple((_name(name), to_cell("a header", value)) for name, value in pairs)
    except (TypeError, ValueError):
        raise BadBatch("headers are not pairs of a name and a value") from None


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise BadBatch(f"a header's name is a {type(name).__name__}, not a str")
    return name
