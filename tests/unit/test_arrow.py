"""Arrow: the same rows as the records, in the schema that Spark checks."""

import mmap
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seglog.protocol import columns as plain
from seglog.protocol.batch import decode_batch, encode_batch, encode_compacted
from seglog.protocol.columns import decode_columns
from seglog.protocol.constants import CODECS
from seglog.protocol.errors import BadBatch
from seglog.protocol.header import pack_prefix
from seglog.protocol.records import Columns

pa = pytest.importorskip("pyarrow")

ROOT = Path(__file__).resolve().parents[2]
NOW_US = 1_700_000_000_000_000


def decoded(values, keys=None, timestamps=NOW_US, headers=None, base_offset=1_000, **options):
    batch = encode_batch(values, keys, timestamps, headers, **options)
    prefix = pack_prefix(base_offset, NOW_US, len(batch), 0)
    return decode_batch(prefix + bytes(batch[28:]), topic="orders", partition=3)


def rows_of_records(columns):
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp_us,
            "timestampType": 0,
            "headers": [{"key": k, "value": v} for k, v in record.headers] or None,
        }
        for record in columns.records()
    ]


def rows_of_arrow(columns):
    table = columns.to_arrow(include_headers=True)
    table.validate(full=True)
    # As numbers: dates beyond the year 9999 are no Python datetimes.
    position = table.schema.get_field_index("timestamp")
    times = table.column(position).cast(pa.int64())
    return table.set_column(position, "timestamp", times).to_pylist()


CASES = {
    "plain": ([b"a", b"bb", b""],),
    "keys": ([b"a", b"bb", b""], [b"k", b"", b"long key"]),
    "null keys": ([b"a", b"bb", b"c"], [None, b"k", None]),
    "tombstones": ([None, b"v", None], [b"k", b"k", b"k"]),
    "all null": ([None, None, None],),
    "one length": ([b"aa", b"bb", b"cc"], [b"", b"", b""]),
    "one length, then none": ([b"aa", b"bb", None], [b"k", b"l", b""]),
    "times": ([b"a"] * 3, None, [NOW_US, -5, 2**62]),
    "headers": ([b"a"] * 3, None, 0, [(("x", b"1"), ("x", None)), None, (("ü", b""),)]),
    "more than a byte of nulls": ([None if i % 3 else b"%d" % i for i in range(1_003)],),
}


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_arrow_rows_are_the_records(case, codec):
    columns = decoded(*case, codec=codec)
    assert rows_of_arrow(columns) == rows_of_records(columns)


def test_compacted_offsets_keep_their_gaps():
    whole = decoded([b"%d" % i for i in range(20)])
    columns = decode_batch(encode_compacted(whole, [2, 3, 11, 19]), topic="t")
    assert columns.to_arrow().column("offset").to_pylist() == [1_002, 1_003, 1_011, 1_019]
    assert rows_of_arrow(columns) == rows_of_records(columns)


def test_a_window_is_the_same_rows():
    columns = decoded([b"%d" % i if i % 2 else None for i in range(40)]).between(1_005, 1_030)
    assert len(columns.to_arrow()) == 25
    assert rows_of_arrow(columns) == rows_of_records(columns)
    assert len(columns.window(3, 3).to_arrow()) == 0


def test_the_largest_offsets_and_times_fit():
    columns = decoded([b"v"], None, 2**63 - 1, base_offset=2**63 - 2)
    assert rows_of_arrow(columns) == rows_of_records(columns)


def test_the_schema_is_that_of_sparks_kafka_source():
    columns = decoded([b"v"])
    expected = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
        ]
    )
    assert columns.to_arrow().schema == expected
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    with_headers = columns.to_arrow(include_headers=True).schema
    assert with_headers == expected.append(pa.field("headers", pa.list_(pair)))


def test_rows_outlive_the_columns_and_the_batch():
    table = decoded([b"value %d" % i for i in range(100)]).to_arrow()
    assert table.column("value").to_pylist()[99] == b"value 99"


def test_nothing_loads_pyarrow_until_arrow_is_asked_for():
    code = "import sys, seglog.protocol.batch; sys.exit('pyarrow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("gap", [0, 7], ids=["next to each other", "with a gap between"])
def test_several_batches_joined_are_the_rows_of_each(gap):
    from seglog.protocol.arrow import join_record_batch

    parts: list[Columns] = []
    base = 1_000
    cases: list[Any] = [*CASES.values(), *CASES.values()]
    for case in cases:
        parts.append(decoded_at(base, *case))
        base = parts[-1].next_offset + gap
    parts.append(compacted(base))
    for some in (parts, parts[:1], parts[3:5]):
        joined = join_record_batch(
            [(part.header, part.raw) for part in some], "orders", 3, include_headers=True
        )
        joined.validate(full=True)
        apart = [part.to_arrow(include_headers=True) for part in some]
        assert joined.equals(pa.concat_batches(apart))
    plain = join_record_batch([(part.header, part.raw) for part in parts], "orders", 3)
    assert plain.equals(pa.concat_batches([part.to_arrow() for part in parts]))


def decoded_at(base_offset, values, keys=None, timestamps=NOW_US, headers=None):
    return decoded(values, keys, timestamps, headers, base_offset)


def compacted(base_offset):
    whole = decoded([b"a", b"b", b"c"], [b"k", b"l", b"m"], base_offset=base_offset)
    return decode_batch(bytes(encode_compacted(whole, [0, 2])), topic="orders", partition=3)


@pytest.mark.parametrize("count", [1, 2, 1023, 1024, 1025, 65_536, 65_537])
def test_columns_that_are_kept_and_cut_are_as_long_as_the_batch(count):
    # Asked for more, then for fewer, then for more again: each finds what was kept before it.
    for size in (count, max(1, count // 2), count):
        found = decoded([b"v"] * size, base_offset=7).to_arrow()
        found.validate(full=True)
        assert found.num_rows == size
        assert found.column("offset").to_pylist() == list(range(7, 7 + size))
        assert set(found.column("topic").to_pylist()) == {"orders"}
        assert set(found.column("partition").to_pylist()) == {3}
        assert set(found.column("timestampType").to_pylist()) == {0}


def test_cells_of_one_length_that_are_too_many_to_keep_have_their_own_ends():
    values = [b"%09d" % number for number in range(65_537)]
    found = decoded(values).to_arrow()
    found.validate(full=True)
    assert found.column("value").to_pylist() == values


def test_cells_of_one_length_that_would_pass_int32_if_rounded_up_fit():
    # 1025 rows are kept as 2048, and 2048 of these would end beyond what Arrow can count.
    from seglog.protocol.arrow import _binary

    width = (1 << 31) // 2048
    lengths = memoryview(struct.pack("<1025i", *[width] * 1025))
    data = memoryview(mmap.mmap(-1, 1025 * width))  # zeros that take no memory
    found = _binary(plain.BinaryColumn(lengths, data, False, width), 1025)
    found.validate(full=True)
    assert pa.compute.binary_length(found).to_pylist() == [width] * 1025


LENGTH = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(LENGTH | st.integers(-2, 2), min_size=1, max_size=40))
@example([2**31 - 1] * 3)
@example([-1] * 9)
@example([5, -1, -1, 0])
def test_lengths_are_summed_the_same_with_and_without_arrow(lengths):
    from seglog.protocol.arrow import sum_lengths

    packed = struct.pack(f"<{len(lengths)}i", *lengths)
    found, expected = sum_lengths(packed, len(lengths)), plain.sum_lengths(packed, len(lengths))
    assert found.total == expected.total
    assert min(found.lowest, 0) == min(expected.lowest, 0)


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ([1, 2], "lengths of 3"),
        ([1, 0], "lengths of 1"),
        ([3, -1], "lengths of 3"),
        ([4, -2], "length of -2"),
        ([2**31 - 1, -(2**31) + 3], "length of -214"),
        # 2 more than 2 ** 32: what a sum of 32 bits would take for 2.
        ([2**31 - 1, 2**31 - 1, 4], "4294967298"),
        ([2**31 - 1, 2**31 - 1], "4294967294"),
    ],
)
def test_lengths_that_do_not_add_up_never_become_arrow(lengths, said):
    import msgpack

    from seglog.protocol.arrow import sum_lengths

    count = len(lengths)
    packed = struct.pack(f"<{count}i", *lengths)
    columns = msgpack.packb([None, None, [packed, b"ab"], None, None])
    with pytest.raises(BadBatch, match=said):
        decode_columns(columns, count, count, sum_lengths)
