"""Columns of many records, cut into batches with no Python code run per record.

group_by_partition   keys decide: the one place that must look at each record
cut                  a column set into chunks of about `batch_bytes`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from ..protocol.columns import Headers
from ..protocol.constants import MAX_BATCH_RECORDS
from ..protocol.errors import BadBatch
from .batches import EMPTY_BATCH_BYTES, RECORD_BYTES, record_size
from .cells import Data, HeadersLike, Timestamp, to_cells, to_headers, to_microseconds
from .partitioner import Partitioner


class Chunk(NamedTuple):
    """Records as columns of one length."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    headers: list[Headers | None] | None
    timestamps: int | list[int] | None

    @property
    def size_bytes(self) -> int:
        """The most that these records add to a batch."""
        count = len(self.values)
        size = RECORD_BYTES * count + _cells_size(self.values)
        if self.keys is not None:
            size += _cells_size(self.keys)
        if self.headers is not None:
            size += sum(record_size(None, None, each) for each in self.headers if each)
        return size

    def slice(self, start: int, stop: int) -> Chunk:
        times = self.timestamps
        return Chunk(
            self.values[start:stop],
            None if self.keys is None else self.keys[start:stop],
            None if self.headers is None else self.headers[start:stop],
            times[start:stop] if isinstance(times, list) else times,
        )


def to_chunk(
    values: Sequence[Data | None],
    keys: Sequence[Data | None] | None,
    headers: Sequence[HeadersLike | None] | None,
    timestamps: Timestamp | Sequence[Timestamp] | None,
) -> Chunk:
    """What an application hands in, checked and converted."""
    count = len(values)
    for name, column in (("keys", keys), ("headers", headers), ("timestamps", timestamps)):
        if isinstance(column, Sequence) and len(column) != count:
            raise BadBatch(f"{len(column)} {name} for {count} values")
    return Chunk(
        to_cells("values", values),
        None if keys is None else to_cells("keys", keys),
        None if headers is None else [to_headers(h) if h else None for h in headers],
        [to_microseconds(time) for time in timestamps]
        if isinstance(timestamps, Sequence)
        else None
        if timestamps is None
        else to_microseconds(timestamps),
    )


def cut(chunk: Chunk, batch_bytes: int) -> Iterator[tuple[Chunk, int]]:
    """Pieces that fit into a batch, each with its size; halved until they do.

    Cut evenly by count at first: where records are about the same size, once is enough. A record
    that is too large by itself stays alone.
    """
    room = batch_bytes - EMPTY_BATCH_BYTES
    size = chunk.size_bytes
    count = len(chunk.values)
    if (size <= room and count <= MAX_BATCH_RECORDS) or count == 1:
        yield chunk, size
        return
    pieces = max(2, -(-size // room), -(-count // MAX_BATCH_RECORDS))
    step = max(1, -(-count // pieces))
    for start in range(0, count, step):
        yield from cut(chunk.slice(start, start + step), batch_bytes)


def group_by_partition(
    chunk: Chunk, partition_count: int, partitioner: Partitioner
) -> list[tuple[int | None, Chunk]]:
    """The records of each partition, in their order; None has those without a key."""
    keys = chunk.keys
    if keys is None:
        return [(None, chunk)]
    numbers = [None if key is None else partitioner(key, partition_count) for key in keys]
    found = dict.fromkeys(numbers)
    if len(found) == 1:
        return [(numbers[0], chunk)]
    places: dict[int | None, list[int]] = {number: [] for number in found}
    for index, number in enumerate(numbers):
        places[number].append(index)
    return [(number, _pick(chunk, indexes)) for number, indexes in places.items()]


def _pick(chunk: Chunk, indexes: list[int]) -> Chunk:
    times = chunk.timestamps
    return Chunk(
        list(map(chunk.values.__getitem__, indexes)),
        None if chunk.keys is None else list(map(chunk.keys.__getitem__, indexes)),
        None if chunk.headers is None else list(map(chunk.headers.__getitem__, indexes)),
        list(map(times.__getitem__, indexes)) if isinstance(times, list) else times,
    )


def _cells_size(cells: Sequence[bytes | None]) -> int:
    try:
        return sum(map(len, cells))  # type: ignore[arg-type]  # None has no len: tried first
    except TypeError:
        return len(b"".join(chain(filter(None, cells))))
