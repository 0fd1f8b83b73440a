"""A batch as an Arrow RecordBatch, with the columns of Spark's Kafka source.

    key binary, value binary, topic string, partition int32, offset int64,
    timestamp timestamp[us, UTC], timestampType int32 (0: the producer's clock)
    [, headers list<struct<key string, value binary>>; null where a record has none]

The only file that needs pyarrow; nothing imports it before someone asks for Arrow. No Python runs
per record, except for headers: a running sum of the lengths is Arrow's own Binary layout, and the
data is used where it lies. numpy is not needed.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from .columns import BinaryColumn, RawColumns, header_cells
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
_ZERO_INT32: Final = pa.scalar(0, pa.int32())
_ZERO_BYTES: Final = bytes(4)


def to_record_batch(
    header: BatchHeader,
    raw: RawColumns,
    topic: str,
    partition: int,
    *,
    include_headers: bool = False,
) -> pa.RecordBatch:
    """All records of a batch; keys and values stay where they are, in the batch's own bytes."""
    count = header.record_count
    columns = [
        _binary(raw.keys, count),
        _binary(raw.values, count),
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        _offsets(header, raw),
        _timestamps(header, raw),
        pa.repeat(pa.scalar(CREATE_TIME, pa.int32()), count),
    ]
    if not include_headers:
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    columns.append(_headers(raw.headers, count))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA_WITH_HEADERS)


def _binary(column: BinaryColumn | None, count: int) -> pa.Array:
    if column is None:
        return pa.nulls(count, pa.binary())
    # The 0 in front makes a running sum of n lengths into the n + 1 offsets that Arrow wants. The
    # copy it costs also aligns the numbers, which the batch does not.
    lengths = _numbers(pa.int32(), _ZERO_BYTES + column.lengths, count + 1)
    validity = None
    if column.has_nulls:
        # A boolean array's bits are what a validity bitmap is.
        validity = pc.greater_equal(lengths[1:], _ZERO_INT32).buffers()[1]
        lengths = pc.max_element_wise(lengths, _ZERO_INT32)
    ends = pc.cumulative_sum(lengths).buffers()[1]
    return pa.Array.from_buffers(
        pa.binary(), count, [validity, ends, pa.py_buffer(column.data)], -1 if validity else 0
    )


def _offsets(header: BatchHeader, raw: RawColumns) -> pa.Array:
    if raw.deltas is None:
        ones = pa.repeat(_ONE_INT64, header.record_count)
        return pc.cumulative_sum(ones, start=pa.scalar(header.base_offset - 1, pa.int64()))
    deltas = pa.array(raw.deltas, pa.int64())
    return pc.add(deltas, pa.scalar(header.base_offset, pa.int64()))


def _timestamps(header: BatchHeader, raw: RawColumns) -> pa.Array:
    type_ = pa.timestamp("us", tz="UTC")
    if raw.timestamps is None:
        return pa.repeat(pa.scalar(header.first_timestamp_us, type_), header.record_count)
    return _numbers(type_, bytes(raw.timestamps), header.record_count)


def _headers(column: BinaryColumn | None, count: int) -> pa.Array:
    if column is None:
        return pa.nulls(count, _HEADERS_TYPE)
    return pa.array([pairs or None for pairs in header_cells(column, count)], _HEADERS_TYPE)


def _numbers(type_: pa.DataType, data: bytes, count: int) -> pa.Array:
    return pa.Array.from_buffers(type_, count, [None, pa.py_buffer(data)], 0)
