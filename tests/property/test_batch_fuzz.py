"""Batches of any shape come back the same; bytes of any shape are decoded soundly or refused.

A lying batch is one whose checksums are right and whose content is not: what a broken or hostile
producer sends. Decoding it may raise nothing but a SeglogError, and may take no more memory than
the limits in the header allow.
"""

import struct
import tracemalloc

import msgpack
import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from seglog.protocol.batch import decode_batch, encode_batch, encode_compacted
from seglog.protocol.columns import decode_columns
from seglog.protocol.compression import compress
from seglog.protocol.constants import (
    BATCH_FORMAT,
    CODEC_LZ4,
    CODEC_NONE,
    CODEC_ZSTD,
    CODECS,
    FLAG_COMPACTED,
    MAX_BATCH_RECORDS,
    MAX_UNCOMPRESSED_BYTES,
    MIB,
    PREFIX_BYTES,
)
from seglog.protocol.errors import BadBatch, SeglogError
from seglog.protocol.header import check_stored, pack_prefix

INT64 = st.integers(-(2**63), 2**63 - 1)
CELL = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
RECORD = st.tuples(INT64, CELL, CELL, HEADERS.map(tuple))
RECORDS = st.lists(RECORD, min_size=1, max_size=30)
CODEC = st.sampled_from(sorted(CODECS.values()))
NOW_US = 1_700_000_000_000_000


def store(batch, base_offset=0) -> bytes:
    return pack_prefix(base_offset, NOW_US, len(batch), 0) + bytes(batch[PREFIX_BYTES:])


def encode(records, codec, one_time=False) -> bytearray:
    times, keys, values, headers = map(list, zip(*records, strict=True))
    return encode_batch(values, keys, times[0] if one_time else times, headers, codec=codec)


def lying(columns: bytes, count: int, *, codec=CODEC_NONE, payload=None, **changes) -> bytes:
    """A stored batch with these columns under valid checksums, whatever they say."""
    fields = {
        "flags": 0,
        "span": count,
        "uncompressed_length": len(columns),
        "first": NOW_US,
        "latest": NOW_US,
    } | changes
    payload = compress(codec, columns) if payload is None else payload
    body = struct.pack(
        "<BBHIIIqIIqq",
        BATCH_FORMAT,
        codec,
        fields["flags"],
        count,
        fields["span"],
        0,
        -1,
        0,
        fields["uncompressed_length"],
        fields["first"],
        fields["latest"],
    )
    crc = struct.pack("<I", crc32c(payload, crc32c(body)))
    batch = bytes(PREFIX_BYTES) + crc + body + payload
    check_stored_or_refused(store(batch))
    return store(batch)


def check_stored_or_refused(batch: bytes) -> None:
    try:
        check_stored(batch)
    except SeglogError:
        pass


def read_everything(batch: bytes) -> None:
    """Decode in every way there is."""
    columns = decode_batch(batch)
    assert len(columns.records()) == len(columns)
    columns.to_arrow(include_headers=True).validate(full=True)


def refused(batch: bytes, match: str | None = None) -> None:
    with pytest.raises(SeglogError, match=match):
        read_everything(batch)


def refused_within(batch: bytes, peak_bytes: int) -> None:
    tracemalloc.start()
    try:
        refused(batch)
        assert tracemalloc.get_traced_memory()[1] <= peak_bytes
    finally:
        tracemalloc.stop()


def ints(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


# --- honest batches ------------------------------------------------------------------------------


@given(records=RECORDS, codec=CODEC, one_time=st.booleans(), base=st.integers(0, 2**62))
def test_any_records_come_back_the_same(records, codec, one_time, base):
    columns = decode_batch(store(encode(records, codec, one_time), base))
    first = records[0][0]
    expected = [
        (base + i, first if one_time else time, key, value, headers)
        for i, (time, key, value, headers) in enumerate(records)
    ]
    found = [(r.offset, r.timestamp_us, r.key, r.value, r.headers) for r in columns.records()]
    assert found == expected


@given(records=RECORDS, codec=CODEC)
def test_arrow_and_records_agree(records, codec):
    columns = decode_batch(store(encode(records, codec), 10), topic="t", partition=1)
    table = columns.to_arrow(include_headers=True)
    table.validate(full=True)
    found = [
        (record.key, record.value, record.offset, [tuple(pair) for pair in record.headers])
        for record in columns.records()
    ]
    rows = [
        (
            row["key"],
            row["value"],
            row["offset"],
            [(pair["key"], pair["value"]) for pair in row["headers"] or ()],
        )
        for row in table.drop_columns(["timestamp"]).to_pylist()
    ]
    assert rows == found
    assert table.column("timestamp").cast("int64").to_pylist() == list(columns.timestamps)


@given(records=RECORDS, codec=CODEC, data=st.data())
def test_compaction_keeps_what_it_is_told_to(records, codec, data):
    before = decode_batch(store(encode(records, codec), 7))
    positions = st.sets(st.integers(0, len(records) - 1), min_size=1)
    for _ in range(2):
        keep = sorted(data.draw(positions))
        batch = encode_compacted(before, keep)
        after = decode_batch(batch)
        assert after.records() == [before.records()[position] for position in keep]
        assert check_stored(batch).next_offset == 7 + len(records)
        before = after
        positions = st.sets(st.integers(0, len(keep) - 1), min_size=1)


# --- any bytes at all ----------------------------------------------------------------------------


@given(st.binary(max_size=300))
def test_random_bytes_are_no_batch(data):
    for verify in (True, False):
        with pytest.raises(SeglogError):
            decode_batch(data, verify=verify)


def read_or_refuse(batch: bytes) -> None:
    try:
        read_everything(batch)
    except SeglogError:
        pass


@given(st.binary(max_size=300), st.integers(0, 40), CODEC)
@example(b"\x91" * 200, 1, CODEC_NONE)
@example(b"\x95\xdd\xff\xff\xff\xff", 1, CODEC_NONE)
@example(b"\xdd\xff\xff\xff\xff", 1, CODEC_NONE)
@example(b"\x95\xc6\xff\xff\xff\xff", 1, CODEC_NONE)
@example(b"\x95" + b"\xc0" * 5, 40, CODEC_ZSTD)
def test_random_columns_are_sound_or_refused(columns, count, codec):
    read_or_refuse(lying(columns, count, codec=codec))


@given(st.binary(max_size=300), st.integers(0, 100_000), st.sampled_from([CODEC_ZSTD, CODEC_LZ4]))
def test_random_compressed_bytes_are_refused(payload, length, codec):
    read_or_refuse(lying(b"", 1, codec=codec, payload=payload, uncompressed_length=length))


@given(RECORDS, st.data())
def test_mutated_columns_are_sound_or_refused(records, data):
    columns = bytearray(encode(records, CODEC_NONE)[80:])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(columns) - 1))
        columns[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        if not columns:
            break
    count = data.draw(st.sampled_from([len(records), len(records) + 1, 1]))
    flags, first = data.draw(st.sampled_from([0, FLAG_COMPACTED])), records[0][0]
    latest = max(record[0] for record in records)
    read_or_refuse(lying(bytes(columns), count, flags=flags, first=first, latest=latest))


SCALAR = st.none() | st.binary(max_size=12) | st.integers(-(2**31), 2**31) | st.text(max_size=3)
TREE = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=5), max_leaves=12)


@given(st.lists(TREE, min_size=4, max_size=6), st.integers(1, 3))
def test_msgpack_of_another_shape_is_sound_or_refused(tree, count):
    read_or_refuse(lying(msgpack.packb(tree), count))


# --- lies, one by one ----------------------------------------------------------------------------

LENGTHS = [ints(1, 1), b"ab"]
LIES = {
    "no columns": ([], "length 5"),
    "four columns": ([None, None, LENGTHS, None], "length 5"),
    "six columns": ([None, None, LENGTHS, None, None, None], "length 5"),
    "a map": ({0: None}, "array"),
    "timestamps are text": (["now", None, LENGTHS, None, None], "str"),
    "too few timestamps": ([bytes(8), None, LENGTHS, None, None], "timestamps: 8 bytes"),
    "too many timestamps": ([bytes(24), None, LENGTHS, None, None], "timestamps: 24 bytes"),
    "a first timestamp of its own": ([bytes(16), None, LENGTHS, None, None], "first timestamp"),
    "keys without data": ([None, [ints(1, 1)], LENGTHS, None, None], "length 2"),
    "keys are bytes": ([None, b"ab", LENGTHS, None, None], "bytes"),
    "too few lengths": ([None, None, [ints(2), b"ab"], None, None], "lengths of values"),
    "too many lengths": ([None, None, [ints(1, 1, 0), b"ab"], None, None], "lengths of values"),
    "half a length": ([None, None, [ints(1, 1)[:7], b"ab"], None, None], "lengths of values"),
    "lengths over the data": (
        [None, None, [ints(1, 2), b"ab"], None, None],
        "values: lengths of 3",
    ),
    "lengths under the data": ([None, None, [ints(1, 0), b"ab"], None, None], "lengths of 1"),
    "a huge length": ([None, None, [ints(2**31 - 1, 1), b"ab"], None, None], "2147483648"),
    "huge lengths": ([None, None, [ints(2**31 - 1, 2**31 - 1), b""], None, None], "4294967294"),
    "a length of -2": ([None, None, [ints(4, -2), b"ab"], None, None], "length of -2"),
    "lengths that cancel": (
        [None, None, [ints(2**31 - 1, -(2**31) + 3), b"ab"], None, None],
        "-214",
    ),
    "a null that counts": ([None, None, [ints(3, -1), b"ab"], None, None], "lengths of 3"),
    "headers are no msgpack": ([None, None, None, LENGTHS, None], "headers"),
    "a header value is text": (
        [None, None, None, [ints(6, -1), b"\x91\x92\xa1a\xa1b"], None],
        "str",
    ),
    "a header name is not UTF-8": (
        [None, None, None, [ints(5, -1), b"\x91\x92\xa1\xff\xc0"], None],
        "utf-8",
    ),
    "a huge count of headers": (
        [None, None, None, [ints(5, -1), b"\xdd\xff\xff\xff\xff"], None],
        "truncated",
    ),
    "headers that nest": (
        [None, None, None, [ints(90_000, -1), b"\x91" * 90_000], None],
        "length 2",
    ),
    "offsets uncalled for": ([None, None, LENGTHS, None, ints(0, 1)], "do not agree"),
}


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_lie_in_the_columns_is_refused_by_name(lie, codec):
    columns, said = lie
    refused_within(lying(msgpack.packb(columns), 2, codec=codec), MIB)
    refused(lying(msgpack.packb(columns), 2, codec=codec), said)


@pytest.mark.parametrize(
    "offsets",
    [None, ints(0), ints(1, 0), ints(1, 1), ints(0, 5), ints(0, -1), ints(0, 1, 2)],
    ids=repr,
)
def test_offsets_that_do_not_rise_within_the_span_are_refused(offsets):
    columns = msgpack.packb([None, None, LENGTHS, None, offsets])
    refused(lying(columns, 2, flags=FLAG_COMPACTED, span=5), "offset")


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_bytes_after_the_columns_are_refused(codec):
    columns = msgpack.packb([None, None, LENGTHS, None, None])
    read_everything(lying(columns, 2, codec=codec))
    refused(lying(columns + b"\xc0", 2, codec=codec), "trailing")


def test_columns_cut_at_any_byte_are_refused():
    columns = bytes(encode_batch([b"a", None], [b"k", b"k"], [NOW_US, 5], [(("h", b""),), ()])[80:])
    decode_columns(columns, 2, 2)

    def accepted(cut: int) -> bool:
        try:
            decode_columns(columns[:cut], 2, 2)
        except BadBatch:
            return False
        return True

    assert [cut for cut in range(len(columns)) if accepted(cut)] == []


def test_two_times_in_the_header_need_a_column():
    columns = msgpack.packb([None, None, LENGTHS, None, None])
    refused(lying(columns, 2, latest=NOW_US + 1), "no timestamps column")


@pytest.mark.parametrize("codec", [CODEC_ZSTD, CODEC_LZ4])
@pytest.mark.parametrize("length", [0, 1, 10**6, MAX_UNCOMPRESSED_BYTES, 2**32 - 1])
def test_a_lie_about_the_uncompressed_length_takes_no_memory(codec, length):
    columns = msgpack.packb([None, None, LENGTHS, None, None])
    refused_within(lying(columns, 2, codec=codec, uncompressed_length=length), MIB)


@pytest.mark.parametrize("codec", [CODEC_ZSTD, CODEC_LZ4])
def test_a_bomb_is_unpacked_no_further_than_its_header_says(codec):
    bomb = compress(codec, bytes(MAX_UNCOMPRESSED_BYTES))
    refused_within(lying(b"", 2, codec=codec, payload=bomb, uncompressed_length=1_000), MIB)


@pytest.mark.parametrize("codec", [CODEC_ZSTD, CODEC_LZ4])
def test_a_bomb_that_is_true_to_its_header_takes_no_more_than_the_limit(codec):
    bomb = compress(codec, bytes(MAX_UNCOMPRESSED_BYTES))
    batch = lying(b"", 2, codec=codec, payload=bomb, uncompressed_length=MAX_UNCOMPRESSED_BYTES)
    # lz4 unpacks into a buffer of its own before it makes the bytes object.
    refused_within(batch, 2 * MAX_UNCOMPRESSED_BYTES + MIB)


def test_a_tiny_batch_of_a_million_nulls_is_cut_only_when_asked_for():
    batch = lying(msgpack.packb([None] * 5), MAX_BATCH_RECORDS)
    tracemalloc.start()
    try:
        columns = decode_batch(batch)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()
    assert columns.values.count(None) == MAX_BATCH_RECORDS
