"""A batch from columns that already lie in memory as the format wants them: [lengths, data].

`encode_batch` takes a Python object for each cell. Who has columns, from Arrow for example, hands
over their bytes in pieces, and no Python runs per record: the pieces are joined once. The caller
vouches for the columns: lengths are little-endian int32 (-1: null) and add up to the data. Only
their sizes are looked at here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from .batch import HeaderFields, columns_limit, seal_batch
from .columns import Buffer, bin_header
from .constants import CODEC_NONE, MAX_BATCH_BYTES, MAX_BATCH_RECORDS, NO_PRODUCER_ID
from .errors import BadBatch, BatchTooLarge

_NIL: Final = b"\xc0"
_ARRAY_OF_FIVE: Final = b"\x95"
_ARRAY_OF_TWO: Final = b"\x92"


class CellPieces(NamedTuple):
    """A binary column in pieces: all lengths back to back, then all cells."""

    lengths: Sequence[Buffer]
    data: Sequence[Buffer]


class TimePieces(NamedTuple):
    """The timestamps in pieces of int64; `pieces` empty where all are `first_us`."""

    pieces: Sequence[Buffer]
    first_us: int
    latest_us: int


def encode_column_batch(
    record_count: int,
    values: CellPieces | None,
    keys: CellPieces | None,
    headers: CellPieces | None,
    times: TimePieces,
    *,
    codec: int = CODEC_NONE,
    level: int | None = None,
    max_bytes: int = MAX_BATCH_BYTES,
) -> bytearray:
    """A batch for the broker; a column that is None is all null."""
    if not 0 < record_count <= MAX_BATCH_RECORDS:
        raise BatchTooLarge(f"{record_count} records, 1 to {MAX_BATCH_RECORDS} are allowed")
    parts: list[Buffer] = [_ARRAY_OF_FIVE]
    if times.pieces:
        parts += _bin(times.pieces, 8 * record_count, "timestamps")
    else:
        parts.append(_NIL)
    for name, column in (("keys", keys), ("values", values), ("headers", headers)):
        if column is None:
            parts.append(_NIL)
            continue
        parts.append(_ARRAY_OF_TWO)
        parts += _bin(column.lengths, 4 * record_count, f"lengths of {name}")
        parts += _bin(column.data, sum(map(len, column.data)), name)
    parts.append(_NIL)
    size = sum(map(len, parts))
    limit = columns_limit(codec, max_bytes)
    if size > limit:
        raise BatchTooLarge(f"columns of {size} bytes, {limit} are allowed")
    fields = HeaderFields(
        flags=0,
        record_count=record_count,
        offset_span=record_count,
        base_sequence=0,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=0,
        first_timestamp_us=times.first_us,
        max_timestamp_us=times.latest_us,
    )
    return seal_batch(fields, parts, size, codec, level, max_bytes)


def _bin(pieces: Sequence[Buffer], expected_bytes: int, name: str) -> list[Buffer]:
    size = sum(map(len, pieces))
    if size != expected_bytes:
        raise BadBatch(f"{name}: {size} bytes, {expected_bytes} are expected")
    return [bin_header(size), *pieces]
