"""Codecs: what goes in comes out, and a lying length costs no memory."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import lz4.block
import pytest
import zstandard

from seglog.protocol import compression, errors
from seglog.protocol.compression import compress, decompress
from seglog.protocol.constants import (
    CODEC_LZ4,
    CODEC_NONE,
    CODEC_ZSTD,
    CODECS,
    MAX_UNCOMPRESSED_BYTES,
    MIB,
)

DATA = b"".join(b"record %d of many, " % i for i in range(1_000))
SMALL_BYTES = MIB  # what refusing a lie may take at most; the lies below claim 64 times as much


def refused_within(codec: int, data: bytes, length: int, peak_bytes: int) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(errors.BadBatch):
            decompress(codec, data, length)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= peak_bytes


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_what_is_compressed_comes_back(codec, wrap):
    packed = compress(codec, wrap(DATA))
    assert bytes(decompress(codec, wrap(packed), len(DATA))) == DATA


@pytest.mark.parametrize(
    ("codec", "level"), [(CODEC_ZSTD, 1), (CODEC_ZSTD, 19), (CODEC_LZ4, 1), (CODEC_LZ4, 12)]
)
def test_levels_are_the_codecs_own(codec, level):
    assert decompress(codec, compress(codec, DATA, level), len(DATA)) == DATA


@pytest.mark.parametrize(
    ("codec", "level"), [(CODEC_ZSTD, 0), (CODEC_ZSTD, 23), (CODEC_LZ4, 0), (CODEC_LZ4, 13)]
)
def test_a_level_out_of_range_is_refused(codec, level):
    with pytest.raises(errors.BadConfig):
        compress(codec, DATA, level)


def test_an_unknown_codec_is_refused():
    with pytest.raises(errors.UnsupportedCodec):
        compress(3, DATA)
    with pytest.raises(errors.UnsupportedCodec):
        decompress(3, DATA, len(DATA))


@pytest.mark.parametrize("off_by", [-len(DATA), -1, 1, 1_000])
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_exactly_the_stated_length_is_required(codec, off_by):
    with pytest.raises(errors.BadBatch):
        decompress(codec, compress(codec, DATA), len(DATA) + off_by)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_bytes_after_the_compressed_data_are_refused(codec):
    with pytest.raises(errors.BadBatch):
        decompress(codec, compress(codec, DATA) + b"\0", len(DATA))


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_compressed_data_cut_at_any_byte_is_refused(codec):
    packed = compress(codec, DATA[:300])

    def accepted(cut: int) -> bool:
        try:
            decompress(codec, packed[:cut], 300)
        except errors.BadBatch:
            return False
        return True

    assert [cut for cut in range(len(packed)) if accepted(cut)] == []


def test_a_zstd_frame_that_does_not_state_its_size_is_refused():
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(DATA)
    with pytest.raises(errors.BadBatch):
        decompress(CODEC_ZSTD, frame, len(DATA))


def test_two_zstd_frames_are_refused():
    frame = compress(CODEC_ZSTD, DATA)
    with pytest.raises(errors.BadBatch):
        decompress(CODEC_ZSTD, frame * 2, len(DATA))


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_length_over_the_limit_allocates_nothing(codec):
    packed = compress(codec, bytes(MIB))
    refused_within(codec, packed, MAX_UNCOMPRESSED_BYTES + 1, SMALL_BYTES)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_tiny_batch_that_claims_the_limit_allocates_nothing(codec):
    refused_within(codec, compress(codec, b"tiny" * 50), MAX_UNCOMPRESSED_BYTES, SMALL_BYTES)


def test_a_tiny_zstd_frame_that_claims_the_limit_itself_allocates_nothing():
    frame = bytearray(compress(CODEC_ZSTD, b"tiny" * 50))
    # 4 bytes of magic; then a single segment with its content size in 4 bytes, and no checksum.
    assert zstandard.get_frame_parameters(bytes(frame)).content_size == 200
    lying = bytes(frame[:4]) + b"\xa0" + MAX_UNCOMPRESSED_BYTES.to_bytes(4, "little") + frame[6:]
    assert zstandard.get_frame_parameters(lying).content_size == MAX_UNCOMPRESSED_BYTES
    refused_within(CODEC_ZSTD, lying, MAX_UNCOMPRESSED_BYTES, SMALL_BYTES)


def test_a_zstd_bomb_is_not_unpacked():
    bomb = zstandard.ZstdCompressor().compress(bytes(2 * MAX_UNCOMPRESSED_BYTES))
    assert len(bomb) < 64 * 1024
    refused_within(CODEC_ZSTD, bomb, 1_000, SMALL_BYTES)
    refused_within(CODEC_ZSTD, bomb, 2 * MAX_UNCOMPRESSED_BYTES, SMALL_BYTES)


def test_an_lz4_bomb_is_unpacked_no_further_than_stated():
    bomb = lz4.block.compress(bytes(MAX_UNCOMPRESSED_BYTES), store_size=False)
    refused_within(CODEC_LZ4, bomb, 1_000, SMALL_BYTES)


def test_the_densest_data_of_each_codec_is_within_its_ratio():
    zeros = bytes(MAX_UNCOMPRESSED_BYTES)
    for codec in (CODEC_NONE, CODEC_ZSTD, CODEC_LZ4):
        packed = compress(codec, zeros)
        assert len(decompress(codec, packed, len(zeros))) == len(zeros)


def test_threads_share_the_codecs_safely():
    blocks = [bytes([i]) * 50_000 + DATA for i in range(64)]

    def round_trip(block: bytes) -> bool:
        packed = compress(CODEC_ZSTD, block)
        return all(decompress(CODEC_ZSTD, packed, len(block)) == block for _ in range(5))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(round_trip, blocks))
    kept = sum(map(len, compression._compressors.values())) + len(compression._decompressors)
    assert kept <= 23 * compression._POOL_SIZE
