"""A produce request around batches that are already bytes: parts to be written, nothing copied.

    [7, version, correlation_id, [[[topic, partition, batch], …]]]

`api.encode_request` would copy every batch into the frame. Here the msgpack around them is put
together by hand, and the batches go to the transport as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import msgspec

from .api import PRODUCE
from .constants import HEADER_BYTES, PREFIX_BYTES
from .frame import frame_prefix
from .header import Buffer, pack_body, unpack_header

_encode: Final = msgspec.msgpack.Encoder().encode
_ARRAY16: Final = struct.Struct(">BH")
_BIN32: Final = struct.Struct(">BI")

#: The most bytes of a frame that are neither a batch nor its target.
FRAME_OVERHEAD_BYTES: Final = 4 + 1 + 1 + 1 + 9 + 1 + 3
#: What a batch takes in a frame beside its own bytes and its target.
BATCH_OVERHEAD_BYTES: Final = 5


def produce_target(topic: str, partition: int) -> bytes:
    """What stands before a batch for this partition: made once, used for all of its batches."""
    return b"\x93" + _encode(topic) + _encode(partition)


def encode_produce(correlation_id: int, batches: Iterable[tuple[bytes, Buffer]]) -> list[Buffer]:
    """A whole frame, its length in front, as parts; `batches` are pairs of a target and a batch."""
    pairs = list(batches)
    head = b"".join(
        (
            b"\x94",
            _encode(PRODUCE.key),
            _encode(PRODUCE.highest_version),
            _encode(correlation_id),
            b"\x91",
            _ARRAY16.pack(0xDC, len(pairs)),
        )
    )
    parts: list[Buffer] = [b""]
    length = 0
    before = head
    for target, batch in pairs:
        before += target + _BIN32.pack(0xC6, len(batch))
        parts += (before, batch)
        length += len(before) + len(batch)
        before = b""
    parts[0] = frame_prefix(length)
    # The first two in one, so that a request of one batch is two parts.
    parts[:2] = [bytes(parts[0]) + bytes(parts[1])]
    return parts


def renumber(
    batch: Buffer, *, producer_epoch: int, base_sequence: int, producer_id: int | None = None
) -> bytearray:
    """A copy of a produced batch with another producer, or another place in its sequence."""
    header = unpack_header(batch)
    copy = bytearray(batch)
    copy[PREFIX_BYTES:HEADER_BYTES] = pack_body(
        memoryview(batch)[HEADER_BYTES:],
        codec=header.codec,
        flags=header.flags,
        record_count=header.record_count,
        offset_span=header.offset_span,
        base_sequence=base_sequence,
        producer_id=header.producer_id if producer_id is None else producer_id,
        producer_epoch=producer_epoch,
        uncompressed_length=header.uncompressed_length,
        first_timestamp_us=header.first_timestamp_us,
        max_timestamp_us=header.max_timestamp_us,
    )
    return copy
