"""Stored batches into the RecordBatches that Spark takes, and the schema it is told.

Spark is quickest with some ten thousand rows at a time, producers send what they have: so small
batches are put together, and very large ones are cut. A range that begins or ends within a batch
gets the part it asks for. No Python runs for a single record, but for headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from ..protocol.arrow import join_record_batch, sum_lengths
from ..protocol.batch import decode_batch
from ..protocol.columns import RawColumns
from ..protocol.constants import MIB
from ..protocol.header import BatchHeader, split_batches
from ..protocol.records import Columns
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
    gathered = _Gathered(span, include_headers)
    for chunk in chunks:
        for batch in split_batches(chunk):
            columns = decode_batch(
                batch,
                topic=span.name.topic,
                partition=span.name.partition,
                sum_lengths=sum_lengths,
            )
            if not_before_us is not None and columns.header.max_timestamp_us < not_before_us:
                continue
            if columns.base_offset < span.first_offset or columns.next_offset > span.end_offset:
                yield from gathered.take()
                part = columns.between(span.first_offset, span.end_offset)
                yield from _cut(part.to_arrow(include_headers=include_headers))
            elif gathered.add(columns):
                yield from gathered.take()
    yield from gathered.take()


class _Gathered:
    """Whole batches that become one RecordBatch."""

    def __init__(self, span: Span, include_headers: bool) -> None:
        self._span = span
        self._include_headers = include_headers
        self._parts: list[tuple[BatchHeader, RawColumns]] = []
        self._rows = 0
        self._bytes = 0

    def add(self, columns: Columns) -> bool:
        """Whether it is enough."""
        self._parts.append((columns.header, columns.raw))
        self._rows += columns.header.record_count
        self._bytes += columns.header.uncompressed_length
        return self._rows >= MIN_ROWS or self._bytes >= ENOUGH_BYTES

    def take(self) -> Iterator[pa.RecordBatch]:
        parts, self._parts = self._parts, []
        self._rows = self._bytes = 0
        if parts:
            yield from _cut(
                join_record_batch(parts, *self._span.name, include_headers=self._include_headers)
            )


def _cut(whole: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, whole.num_rows, MAX_ROWS):
        yield whole.slice(start, MAX_ROWS)
