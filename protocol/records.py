"""What a reader gets: records one by one, or a whole batch as columns.

    Record   one record, with its place in the log
    Columns  the records of one batch (or a window of them); a column is cut into cells when it is
             first asked for, so that who reads only values never pays for keys

Columns made by `decode_batch` hold views into the batch: its bytes must stay as they are for as
long as the Columns live. The lists they hand out are shared: do not change them.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, TypeVar

import msgspec

from .columns import Headers, RawColumns, cells, header_cells
from .header import BatchHeader
from .times import to_datetime

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")


# Frozen costs nothing at construction. A record cannot be part of a cycle, and being out of the
# garbage collector's sight makes it a fifth cheaper to create, and nothing to keep.
class Record(msgspec.Struct, frozen=True, gc=False):
    """One record. Times are microseconds since the epoch, UTC."""

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()

    @property
    def timestamp(self) -> datetime:
        """`timestamp_us` as an aware datetime; OverflowError beyond the years 1 to 9999."""
        return to_datetime(self.timestamp_us)

    @property
    def is_tombstone(self) -> bool:
        """True where the record says that its key is deleted."""
        return self.value is None and self.key is not None


class _Cells:
    """The columns of a whole batch, each cut once, for all windows on it."""

    def __init__(self, header: BatchHeader, raw: RawColumns) -> None:
        self.header = header
        self.raw = raw

    @cached_property
    def offsets(self) -> Sequence[int]:
        base = self.header.base_offset
        if self.raw.deltas is None:
            return range(base, base + self.header.record_count)
        return [base + delta for delta in self.raw.deltas]

    @cached_property
    def timestamps(self) -> list[int]:
        count = self.header.record_count
        if self.raw.timestamps is None:
            return [self.header.first_timestamp_us] * count
        return list(struct.unpack(f"<{count}q", self.raw.timestamps))

    @cached_property
    def keys(self) -> list[bytes | None]:
        return cells(self.raw.keys, self.header.record_count)

    @cached_property
    def values(self) -> list[bytes | None]:
        return cells(self.raw.values, self.header.record_count)

    @cached_property
    def headers(self) -> list[Headers]:
        return header_cells(self.raw.headers, self.header.record_count)


class Columns:
    """Records of one batch as columns of equal length; what is shared is said above."""

    __slots__ = ("_cells", "_start", "_stop", "header", "partition", "raw", "topic")

    def __init__(
        self, header: BatchHeader, raw: RawColumns, topic: str = "", partition: int = 0
    ) -> None:
        self.header = header
        self.raw = raw  # of the whole batch, also in a window
        self.topic = topic
        self.partition = partition
        self._cells = _Cells(header, raw)
        self._start = 0
        self._stop = header.record_count

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())

    def __repr__(self) -> str:
        return (
            f"<Columns of {len(self)} records, {self.topic!r} partition {self.partition}, "
            f"batch at offset {self.base_offset}>"
        )

    @property
    def base_offset(self) -> int:
        """Of the batch; the first record's own offset is `offsets[0]`."""
        return self.header.base_offset

    @property
    def next_offset(self) -> int:
        """Where to read on: past these records, and past what compaction took after them."""
        if self._stop == self.header.record_count:
            return self.header.next_offset
        return self._cells.offsets[self._stop]

    @property
    def offsets(self) -> Sequence[int]:
        """A range, or a list where compaction left gaps."""
        return self._cut(self._cells.offsets)

    @property
    def timestamps(self) -> Sequence[int]:
        return self._cut(self._cells.timestamps)

    @property
    def keys(self) -> Sequence[bytes | None]:
        return self._cut(self._cells.keys)

    @property
    def values(self) -> Sequence[bytes | None]:
        return self._cut(self._cells.values)

    @property
    def headers(self) -> Sequence[Headers]:
        """Raises BadBatch if a cell is not the msgpack that it should be."""
        return self._cut(self._cells.headers)

    def records(self) -> list[Record]:
        return list(
            map(
                Record,
                repeat(self.topic),
                repeat(self.partition),
                self.offsets,
                self.timestamps,
                self.keys,
                self.values,
                self.headers,
            )
        )

    def window(self, start: int, stop: int) -> Columns:
        """The records at positions `start` up to `stop`, counted and cut as a slice does."""
        positions = range(self._start, self._stop)[start:stop]
        window = object.__new__(Columns)
        window.header, window.raw = self.header, self.raw
        window.topic, window.partition = self.topic, self.partition
        window._cells = self._cells
        window._start, window._stop = positions.start, max(positions.start, positions.stop)
        return window

    def between(self, first_offset: int, end_offset: int) -> Columns:
        """The records with first_offset ≤ offset < end_offset."""
        offsets = self.offsets
        return self.window(bisect_left(offsets, first_offset), bisect_left(offsets, end_offset))

    def to_arrow(self, *, include_headers: bool = False) -> pyarrow.RecordBatch:
        """An Arrow RecordBatch with the columns of Spark's Kafka source; needs pyarrow."""
        # Here, so that pyarrow is loaded only by those who use it.
        from .arrow import to_record_batch  # noqa: PLC0415

        whole = to_record_batch(
            self.header, self.raw, self.topic, self.partition, include_headers=include_headers
        )
        return whole.slice(self._start, len(self))

    def _cut(self, column: Sequence[T]) -> Sequence[T]:
        return column if len(self) == len(column) else column[self._start : self._stop]
