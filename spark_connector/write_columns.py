"""From Arrow columns to the columns of a batch, with no Python run per record.

Arrow keeps n + 1 offsets and the cells back to back, a batch keeps n lengths (-1: null) and the
cells back to back. So the lengths are made by Arrow's compute functions, and all else is a slice of
what is there. Headers are the exception: their cells are made one by one, where a row has any.

    RowColumns       the rows of one Arrow batch; any range of them can be measured, and taken
    PendingRows      ranges that go to one partition, until they are enough for a batch
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ..protocol.column_batch import CellPieces, TimePieces, encode_column_batch
from ..protocol.constants import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from ..protocol.errors import BadBatch

#: What a record takes beside its cells: a timestamp and three lengths.
RECORD_BYTES: Final = 8 + 3 * 4
#: What a batch takes beside its records, at most.
BATCH_BYTES: Final = 128

_NULL_LENGTH: Final = b"\xff\xff\xff\xff"
_MINUS_ONE: Final = pa.scalar(-1, pa.int32())
_ZERO: Final = pa.scalar(0, pa.int32())
_encode_headers: Final = msgspec.msgpack.Encoder().encode


class BinaryView(NamedTuple):
    """A binary column as a batch keeps it; `ends[i]` is where cell i ends in `data`."""

    lengths: memoryview  # as bytes
    ends: memoryview  # int32
    data: memoryview

    def end(self, row: int) -> int:
        """How many bytes the cells before `row` take."""
        return int(self.ends[row - 1]) if row else 0


def binary_view(column: pa.Array) -> BinaryView | None:
    """A binary or string column, also a slice of one; None where every cell is null."""
    if column.null_count == len(column):
        return None
    if pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.binary() if pa.types.is_large_binary(column.type) else pa.string())
    lengths = pc.fill_null(pc.binary_length(column), _MINUS_ONE)
    ends = pc.cumulative_sum(pc.max_element_wise(lengths, _ZERO))
    if column.null_count:
        column = column.drop_null()  # Arrow allows bytes behind a null
    _, offsets, data = column.buffers()
    if data is None:
        cells = memoryview(b"")
    else:
        bounds = memoryview(offsets).cast("B").cast("i")
        first, last = bounds[column.offset], bounds[column.offset + len(column)]
        cells = memoryview(data)[first:last]
    return BinaryView(_numbers(lengths, 4), _numbers(ends, 4).cast("i"), cells)


def header_cells(column: pa.Array) -> pa.Array:
    """`array<struct<key, value>>` as a column of cells; no headers, or a null, is a null cell."""
    cells: list[bytes | None] = []
    for row, headers in enumerate(column.to_pylist()):
        if not headers:
            cells.append(None)
            continue
        pairs = []
        for header in headers:
            name, value = _pair(row, header)
            pairs.append((name, value.encode() if isinstance(value, str) else value))
        cells.append(_encode_headers(pairs))
    return pa.array(cells, pa.binary())


def _pair(row: int, header: dict[str, Any] | None) -> tuple[str, bytes | str | None]:
    if header is None or header["key"] is None:
        raise BadBatch(f"headers of row {row}: a header needs a key; filter the null ones out")
    return header["key"], header["value"]


def _numbers(column: pa.Array, width: int) -> memoryview:
    """The values of a column of numbers without nulls, as bytes."""
    values = memoryview(column.buffers()[1]).cast("B")
    return values[width * column.offset : width * (column.offset + len(column))]


class RowColumns:
    """Rows of one Arrow batch, in the order in which they go to their partitions."""

    def __init__(
        self,
        value: pa.Array,
        key: pa.Array | None,
        headers: pa.Array | None,
        timestamp: pa.Array | None,
        now_us: int,
    ) -> None:
        self.values = binary_view(value)
        self.keys = None if key is None else binary_view(key)
        self.headers = None if headers is None else binary_view(header_cells(headers))
        self._now_us = now_us
        self._times: pa.Array | None = None
        if timestamp is not None and timestamp.null_count < len(timestamp):
            times = timestamp.cast(pa.timestamp("us", timestamp.type.tz)).cast(pa.int64())
            self._times = pc.fill_null(times, pa.scalar(now_us, pa.int64()))

    def size(self, start: int, stop: int) -> int:
        """The most that these rows take in a batch."""
        size = RECORD_BYTES * (stop - start)
        for column in (self.keys, self.values, self.headers):
            if column is not None:
                size += column.end(stop) - column.end(start)
        return size

    def fitting(self, start: int, stop: int, room: int) -> int:
        """Where to stop so that rows from `start` on take at most `room`; maybe `start` itself."""
        ends = range(start + 1, stop + 1)
        return start + bisect_right(ends, room, key=lambda end: self.size(start, end))

    def times(self, start: int, stop: int) -> TimePieces:
        if self._times is None:
            return TimePieces((), self._now_us, self._now_us)
        times = self._times.slice(start, stop - start)
        bounds = pc.min_max(times)
        earliest, latest = bounds["min"].as_py(), bounds["max"].as_py()
        if earliest == latest:
            return TimePieces((), latest, latest)
        return TimePieces([_numbers(times, 8)], times[0].as_py(), latest)


class _Range(NamedTuple):
    rows: RowColumns
    start: int
    stop: int


class PendingRows:
    """Rows that go to one partition and are not yet a batch."""

    def __init__(self) -> None:
        self._ranges: list[_Range] = []
        self.record_count = 0
        self.size_bytes = BATCH_BYTES

    def add(self, rows: RowColumns, start: int, stop: int) -> None:
        self._ranges.append(_Range(rows, start, stop))
        self.record_count += stop - start
        self.size_bytes += rows.size(start, stop)

    def take(self, rows: RowColumns, start: int, stop: int, batch_bytes: int) -> int:
        """Add what fits, at least one row to an empty batch; returns where the rest begins."""
        room = batch_bytes - self.size_bytes
        end = rows.fitting(start, min(stop, start + MAX_BATCH_RECORDS - self.record_count), room)
        if end == start and not self.record_count:
            end = start + 1  # larger than a batch should be: alone, and for the broker to judge
        if end > start:
            self.add(rows, start, end)
        return end

    def encode(
        self, *, codec: int = 0, level: int | None = None, max_bytes: int = MAX_BATCH_BYTES
    ) -> bytearray:
        """The batch."""
        return encode_column_batch(
            self.record_count,
            self._cells("values"),
            self._cells("keys"),
            self._cells("headers"),
            self._times(),
            codec=codec,
            level=level,
            max_bytes=max_bytes,
        )

    def _cells(self, name: str) -> CellPieces | None:
        columns: list[BinaryView | None] = [getattr(each.rows, name) for each in self._ranges]
        if not any(columns):
            return None
        lengths: list[bytes | memoryview] = []
        data: list[bytes | memoryview] = []
        for column, (_, start, stop) in zip(columns, self._ranges, strict=True):
            if column is None:
                lengths.append(_NULL_LENGTH * (stop - start))
            else:
                lengths.append(column.lengths[4 * start : 4 * stop])
                data.append(column.data[column.end(start) : column.end(stop)])
        return CellPieces(lengths, data)

    def _times(self) -> TimePieces:
        times = [rows.times(start, stop) for rows, start, stop in self._ranges]
        first, latest = times[0].first_us, max(each.latest_us for each in times)
        if not any(each.pieces for each in times) and {each.first_us for each in times} == {first}:
            return TimePieces((), first, first)
        pieces: list[Any] = []
        for each, (_, start, stop) in zip(times, self._ranges, strict=True):
            pieces += each.pieces or [
                each.first_us.to_bytes(8, "little", signed=True) * (stop - start)
            ]
        return TimePieces(pieces, first, latest)


def record_batch_pieces(batch: pa.RecordBatch, max_bytes: int) -> Sequence[pa.RecordBatch]:
    """The batch in slices of at most about `max_bytes`, or of one row."""
    if batch.num_rows <= 1 or batch.nbytes <= max_bytes:
        return [batch] if batch.num_rows else []
    middle = batch.num_rows // 2
    return [
        *record_batch_pieces(batch.slice(0, middle), max_bytes),
        *record_batch_pieces(batch.slice(middle), max_bytes),
    ]
