"""A batch as an Arrow RecordBatch, with the columns of Spark's Kafka source.

    key binary, value binary, topic string, partition int32, offset int64,
    timestamp timestamp[us, UTC], timestampType int32 (0: the producer's clock)
    [, headers list<struct<key string, value binary>>; null where a record has none]

The only file that needs pyarrow; nothing imports it before someone asks for Arrow. No Python runs
per record, except for headers: a running sum of the lengths is Arrow's own Binary layout, and the
data is used where it lies. numpy is not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from .columns import BinaryColumn, LengthSum, RawColumns, header_cells
from .header import BatchHeader

CREATE_TIME: Final = 0

_HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)
SCHEMA_WITH_HEADERS: Final = SCHEMA.append(pa.field("headers", _HEADERS_TYPE))

# Scalars have their type named, here and below: given a plain int or str, pyarrow looks for numpy
# and pandas before it decides on one, and where they are not installed that takes 60 µs each time.
_ONE_INT64: Final = pa.scalar(1, pa.int64())
_CREATE_TIME: Final = pa.scalar(CREATE_TIME, pa.int32())
_ZERO_INT32: Final = pa.scalar(0, pa.int32())
_MINUS_ONE_INT32: Final = pa.scalar(-1, pa.int32())
_ZERO_BYTES: Final = bytes(4)
#: Columns that are the same for every batch of a partition are kept, up to this many rows, and cut:
#: who reads one partition makes them once. Who reads many makes them twice as long as needed at the
#: most. Some megabytes in all.
_KEPT_ROWS: Final = 65_536
_KEPT_COLUMNS: Final = 8
_MAX_END: Final = (1 << 31) - 1  # Arrow's int32
_NULL_LENGTH: Final = (-1).to_bytes(4, "little", signed=True)


def sum_lengths(lengths: bytes, count: int) -> LengthSum:
    """For `decode_batch`: the same as its own, with no Python object for each length."""
    numbers = _numbers(pa.int32(), lengths, count)
    lowest, total = pc.min(numbers).as_py(), pc.sum(numbers).as_py()
    if lowest < 0:
        total += pc.sum(pc.equal(numbers, _MINUS_ONE_INT32)).as_py()
    return LengthSum(total, lowest)


def to_record_batch(
    header: BatchHeader,
    raw: RawColumns,
    topic: str,
    partition: int,
    *,
    include_headers: bool = False,
) -> pa.RecordBatch:
    """All records of a batch; keys and values stay where they are, in the batch's own bytes."""
    places = (_offsets(header, raw), _timestamps(header, raw))
    return _assemble(raw, places, header.record_count, topic, partition, include_headers)


def join_record_batch(
    parts: Sequence[tuple[BatchHeader, RawColumns]],
    topic: str,
    partition: int,
    *,
    include_headers: bool = False,
) -> pa.RecordBatch:
    """All records of several batches of one partition, in order: what there is to pay for a batch
    is paid once for all of them. Their cells are copied, and must be below 2 GiB together.
    """
    if len(parts) == 1:
        return to_record_batch(*parts[0], topic, partition, include_headers=include_headers)
    counts = [header.record_count for header, _ in parts]
    raw = RawColumns(
        None,
        _joined([raw.keys for _, raw in parts], counts),
        _joined([raw.values for _, raw in parts], counts),
        _joined([raw.headers for _, raw in parts], counts) if include_headers else None,
        None,
    )
    places = (_joined_offsets(parts, sum(counts)), _joined_timestamps(parts, sum(counts)))
    return _assemble(raw, places, sum(counts), topic, partition, include_headers)


def _assemble(
    raw: RawColumns,
    places: tuple[pa.Array, pa.Array],
    count: int,
    topic: str,
    partition: int,
    include_headers: bool,
) -> pa.RecordBatch:
    offsets, timestamps = places
    topics, partitions, kinds = _constants(topic, partition, count)
    columns = [
        _binary(raw.keys, count),
        _binary(raw.values, count),
        topics,
        partitions,
        offsets,
        timestamps,
        kinds,
    ]
    if not include_headers:
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    columns.append(_headers(raw.headers, count))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA_WITH_HEADERS)


def _constants(topic: str, partition: int, count: int) -> list[pa.Array]:
    """The columns topic, partition and timestampType."""
    if count > _KEPT_ROWS:
        return _repeated(topic, partition, count)
    return [column[:count] for column in _kept(topic, partition, _at_least(count))]


def _at_least(count: int) -> int:
    """The next power of 2: as many rows are made, to be kept."""
    return 1 << (count - 1).bit_length() if count else 1


def _repeated(topic: str, partition: int, count: int) -> list[pa.Array]:
    return [
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.repeat(_CREATE_TIME, count),
    ]


_kept: Final = lru_cache(_KEPT_COLUMNS)(_repeated)


@lru_cache(_KEPT_COLUMNS)
def _multiples(width: int, rows: int) -> pa.Buffer:
    """Where each of so many cells of one width begins, and where the last one ends."""
    numbers = _from_0(rows + 1).cast(pa.int32())
    return pc.multiply(numbers, pa.scalar(width, pa.int32())).buffers()[1]


def _binary(column: BinaryColumn | None, count: int) -> pa.Array:
    if column is None:
        return pa.nulls(count, pa.binary())
    data = pa.py_buffer(column.data)
    if column.width is not None and count <= _KEPT_ROWS:
        rows = _at_least(count)
        if column.width * rows <= _MAX_END:
            ends = _multiples(column.width, rows)
            return pa.Array.from_buffers(pa.binary(), count, [None, ends, data], 0)
    # The 0 in front makes a running sum of n lengths into the n + 1 offsets that Arrow wants. The
    # copy it costs also aligns the numbers, which the batch does not.
    lengths = _numbers(pa.int32(), _ZERO_BYTES + column.lengths, count + 1)
    validity = None
    if column.has_nulls:
        # A boolean array's bits are what a validity bitmap is.
        validity = pc.greater_equal(lengths[1:], _ZERO_INT32).buffers()[1]
        lengths = pc.max_element_wise(lengths, _ZERO_INT32)
    ends = pc.cumulative_sum(lengths).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), count, [validity, ends, data], -1 if validity else 0)


def _joined(columns: Sequence[BinaryColumn | None], counts: Sequence[int]) -> BinaryColumn | None:
    """One column of several; a batch whose cells are all null has none."""
    present = [column for column in columns if column is not None]
    if not present:
        return None
    lengths = [
        _NULL_LENGTH * count if column is None else column.lengths
        for column, count in zip(columns, counts, strict=True)
    ]
    has_nulls = len(present) < len(columns) or any(column.has_nulls for column in present)
    data = b"".join([column.data for column in present])
    widths = {None if column is None else column.width for column in columns}
    width = widths.pop() if len(widths) == 1 else None
    return BinaryColumn(memoryview(b"".join(lengths)), memoryview(data), has_nulls, width)


def _joined_offsets(parts: Sequence[tuple[BatchHeader, RawColumns]], count: int) -> pa.Array:
    offset = parts[0][0].base_offset
    for header, raw in parts:
        if header.base_offset != offset or raw.deltas is not None:  # compacted
            return pa.concat_arrays([_offsets(*part) for part in parts])
        offset = header.next_offset
    return _rising(parts[0][0].base_offset, count)


def _joined_timestamps(parts: Sequence[tuple[BatchHeader, RawColumns]], count: int) -> pa.Array:
    times = b"".join([_packed_times(*part) for part in parts])
    return _numbers(pa.timestamp("us", tz="UTC"), times, count)


def _packed_times(header: BatchHeader, raw: RawColumns) -> bytes | memoryview:
    if raw.timestamps is not None:
        return raw.timestamps
    # Many times quicker than pa.repeat.
    return header.first_timestamp_us.to_bytes(8, "little", signed=True) * header.record_count


def _rising(first: int, count: int) -> pa.Array:
    numbers = _numbers_from_0()[:count] if count <= _KEPT_ROWS else _from_0(count)
    return pc.add(numbers, pa.scalar(first, pa.int64()))


@lru_cache(1)
def _numbers_from_0() -> pa.Array:
    return _from_0(_KEPT_ROWS)


def _from_0(count: int) -> pa.Array:
    ones = pa.repeat(_ONE_INT64, count)
    return pc.cumulative_sum(ones, start=pa.scalar(-1, pa.int64()))


def _offsets(header: BatchHeader, raw: RawColumns) -> pa.Array:
    if raw.deltas is None:
        return _rising(header.base_offset, header.record_count)
    deltas = pa.array(raw.deltas, pa.int64())
    return pc.add(deltas, pa.scalar(header.base_offset, pa.int64()))


def _timestamps(header: BatchHeader, raw: RawColumns) -> pa.Array:
    times = bytes(_packed_times(header, raw))  # a copy of a column is aligned
    return _numbers(pa.timestamp("us", tz="UTC"), times, header.record_count)


def _headers(column: BinaryColumn | None, count: int) -> pa.Array:
    if column is None:
        return pa.nulls(count, _HEADERS_TYPE)
    return pa.array([pairs or None for pairs in header_cells(column, count)], _HEADERS_TYPE)


def _numbers(type_: pa.DataType, data: bytes, count: int) -> pa.Array:
    return pa.Array.from_buffers(type_, count, [None, pa.py_buffer(data)], 0)
