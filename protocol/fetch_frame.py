"""A fetch response as parts for the socket: the batches are slices of the log's map, uncopied.

What comes out is what `messages.FetchResponse` decodes; only the encoding is by hand, since an
encoder would copy every slice into its buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from .header import Buffer
from .messages import WireError

_encode = msgspec.msgpack.Encoder().encode
_BIN32 = struct.Struct(">BI")
_ARRAY32 = struct.Struct(">BI")


class FetchedPartition(NamedTuple):
    """One result; see `messages.FetchResult`."""

    error: WireError | None
    log_start: int
    durable_end: int
    batches: Buffer


def fetch_response_parts(correlation_id: int, results: Sequence[FetchedPartition]) -> list[Buffer]:
    """`[correlation_id, nil, [[[error, log_start, durable_end, batches], …]]]`."""
    parts: list[Buffer] = []
    text = b"\x93" + _encode(correlation_id) + b"\xc0\x91" + _ARRAY32.pack(0xDD, len(results))
    for error, log_start, durable_end, batches in results:
        text += b"\x94" + _encode(error) + _encode(log_start) + _encode(durable_end)
        text += _BIN32.pack(0xC6, len(batches))
        if batches:
            parts += (text, batches)
            text = b""
    if text:
        parts.append(text)
    return parts
