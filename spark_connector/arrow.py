"""Stored batches into the RecordBatches that Spark takes, and the schema it is told.

Spark is quickest with some ten thousand rows at a time, producers send what they have: so small
batches are put together, and very large ones are cut. A range that begins or ends within a batch
gets the part it asks for. No Python runs for a single record, but for headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from ..protocol.batch import decode_batch
from ..protocol.constants import MIB
from ..protocol.header import split_batches
from .offsets import Span

#: Rows of a RecordBatch: no fewer, as long as there are more; and never more.
MIN_ROWS: Final = 10_000
MAX_ROWS: Final = 50_000
#: … but no more than this, where values are large.
ENOUGH_BYTES: Final = 8 * MIB

_COLUMNS: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
    " timestampType int"
)
_HEADERS: Final = ", headers array<struct<key: string, value: binary>>"


def spark_schema(*, include_headers: bool) -> str:
    """The columns of Spark's Kafka source."""
    return _COLUMNS + _HEADERS if include_headers else _COLUMNS


def record_batches(
    chunks: Iterable[memoryview],
    span: Span,
    *,
    include_headers: bool,
    not_before_us: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of a span. `chunks` are whole stored batches, back to back.

    Batches in which every record is older than `not_before_us` are passed over.
    """
    parts: list[pa.RecordBatch] = []
    rows = size = 0
    for chunk in chunks:
        for batch in split_batches(chunk):
            columns = decode_batch(batch, topic=span.name.topic, partition=span.name.partition)
            if not_before_us is not None and columns.header.max_timestamp_us < not_before_us:
                continue
            is_whole = (
                columns.base_offset >= span.first_offset and columns.next_offset <= span.end_offset
            )
            if not is_whole:
                columns = columns.between(span.first_offset, span.end_offset)
            if not len(columns):
                continue
            part = columns.to_arrow(include_headers=include_headers)
            parts.append(part)
            rows += part.num_rows
            size += len(batch)
            if rows >= MIN_ROWS or size >= ENOUGH_BYTES:
                yield from _cut(parts)
                parts, rows, size = [], 0, 0
    if parts:
        yield from _cut(parts)


def _cut(parts: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    whole = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
    for start in range(0, whole.num_rows, MAX_ROWS):
        yield whole.slice(start, MAX_ROWS)
