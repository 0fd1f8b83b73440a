"""The columns of a batch, between Python sequences and bytes.

    columns     [timestamps, keys, values, headers, offsets]        a msgpack array of five
    timestamps  int64 bin, one each; nil: all are first_timestamp
    keys, values, headers
                [lengths, data]: int32 bin (-1: null), then the cells back to back; nil: all null
    a header    cell is itself msgpack: [[name, value], …], name a str, value a bin or nil
    offsets     u32 bin, strictly rising deltas to base_offset; only in compacted batches

Numbers in bins are little-endian. Encoding copies each cell once, when the parts are joined.
Decoding copies nothing: bins come out as views. Promise: `decode_columns` returns columns that hold
exactly `record_count` cells inside their data, or raises a BadBatch; it trusts no count or length
before it has seen the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from io import BytesIO
from operator import lt
from typing import Final, NamedTuple, cast

import msgspec

from .errors import BadBatch, BatchTooLarge

Buffer = bytes | bytearray | memoryview
Cell = Buffer | None
#: The headers of one record, in their order; a name may come more than once.
Headers = tuple[tuple[str, bytes | None], ...]

_NIL: Final = b"\xc0"
_ARRAY_OF_FIVE: Final = b"\x95"
_ARRAY_OF_TWO: Final = b"\x92"
_BIN_HEADER: Final = struct.Struct(">BI")
_BIN32: Final = 0xC6

_Bins = tuple[memoryview, memoryview] | None
# Typed, so that msgspec refuses any other shape at its first byte: nothing nests, nothing is
# skipped, and no count is believed before the bytes are there.
_LAYOUT: Final = msgspec.msgpack.Decoder(
    tuple[memoryview | None, _Bins, _Bins, _Bins, memoryview | None]
)
_HEADERS_ENCODER: Final = msgspec.msgpack.Encoder()
_HEADERS_DECODER: Final = msgspec.msgpack.Decoder(Headers)
# UnicodeDecodeError is not a msgspec error, but is a ValueError as they are.
_MALFORMED: Final = (msgspec.MsgspecError, ValueError)


class BinaryColumn(NamedTuple):
    """A column that is not all null: its lengths add up to its data."""

    lengths: memoryview  # int32, little-endian
    data: memoryview
    has_nulls: bool
    width: int | None = None  # the length of every cell, if they are known to be of one


class RawColumns(NamedTuple):
    """Columns that were checked but not yet cut into cells; None as in the layout."""

    timestamps: memoryview | None
    keys: BinaryColumn | None
    values: BinaryColumn | None
    headers: BinaryColumn | None
    deltas: tuple[int, ...] | None


class LengthSum(NamedTuple):
    """What `decode_columns` must know of a column's lengths."""

    total: int  # without nulls
    lowest: int  # negative as soon as one is


#: From the lengths as they lie in the batch, and how many there are.
SumLengths = Callable[[bytes, int], LengthSum]


# --- encoding ------------------------------------------------------------------------------------


def encode_columns(
    values: Sequence[Cell],
    keys: Sequence[Cell] | None,
    headers: Sequence[Cell] | None,
    timestamps: bytes | None,
    deltas: bytes | None,
    *,
    max_bytes: int,
) -> tuple[list[Buffer], int]:
    """The columns as parts to be joined, and their size joined; too large is refused before that.

    Who joins them compares the length with the size: they differ if a cell's `len` is not its size
    in bytes (a memoryview of wider items).
    """
    parts: list[Buffer] = [_ARRAY_OF_FIVE]
    size = 1 + _add_bin(parts, timestamps)
    size += _add_column(parts, "keys", keys, max_bytes)
    size += _add_column(parts, "values", values, max_bytes)
    size += _add_column(parts, "headers", headers, max_bytes)
    size += _add_bin(parts, deltas)
    _check_size(size, max_bytes)
    return parts, size


def encode_headers(headers: Sequence[object]) -> list[bytes | None] | None:
    """The headers of each record as cells; None or nothing is a null cell, all null is None."""
    if not any(headers):
        return None
    return [_encode_header(index, pairs) if pairs else None for index, pairs in enumerate(headers)]


def bad_cell(name: str, cells: Sequence[object]) -> BadBatch | None:
    """The error for the first cell that is not plain bytes: which it is, and what."""
    for index, cell in enumerate(cells):
        if not isinstance(cell, Buffer | None):
            return BadBatch(f"{name}[{index}] is a {type(cell).__name__}, not bytes or None")
        if isinstance(cell, memoryview) and not (
            cell.c_contiguous and cell.itemsize == 1 and cell.ndim == 1
        ):
            return BadBatch(f"{name}[{index}] is a view of items, not of bytes: cast it to 'B'")
    return None


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise BatchTooLarge(f"columns of {size} bytes, {max_bytes} are allowed")


def _add_column(
    parts: list[Buffer], name: str, cells: Sequence[Cell] | None, max_bytes: int
) -> int:
    """Add the parts of a column; returns their size."""
    if cells is None:
        parts.append(_NIL)
        return 1
    present: Sequence[Buffer] = cast("Sequence[Buffer]", cells)
    try:
        lengths = list(map(len, present))  # the fast way, without nulls: None has no len
        data_bytes = sum(lengths)
    except TypeError:
        present = [cell for cell in cells if cell is not None]
        if not present:
            parts.append(_NIL)
            return 1
        try:
            lengths = [-1 if cell is None else len(cell) for cell in cells]
        except TypeError as error:
            raise bad_cell(name, cells) or BadBatch(f"{name}: {error}") from None
        data_bytes = sum(map(len, present))
    _check_size(data_bytes, max_bytes)  # before lengths are packed that have no room there
    count = len(lengths)
    packed = struct.pack(f"<{count}i", *lengths)
    parts += (_ARRAY_OF_TWO, bin_header(len(packed)), packed, bin_header(data_bytes))
    parts += present
    return 1 + 2 * _BIN_HEADER.size + 4 * count + data_bytes


def _add_bin(parts: list[Buffer], data: bytes | None) -> int:
    if data is None:
        parts.append(_NIL)
        return 1
    parts += (bin_header(len(data)), data)
    return _BIN_HEADER.size + len(data)


def _encode_header(index: int, pairs: object) -> bytes:
    try:
        cell = _HEADERS_ENCODER.encode(pairs)
        # Refuse here, by name, what every reader would refuse later.
        _HEADERS_DECODER.decode(cell)
    except (*_MALFORMED, TypeError, OverflowError, RecursionError) as error:
        raise BadBatch(
            f"headers[{index}] are not pairs of a str and bytes or None: {error}"
        ) from None
    return cell


def bin_header(size: int) -> bytes:
    return _BIN_HEADER.pack(_BIN32, size)


# --- decoding ------------------------------------------------------------------------------------


def sum_lengths(lengths: bytes, count: int) -> LengthSum:
    """With no library; `arrow.sum_lengths` is quicker."""
    numbers = struct.unpack(f"<{count}i", lengths)
    total = sum(numbers)
    # A negative int32 has the high bit in its last byte: isascii looks for it 8 bytes at a time.
    if lengths[3::4].isascii():
        return LengthSum(total, 0)
    return LengthSum(total + numbers.count(-1), min(numbers))


def decode_columns(
    buffer: Buffer, record_count: int, offset_span: int, sum_lengths: SumLengths = sum_lengths
) -> RawColumns:
    """The columns of `record_count` records, every count and sum checked; views into `buffer`.

    Only the inside of header cells is left for `header_cells` to check.
    """
    try:
        timestamps, keys, values, headers, deltas = _LAYOUT.decode(buffer)
    except _MALFORMED as error:
        raise BadBatch(f"columns: {error}") from None
    if timestamps is not None:
        _check_width("timestamps", timestamps, 8, record_count)
    return RawColumns(
        timestamps,
        _check_binary("keys", keys, record_count, sum_lengths),
        _check_binary("values", values, record_count, sum_lengths),
        _check_binary("headers", headers, record_count, sum_lengths),
        _check_deltas(deltas, record_count, offset_span),
    )


def cells(column: BinaryColumn | None, record_count: int) -> list[bytes | None]:
    """The column cut into cells."""
    if column is None:
        return [None] * record_count
    lengths = struct.unpack(f"<{record_count}i", column.lengths)
    read = BytesIO(column.data).read
    if column.has_nulls:
        # read(-1) would read everything.
        return [None if length < 0 else read(length) for length in lengths]
    return list(map(read, lengths))


def header_cells(column: BinaryColumn | None, record_count: int) -> list[Headers]:
    """The headers of each record; a null cell is no headers."""
    if column is None:
        return [()] * record_count
    decode = _HEADERS_DECODER.decode
    try:
        return [decode(cell) if cell is not None else () for cell in cells(column, record_count)]
    except _MALFORMED as error:
        raise BadBatch(f"headers: {error}") from None


def _check_width(name: str, numbers: memoryview, width: int, record_count: int) -> None:
    if len(numbers) != width * record_count:
        raise BadBatch(f"{name}: {len(numbers)} bytes for {record_count} records of {width}")


def _check_binary(
    name: str, bins: _Bins, record_count: int, sum_lengths: SumLengths
) -> BinaryColumn | None:
    if bins is None:
        return None
    lengths, data = bins
    _check_width(f"lengths of {name}", lengths, 4, record_count)
    packed = bytes(lengths)
    width = int.from_bytes(packed[:4], "little", signed=True)
    if width >= 0 and packed == packed[:4] * record_count:  # two passes over memory, no more
        found = LengthSum(width * record_count, width)
    else:
        found, width = sum_lengths(packed, record_count), -1
    if found.lowest < -1:
        raise BadBatch(f"{name}: a length of {found.lowest}")
    if found.total != len(data):
        raise BadBatch(f"{name}: lengths of {found.total} bytes in all, {len(data)} are there")
    return BinaryColumn(lengths, data, found.lowest < 0, width if width >= 0 else None)


def _check_deltas(
    bin_: memoryview | None, record_count: int, offset_span: int
) -> tuple[int, ...] | None:
    if bin_ is None:
        return None
    _check_width("offsets", bin_, 4, record_count)
    deltas: tuple[int, ...] = struct.unpack(f"<{record_count}I", bin_)
    if not all(map(lt, deltas, deltas[1:])):
        raise BadBatch("offsets do not rise")
    if deltas and deltas[-1] >= offset_span:
        raise BadBatch(f"an offset of {deltas[-1]} in a span of {offset_span}")
    return deltas
