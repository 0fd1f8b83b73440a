"""Codecs of the columns: none, zstd, lz4. Bounded by what the header says, before and during.

    codec  bytes after the header
    none   the columns
    zstd   one frame that states its content size; no dictionary, nothing after it
    lz4    one raw block, without a size in front

Promises: `decompress` returns exactly `uncompressed_length` bytes or raises a BadBatch; it
allocates nothing for a length that so few bytes cannot hold, whatever the header or the frame
claims; every function may be called from any number of threads at once.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeVar

import lz4.block
import zstandard

from .constants import CODEC_LZ4, CODEC_NONE, CODEC_ZSTD, MAX_UNCOMPRESSED_BYTES
from .errors import BadBatch, BadConfig, BatchTooLarge, UnsupportedCodec

Buffer = bytes | bytearray | memoryview

ZSTD_DEFAULT_LEVEL: Final = 3
ZSTD_MAX_LEVEL: Final = 22
LZ4_MAX_LEVEL: Final = 12

# The most one compressed byte can become. A run in lz4 grows by 255 bytes for each length byte; the
# densest block of zstd is 4 bytes (3 of header, 1 repeated) for 128 KiB.
MAX_RATIO: Final = {CODEC_NONE: 1, CODEC_ZSTD: 128 * 1024 // 4, CODEC_LZ4: 255}

# A context of zstandard must not be used by two threads at once, and costs 7 to 20 times a small
# call to make. So a call takes one out of the pool and puts it back: deque's pop and append are
# atomic, and what is taken is nobody else's. More threads than this make their own.
_POOL_SIZE: Final = 16
_compressors: dict[int, deque[zstandard.ZstdCompressor]] = {
    level: deque(maxlen=_POOL_SIZE) for level in range(1, ZSTD_MAX_LEVEL + 1)
}
_decompressors: deque[zstandard.ZstdDecompressor] = deque(maxlen=_POOL_SIZE)

T = TypeVar("T")


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` compressed; `level` is the codec's own (zstd 1–22, lz4 1–12), None its default."""
    if codec == CODEC_ZSTD:
        return _compress_zstd(data, ZSTD_DEFAULT_LEVEL if level is None else level)
    if codec == CODEC_LZ4:
        return _compress_lz4(data, level)
    if codec == CODEC_NONE:
        return bytes(data)
    raise UnsupportedCodec(f"codec {codec}")


def decompress(codec: int, data: Buffer, uncompressed_length: int) -> Buffer:
    """The `uncompressed_length` bytes in `data`; for codec none, `data` itself, uncopied."""
    if codec not in MAX_RATIO:
        raise UnsupportedCodec(f"codec {codec}")
    if uncompressed_length > MAX_UNCOMPRESSED_BYTES:
        raise BatchTooLarge(
            f"columns of {uncompressed_length} bytes, {MAX_UNCOMPRESSED_BYTES} are allowed"
        )
    if not 0 <= uncompressed_length <= len(data) * MAX_RATIO[codec]:
        raise BadBatch(f"{len(data)} compressed bytes cannot hold {uncompressed_length}")
    if codec == CODEC_ZSTD:
        columns: Buffer = _decompress_zstd(data, uncompressed_length)
    elif codec == CODEC_LZ4:
        columns = _decompress_lz4(data, uncompressed_length)
    else:
        columns = data
    if len(columns) != uncompressed_length:
        raise BadBatch(f"{len(columns)} bytes of columns, the header says {uncompressed_length}")
    return columns


def _take(pool: deque[T]) -> T | None:
    try:
        return pool.pop()
    except IndexError:
        return None


def _compress_zstd(data: Buffer, level: int) -> bytes:
    pool = _compressors.get(level)
    if pool is None:
        raise BadConfig(f"zstd level {level}, 1 to {ZSTD_MAX_LEVEL} are allowed")
    compressor = _take(pool) or zstandard.ZstdCompressor(level=level, write_content_size=True)
    compressed = compressor.compress(data)
    pool.append(compressor)
    return compressed


def _decompress_zstd(data: Buffer, uncompressed_length: int) -> bytes:
    decompressor = _take(_decompressors) or zstandard.ZstdDecompressor(
        max_window_size=MAX_UNCOMPRESSED_BYTES
    )
    try:
        # zstandard allocates what the frame claims, so the claim is held against the header first.
        # A frame without one is refused: its size would be known only by unpacking it.
        claimed = zstandard.get_frame_parameters(data).content_size
        if claimed != uncompressed_length:
            raise BadBatch(
                f"the zstd frame holds {claimed} bytes, the header says {uncompressed_length}"
            )
        columns = decompressor.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadBatch(f"zstd: {error}") from None
    # Not put back after an error: a fresh one is cheap where batches are bad.
    _decompressors.append(decompressor)
    return columns


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    if level is None:
        return bytes(lz4.block.compress(data, store_size=False))
    if not 1 <= level <= LZ4_MAX_LEVEL:
        raise BadConfig(f"lz4 level {level}, 1 to {LZ4_MAX_LEVEL} are allowed")
    return bytes(
        lz4.block.compress(data, store_size=False, mode="high_compression", compression=level)
    )


def _decompress_lz4(data: Buffer, uncompressed_length: int) -> bytes:
    try:
        # The block ends where the data ends, so bytes after it are an error of lz4's own.
        return bytes(lz4.block.decompress(data, uncompressed_size=uncompressed_length))
    except lz4.block.LZ4BlockError as error:
        raise BadBatch(f"lz4: {error}") from None
