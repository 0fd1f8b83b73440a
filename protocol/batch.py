"""A batch: records in, the bytes that travel and are stored; and back.

    encode_batch      columns  -> a batch for the broker, 28 zero bytes in front
    encode_records    records  -> the same
    encode_compacted  a stored batch without some of its records -> a stored batch
    decode_batch      a stored batch -> Columns

The header is drawn in header.py, what follows it in columns.py. Promises: what is encoded decodes
to the same records; what cannot be a sound batch is refused with a SeglogError, in both directions,
and too much of anything before memory is spent on it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from operator import lt
from typing import Final, Protocol, TypedDict, Unpack

from .columns import (
    Cell,
    Headers,
    RawColumns,
    SumLengths,
    bad_cell,
    cells,
    decode_columns,
    encode_columns,
    encode_headers,
    sum_lengths,
)
from .compression import MAX_RATIO, compress, decompress
from .constants import (
    CODEC_NONE,
    FLAG_COMPACTED,
    HEADER_BYTES,
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    MAX_OFFSET,
    MAX_UNCOMPRESSED_BYTES,
    NO_PRODUCER_ID,
    PREFIX_BYTES,
)
from .errors import BadBatch, BatchTooLarge, DamagedBatch, UnsupportedCodec
from .header import (
    BatchHeader,
    Buffer,
    check_header,
    check_stored,
    pack_body,
    pack_prefix,
    unpack_header,
)
from .records import Columns

_NO_HEADER: Final = bytes(HEADER_BYTES)
_LAYOUT_BYTES: Final = 1 + 2 * 5 + 3 * 11  # array and bin headers, if every column is there


class RecordLike(Protocol):
    """What `encode_records` takes: a Record, or anything with these attributes."""

    @property
    def timestamp_us(self) -> int: ...
    @property
    def key(self) -> Cell: ...
    @property
    def value(self) -> Cell: ...
    @property
    def headers(self) -> Headers: ...


class EncodeOptions(TypedDict, total=False):
    """The keyword arguments of `encode_batch`."""

    codec: int
    level: int | None
    producer_id: int
    producer_epoch: int
    base_sequence: int
    max_bytes: int


class HeaderFields(TypedDict):
    """The header fields that do not follow from the columns."""

    flags: int
    record_count: int
    offset_span: int
    base_sequence: int
    producer_id: int
    producer_epoch: int
    first_timestamp_us: int
    max_timestamp_us: int


def encode_batch(
    values: Sequence[Cell],
    keys: Sequence[Cell] | None = None,
    timestamps: int | Sequence[int] | None = None,
    headers: Sequence[Headers | None] | None = None,
    *,
    codec: int = CODEC_NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = 0,
    base_sequence: int = 0,
    max_bytes: int = MAX_BATCH_BYTES,
) -> bytearray:
    """A batch for the broker.

    `timestamps` are microseconds, one for all records or one each. They must be given: the clock is
    the caller's. Columns that do not get smaller by `codec` are stored without it.
    """
    count = len(values)
    _check_count(count)
    _check_lengths(count, keys=keys, headers=headers)
    packed, first, latest = _pack_timestamps(timestamps, count)
    header_column = None if headers is None else encode_headers(headers)
    fields = HeaderFields(
        flags=0,
        record_count=count,
        offset_span=count,
        base_sequence=base_sequence,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        first_timestamp_us=first,
        max_timestamp_us=latest,
    )
    return _assemble(fields, values, keys, header_column, packed, None, codec, level, max_bytes)


def encode_records(records: Iterable[RecordLike], **options: Unpack[EncodeOptions]) -> bytearray:
    """A batch of these records; their offsets, topic and partition, if any, are not kept."""
    records = list(records)
    return encode_batch(
        [record.value for record in records],
        [record.key for record in records],
        [record.timestamp_us for record in records],
        [record.headers for record in records],
        **options,
    )


def encode_compacted(
    columns: Columns, keep: Sequence[int], *, level: int | None = None
) -> bytearray:
    """The stored batch `columns`, whole, with only the records at the positions `keep` (rising).

    Everything that others rely on stays: base offset, span, append time, log epoch, producer and
    sequence, and each record's offset. With nothing to keep, an empty batch still holds the place
    of its offsets. BatchTooLarge where the offsets column makes a batch pass a limit that it just
    met before: keep that batch as it is.
    """
    header, raw = columns.header, columns.raw
    count = len(keep)
    if len(columns) != header.record_count:
        raise BadBatch("a window on a batch cannot be compacted, only the whole")
    if not all(map(lt, keep, keep[1:])) or (keep and not 0 <= keep[0] <= keep[-1] < len(columns)):
        raise BadBatch(f"positions to keep must rise, within 0 to {len(columns) - 1}")
    base, offsets, times = header.base_offset, columns.offsets, columns.timestamps
    deltas = struct.pack(f"<{count}I", *[offsets[position] - base for position in keep])
    kept_times: int | list[int] = [times[position] for position in keep]
    if not keep:
        kept_times = header.first_timestamp_us
    packed, first, latest = _pack_timestamps(kept_times, count)
    fields = HeaderFields(
        flags=header.flags | FLAG_COMPACTED,
        record_count=count,
        offset_span=header.offset_span,
        base_sequence=header.base_sequence,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        first_timestamp_us=first,
        max_timestamp_us=latest,
    )
    keys, values = columns.keys, columns.values
    # As bytes, undecoded: what the producer put there is its readers' affair.
    header_column = cells(raw.headers, header.record_count)
    batch = _assemble(
        fields,
        [values[position] for position in keep],
        [keys[position] for position in keep],
        [header_column[position] for position in keep],
        packed,
        deltas,
        header.codec,
        level,
        MAX_BATCH_BYTES,
    )
    batch[:PREFIX_BYTES] = pack_prefix(base, header.append_time_us, len(batch), header.log_epoch)
    return batch


def decode_batch(
    batch: Buffer,
    *,
    verify: bool = True,
    topic: str = "",
    partition: int = 0,
    sum_lengths: SumLengths = sum_lengths,
) -> Columns:
    """The records of a stored batch, which is exactly these bytes; they must not change after.

    Without `verify` no checksum is made, for a batch that has been checked before (`check_stored`,
    or `check_produced` for one that was not stored yet); everything else is checked all the same.
    """
    if verify:
        header = check_stored(batch)
    else:
        header = unpack_header(batch)
        check_header(header, len(batch))
    # A batch that was not stored yet has no length of its own.
    if header.length != len(batch) and (verify or header.length):
        raise DamagedBatch(f"a batch of {header.length} bytes in a buffer of {len(batch)}")
    if header.next_offset > MAX_OFFSET:
        raise BadBatch(f"base_offset {header.base_offset}")
    data = decompress(header.codec, memoryview(batch)[HEADER_BYTES:], header.uncompressed_length)
    raw = decode_columns(data, header.record_count, header.offset_span, sum_lengths)
    _check_agreement(header, raw)
    return Columns(header, raw, topic, partition)


def encoded_size_estimate(record_count: int, cell_bytes: int) -> int:
    """The most that a batch takes uncompressed.

    `cell_bytes` counts keys and values, and of a record that has headers 5 bytes, and 11 with the
    name and the value for each.
    """
    return HEADER_BYTES + _LAYOUT_BYTES + record_count * (8 + 3 * 4) + cell_bytes


def _check_count(count: int) -> None:
    if count > MAX_BATCH_RECORDS:
        raise BatchTooLarge(f"{count} records, {MAX_BATCH_RECORDS} are allowed")
    if not count:
        raise BadBatch("a batch needs at least one record")


def _check_lengths(count: int, **columns: Sequence[object] | None) -> None:
    for name, column in columns.items():
        if column is not None and len(column) != count:
            raise BadBatch(f"{len(column)} {name} for {count} values")


def _check_agreement(header: BatchHeader, raw: RawColumns) -> None:
    """Refuse columns that tell another story than their header."""
    if header.is_compacted != (raw.deltas is not None):
        raise BadBatch(f"flags {header.flags:#06x} and the offsets column do not agree")
    first = header.first_timestamp_us
    if raw.timestamps is None:
        if header.max_timestamp_us != first:
            raise BadBatch("two timestamps in the header, no timestamps column")
    elif header.record_count and struct.unpack_from("<q", raw.timestamps)[0] != first:
        raise BadBatch("the first timestamp is not the header's")


def _pack_timestamps(
    timestamps: int | Sequence[int] | None, count: int
) -> tuple[bytes | None, int, int]:
    """The column, the first timestamp and the latest."""
    if isinstance(timestamps, int):
        return None, timestamps, timestamps
    if timestamps is None:
        raise BadBatch("no timestamps: give one for all records, or one each")
    _check_lengths(count, timestamps=timestamps)
    try:
        packed = struct.pack(f"<{count}q", *timestamps)
    except struct.error as error:
        raise BadBatch(f"timestamps: {error}") from None
    first, latest = timestamps[0], max(timestamps)
    if first == latest == min(timestamps):
        return None, first, latest
    return packed, first, latest


def _assemble(
    fields: HeaderFields,
    values: Sequence[Cell],
    keys: Sequence[Cell] | None,
    headers: Sequence[Cell] | None,
    timestamps: bytes | None,
    deltas: bytes | None,
    codec: int,
    level: int | None,
    max_bytes: int,
) -> bytearray:
    limit = columns_limit(codec, max_bytes)
    parts, size = encode_columns(values, keys, headers, timestamps, deltas, max_bytes=limit)
    try:
        return seal_batch(fields, parts, size, codec, level, max_bytes)
    except (TypeError, BufferError) as error:
        raise _bad_column(values, keys, error) from None


def columns_limit(codec: int, max_bytes: int) -> int:
    """The most bytes of columns, uncompressed, in a batch of `max_bytes`."""
    if codec not in MAX_RATIO:
        raise UnsupportedCodec(f"codec {codec}")
    return max_bytes - HEADER_BYTES if codec == CODEC_NONE else MAX_UNCOMPRESSED_BYTES


def seal_batch(
    fields: HeaderFields,
    parts: Iterable[Buffer],
    size: int,
    codec: int,
    level: int | None,
    max_bytes: int,
) -> bytearray:
    """A batch of columns in parts that are `size` bytes together; TypeError where they are not."""
    # One join, with room in front for the header: each cell is copied once, and a batch is one
    # allocation. A bytes object would take a second copy, since its header comes last.
    batch = bytearray().join((_NO_HEADER, *parts))
    if len(batch) != HEADER_BYTES + size:
        raise TypeError("a cell changed its length")
    if codec != CODEC_NONE:
        compressed = compress(codec, memoryview(batch)[HEADER_BYTES:], level)
        if len(compressed) < size:
            batch = bytearray().join((_NO_HEADER, compressed))
        else:
            codec = CODEC_NONE
    if len(batch) > max_bytes:
        raise BatchTooLarge(f"a batch of {len(batch)} bytes, {max_bytes} are allowed")
    try:
        batch[PREFIX_BYTES:HEADER_BYTES] = pack_body(
            memoryview(batch)[HEADER_BYTES:], codec=codec, uncompressed_length=size, **fields
        )
    except struct.error as error:
        raise BadBatch(f"a header field is out of its range: {error}") from None
    return batch


def _bad_column(
    values: Sequence[object], keys: Sequence[object] | None, otherwise: object
) -> BadBatch:
    """Which cell spoiled the join."""
    found = bad_cell("values", values) or bad_cell("keys", keys or ())
    return found or BadBatch(f"columns: {otherwise}")
