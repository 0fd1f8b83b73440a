"""Lines of JSON as records to send: what `consume --output json` writes, and less where less is
meant.
"""

from __future__ import annotations

import base64
import binascii
import time
from typing import Final, Literal

import msgspec

from ..protocol.errors import SeglogError
from ..protocol.times import from_datetime, parse_time
from .input_lines import Columns, Lines, Pairs

Encoding = Literal["base64"] | None


class JsonLine(msgspec.Struct, gc=False):
    value: str | None = None
    key: str | None = None
    headers: dict[str, str | None] | list[list[str | None]] | None = None
    timestamp: int | str | None = None
    partition: int | None = None
    value_encoding: Encoding = None
    key_encoding: Encoding = None


_decoder: Final = msgspec.json.Decoder(JsonLine)


def json_columns(found: Lines, headers: Pairs, partition: int | None) -> list[Columns]:
    """The records of these lines, by the partition that they name."""
    now_us = time.time_ns() // 1000
    parts: dict[int | None, Columns] = {}
    for index, line in enumerate(found.lines):
        if not line or line.isspace():
            continue
        try:
            record = _decoder.decode(line)
            value = _cell(record.value, record.value_encoding)
            key = _cell(record.key, record.key_encoding)
            pairs = headers + _pairs(record) if record.headers else headers
            time_us = now_us if record.timestamp is None else _microseconds(record.timestamp)
        except (msgspec.DecodeError, ValueError) as error:
            raise SeglogError(
                f"{found.where(index)}: {error}. Correct the line; seglog produce --help says what "
                "it may hold"
            ) from None
        number = record.partition if partition is None else partition
        part = parts.get(number)
        if part is None:
            part = parts[number] = Columns(number, [], [], [], [])
        part.values.append(value)
        part.keys.append(key)  # type: ignore[union-attr]  # a list, as made above
        part.headers.append(pairs)  # type: ignore[union-attr]
        part.timestamps.append(time_us)  # type: ignore[union-attr]
    return [
        part if any(part.headers or ()) else part._replace(headers=None) for part in parts.values()
    ]


def _cell(text: str | None, encoding: str | None) -> bytes | None:
    if text is None:
        return None
    if encoding is None:
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None


def _pairs(record: JsonLine) -> Pairs:
    given = record.headers
    if given is None:
        return []
    if isinstance(given, dict):
        return [(name, _cell(value, None)) for name, value in given.items()]
    pairs: Pairs = []
    for entry in given:
        name, value, encoding = (*entry, None, None, None)[:3]
        if name is None or len(entry) not in (2, 3) or encoding not in (None, "base64"):
            raise ValueError('a header must be ["name", "value"] or ["name", "…", "base64"]')
        pairs.append((name, _cell(value, encoding)))
    return pairs


def _microseconds(timestamp: int | str) -> int:
    if isinstance(timestamp, int):
        return timestamp * 1000
    moment = parse_time(timestamp)
    if moment is None:
        raise ValueError(f"timestamp {timestamp!r} is neither ISO 8601 nor milliseconds")
    return from_datetime(moment)
