"""Records as JSON, and back: bytes that are text as text, all others as base64, and nothing lost.

A cell has one field of several: `value` (text), `value_base64`, `value_json`; `value: null` is a
null. `encoding` chooses what answers have:

    auto     text where the bytes are UTF-8, else base64
    base64   base64 always, so that a program needs to look at one field only
    json     as auto, but a value that is a JSON document comes as that document
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode, b64encode
from enum import StrEnum
from typing import Any, Final

import msgspec

from ..protocol.records import Record
from ..protocol.times import iso_time

encode_json: Final = msgspec.json.Encoder().encode


class Encoding(StrEnum):
    """How answers show bytes."""

    auto = "auto"
    base64 = "base64"
    json = "json"


# --- out -----------------------------------------------------------------------------------------


def to_json(record: Record, encoding: Encoding) -> dict[str, Any]:
    """One record, to be encoded."""
    shown: dict[str, Any] = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": iso_time(record.timestamp_us),
        "timestamp_us": record.timestamp_us,
    }
    _put(shown, "key", record.key, encoding)
    if encoding is Encoding.json and (document := _document(record.value)) is not None:
        shown["value_json"] = document
    else:
        _put(shown, "value", record.value, encoding)
    shown["headers"] = [_header(name, value, encoding) for name, value in record.headers]
    return shown


def size_of(record: Record) -> int:
    """What counts against a limit in bytes."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def _header(name: str, value: bytes | None, encoding: Encoding) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": name}
    _put(shown, "value", value, encoding)
    return shown


def _put(shown: dict[str, Any], name: str, cell: bytes | None, encoding: Encoding) -> None:
    if cell is None:
        shown[name] = None
        return
    if encoding is not Encoding.base64:
        try:
            shown[name] = cell.decode()
            return
        except UnicodeDecodeError:
            pass
    shown[f"{name}_base64"] = b64encode(cell).decode("ascii")


def _document(value: bytes | None) -> msgspec.Raw | None:
    """A JSON document on one line, its numbers as they were written; None where it is none."""
    if value is None:
        return None
    try:
        msgspec.json.decode(value)
        return msgspec.Raw(msgspec.json.format(value, indent=-1))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


# --- in ------------------------------------------------------------------------------------------


def from_base64(text: str) -> bytes:
    """ValueError where it is not base64 (with padding, without line breaks)."""
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not base64 (A-Z a-z 0-9 + / with padding)") from None


def from_document(document: Any) -> bytes:
    """A JSON value as compact JSON; ValueError where JSON cannot have it."""
    try:
        text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except (ValueError, UnicodeError, RecursionError):
        raise ValueError("NaN, an unpaired surrogate, or nested too deep: not JSON") from None
