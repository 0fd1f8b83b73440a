"""The 80 bytes that open a batch, on the wire and on disk.

    at  type field                       at  type field
     0  u64  base_offset          ┐      32  u8   format
     8  i64  append_time_us       │ the  33  u8   codec
    16  u32  length               │ bro- 34  u16  flags
    20  u32  log_epoch            │ ker  36  u32  record_count
    24  u32  prefix_crc32c  0–23  ┘      40  u32  offset_span
    28  u32  crc32c   32 to the end      44  u32  base_sequence
                                         48  i64  producer_id
                                         56  u32  producer_epoch
                                         60  u32  uncompressed_length
                                         64  i64  first_timestamp_us
                                         72  i64  max_timestamp_us

Little-endian. The first 28 bytes are the broker's; a producer sends zeros there. The rest is the
producer's and never changes, so one checksum made by the producer guards the payload all the way to
the last reader. Promise: every bit of a stored batch is under one of the two checksums, or is a
checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from .constants import (
    BATCH_FORMAT,
    CODEC_LZ4,
    CODEC_NONE,
    FLAG_COMPACTED,
    HEADER_BYTES,
    KNOWN_FLAGS,
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    MAX_UNCOMPRESSED_BYTES,
    NO_PRODUCER_ID,
    PREFIX_BYTES,
)
from .errors import BadBatch, BatchTooLarge, DamagedBatch, UnsupportedCodec, UnsupportedVersion

Buffer = bytes | bytearray | memoryview

_HEADER = struct.Struct("<QqIIIIBBHIIIqIIqq")
_PREFIX = struct.Struct("<QqII")
_PREFIX_CRC = struct.Struct("<I")
_BODY = struct.Struct("<BBHIIIqIIqq")  # 32 to 79: what the payload checksum covers first
_OFFSET = struct.Struct("<Q")
_COUNT = struct.Struct("<16xI16xI")  # length and record_count
_HOP = struct.Struct("<QqIII8xII")  # the prefix, then record_count and offset_span

assert _HEADER.size == HEADER_BYTES
assert _PREFIX.size + _PREFIX_CRC.size == PREFIX_BYTES
assert PREFIX_BYTES + 4 + _BODY.size == HEADER_BYTES


class BatchHeader(NamedTuple):
    """The header, field by field."""

    base_offset: int
    append_time_us: int
    length: int
    log_epoch: int
    prefix_crc32c: int
    crc32c: int
    format: int
    codec: int
    flags: int
    record_count: int
    offset_span: int
    base_sequence: int
    producer_id: int
    producer_epoch: int
    uncompressed_length: int
    first_timestamp_us: int
    max_timestamp_us: int

    @property
    def next_offset(self) -> int:
        """The base offset of the batch that follows."""
        return self.base_offset + self.offset_span

    @property
    def is_compacted(self) -> bool:
        return bool(self.flags & FLAG_COMPACTED)

    @property
    def is_idempotent(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID


class Hop(NamedTuple):
    """What is needed to step from one stored batch to the next."""

    base_offset: int
    append_time_us: int
    length: int
    log_epoch: int
    next_offset: int


def pack_prefix(base_offset: int, append_time_us: int, length: int, log_epoch: int) -> bytes:
    """The broker's 28 bytes."""
    head = _PREFIX.pack(base_offset, append_time_us, length, log_epoch)
    return head + _PREFIX_CRC.pack(crc32c(head))


def pack_body(
    payload: Buffer,
    *,
    codec: int,
    flags: int,
    record_count: int,
    offset_span: int,
    base_sequence: int,
    producer_id: int,
    producer_epoch: int,
    uncompressed_length: int,
    first_timestamp_us: int,
    max_timestamp_us: int,
) -> bytes:
    """Bytes 28 to 79: the producer's checksum and fields, for the columns in `payload`."""
    body = _BODY.pack(
        BATCH_FORMAT,
        codec,
        flags,
        record_count,
        offset_span,
        base_sequence,
        producer_id,
        producer_epoch,
        uncompressed_length,
        first_timestamp_us,
        max_timestamp_us,
    )
    return _PREFIX_CRC.pack(crc32c(payload, crc32c(body))) + body


def unpack_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`, with nothing checked but that its bytes are there."""
    if position < 0 or len(buffer) - position < HEADER_BYTES:
        raise DamagedBatch(
            f"a batch header takes {HEADER_BYTES} bytes, {len(buffer) - position} are there"
        )
    return BatchHeader._make(_HEADER.unpack_from(buffer, position))


def check_prefix(buffer: Buffer, position: int = 0) -> None:
    """Refuse a stored header whose first 28 bytes changed."""
    if (
        crc32c(buffer[position : position + 24])
        != _PREFIX_CRC.unpack_from(buffer, position + 24)[0]
    ):
        raise DamagedBatch(f"the header at byte {position} fails its checksum")


def hop(buffer: Buffer, position: int) -> Hop:
    """The stored batch at `position`, as far as stepping over it needs; its prefix is checked.

    The span is the producer's field, guarded by the payload checksum alone; who steps by it holds
    it against the base offset of the next batch or the segment's end.
    """
    if len(buffer) - position < HEADER_BYTES:
        raise DamagedBatch(f"no whole header at byte {position}")
    base, append_time, length, epoch, crc, _, span = _HOP.unpack_from(buffer, position)
    if crc32c(buffer[position : position + 24]) != crc or length < HEADER_BYTES:
        raise DamagedBatch(f"the header at byte {position} fails its checksum")
    return Hop(base, append_time, length, epoch, base + span)


def base_offset_at(buffer: Buffer, position: int) -> int:
    """The base offset of the stored batch at `position`; nothing is checked."""
    offset: int = _OFFSET.unpack_from(buffer, position)[0]
    return offset


def count_records(buffer: Buffer) -> int:
    """The records of stored batches back to back, by their headers; nothing is checked.

    A damaged length may give a wrong number, but no endless loop.
    """
    records = position = 0
    while len(buffer) - position >= HEADER_BYTES:
        length, count = _COUNT.unpack_from(buffer, position)
        records += count
        position += max(length, HEADER_BYTES)
    return records


def check_header(header: BatchHeader, length: int, *, max_bytes: int = MAX_BATCH_BYTES) -> None:
    """Refuse a header that contradicts itself or passes a limit; `length` is the true size."""
    if length > max_bytes:
        raise BatchTooLarge(f"a batch of {length} bytes, {max_bytes} are allowed")
    if header.format != BATCH_FORMAT:
        raise UnsupportedVersion(f"batch format {header.format}, this side knows {BATCH_FORMAT}")
    if header.codec > CODEC_LZ4:
        raise UnsupportedCodec(f"codec {header.codec}")
    if header.flags & ~KNOWN_FLAGS:
        raise UnsupportedVersion(f"batch flags {header.flags:#06x}")
    # Compaction may empty a batch that must stay, so that the segment's last offset is still known.
    fewest = 0 if header.is_compacted else 1
    if not fewest <= header.record_count <= MAX_BATCH_RECORDS:
        raise BadBatch(
            f"record_count {header.record_count}, {fewest} to {MAX_BATCH_RECORDS} are allowed"
        )
    if header.offset_span == 0:
        raise BadBatch("offset_span 0: a batch takes at least one offset")
    if header.offset_span < header.record_count or (
        header.offset_span > header.record_count and not header.is_compacted
    ):
        raise BadBatch(f"offset_span {header.offset_span} for {header.record_count} records")
    if header.uncompressed_length > MAX_UNCOMPRESSED_BYTES:
        raise BatchTooLarge(
            f"columns of {header.uncompressed_length} bytes, {MAX_UNCOMPRESSED_BYTES} are allowed"
        )
    if header.codec == CODEC_NONE and header.uncompressed_length != length - HEADER_BYTES:
        raise BadBatch(
            f"uncompressed_length {header.uncompressed_length}, "
            f"{length - HEADER_BYTES} bytes follow"
        )
    if header.producer_id < NO_PRODUCER_ID:
        raise BadBatch(f"producer_id {header.producer_id}")
    if header.max_timestamp_us < header.first_timestamp_us:
        raise BadBatch(
            f"timestamps from {header.first_timestamp_us} to {header.max_timestamp_us} µs"
        )


def check_payload(batch: Buffer, header: BatchHeader) -> None:
    """Refuse a batch (exactly these bytes) whose payload changed since the producer sent it."""
    if crc32c(memoryview(batch)[32:]) != header.crc32c:
        raise DamagedBatch(f"the batch at offset {header.base_offset} fails its checksum")


def check_produced(batch: Buffer, *, max_bytes: int = MAX_BATCH_BYTES) -> BatchHeader:
    """What the broker checks of a batch from a producer; the columns stay unread."""
    header = unpack_header(batch)
    check_header(header, len(batch), max_bytes=max_bytes)
    if header.is_compacted:
        raise BadBatch("a producer sent a compacted batch")
    check_payload(batch, header)
    return header


def check_stored(buffer: Buffer, position: int = 0) -> BatchHeader:
    """All that can be checked of the stored batch at `position` without unpacking its columns."""
    header = unpack_header(buffer, position)
    check_prefix(buffer, position)
    if not HEADER_BYTES <= header.length <= len(buffer) - position:
        raise DamagedBatch(
            f"the batch at byte {position} is {header.length} bytes long, "
            f"{len(buffer) - position} are there"
        )
    check_header(header, header.length)
    check_payload(memoryview(buffer)[position : position + header.length], header)
    return header


def split_batches(buffer: Buffer) -> Iterator[memoryview]:
    """Stored batches back to back, one by one; the last may not be cut short."""
    view = memoryview(buffer)
    position = 0
    while position < len(view):
        length = hop(view, position).length
        if length > len(view) - position:
            raise DamagedBatch(f"the batch at byte {position} is cut short")
        yield view[position : position + length]
        position += length
