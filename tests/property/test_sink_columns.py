"""The sink's columns, made from Arrow without a look at each row, beside an encoder that looks."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.client.partitioner import PARTITIONERS
from seglog.protocol.batch import decode_batch, encode_batch
from seglog.protocol.constants import CODECS, HEADER_BYTES
from seglog.protocol.errors import BadBatch, UnknownPartition

pa = pytest.importorskip("pyarrow")

from seglog.spark_connector.write_columns import (  # noqa: E402 - needs pyarrow
    PendingRows,
    RowColumns,
    binary_view,
    record_batch_pieces,
)
from seglog.spark_connector.write_partitions import arrange, keyed_partitions  # noqa: E402

NOW_US = 1_700_000_000_000_000
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIME_TYPE = pa.timestamp("us", tz="America/New_York")

cells = st.one_of(st.none(), st.binary(max_size=20))
headers = st.one_of(
    st.none(), st.lists(st.fixed_dictionaries({"key": st.text(max_size=5), "value": cells}))
)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "key": cells,
            "value": cells,
            "headers": headers,
            "timestamp": st.one_of(st.none(), st.integers(0, 2**50)),
        }
    ),
    min_size=1,
    max_size=30,
)
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
        ("timestamp", TIME_TYPE),
    ]
)


def arrow(found, offset=0):
    """The rows as an Arrow batch; with an offset, as a slice of a longer one."""
    filler = {"key": b"front", "value": b"front", "headers": None, "timestamp": 1}
    return pa.RecordBatch.from_pylist([filler] * offset + found, schema=SCHEMA).slice(offset)


def columns_of(batch):
    value, key, headers_, timestamp = map(batch.column, ("value", "key", "headers", "timestamp"))
    return RowColumns(value, key, headers_, timestamp, NOW_US)


def plain(found):
    """What a row-by-row encoder makes of the same rows."""
    return encode_batch(
        [row["value"] for row in found],
        [row["key"] for row in found],
        [NOW_US if row["timestamp"] is None else row["timestamp"] for row in found],
        [tuple((h["key"], h["value"]) for h in row["headers"] or ()) for row in found],
    )


def records_of(batch):
    return decode_batch(batch, verify=False).records()


@given(rows, st.integers(0, 3), st.sampled_from(sorted(CODECS)))
def test_a_batch_from_columns_is_the_batch_from_rows(found, offset, codec):
    pending = PendingRows()
    pending.add(columns_of(arrow(found, offset)), 0, len(found))
    assert records_of(pending.encode(codec=CODECS[codec])) == records_of(plain(found))
    if codec == "none":
        assert pending.encode() == plain(found)
        assert len(plain(found)) <= pending.size_bytes


@given(st.lists(st.tuples(rows, st.integers(0, 3)), min_size=1, max_size=4), st.data())
def test_ranges_of_several_arrow_batches_make_one_batch(parts, data):
    pending, expected = PendingRows(), []
    for found, offset in parts:
        start = data.draw(st.integers(0, len(found) - 1))
        stop = data.draw(st.integers(start + 1, len(found)))
        pending.add(columns_of(arrow(found, offset)), start, stop)
        expected += found[start:stop]
    assert records_of(pending.encode()) == records_of(plain(expected))


@given(rows, st.integers(1, 400))
def test_batches_are_cut_within_their_size_and_lose_no_row(found, batch_bytes):
    columns = columns_of(arrow(found))
    start, batches = 0, []
    while start < len(found):
        pending = PendingRows()
        stop = pending.take(columns, start, len(found), batch_bytes)
        assert stop > start
        assert pending.size_bytes <= batch_bytes or stop == start + 1
        batches.append(pending.encode())
        start = stop
    assert [r.value for b in batches for r in records_of(b)] == [row["value"] for row in found]


@given(st.lists(st.one_of(st.none(), st.text(max_size=8)), min_size=1))
def test_text_becomes_its_utf8_bytes(texts):
    view = binary_view(pa.array(texts, pa.string()))
    large = binary_view(pa.array(texts, pa.large_string()))
    expected = [None if text is None else text.encode() for text in texts]
    if any(text is not None for text in texts):
        assert view is not None
        assert large is not None
        assert bytes(view.data) == bytes(large.data) == b"".join(filter(None, expected))
        lengths = view.lengths.cast("i").tolist()
        assert lengths == [-1 if cell is None else len(cell) for cell in expected]
    else:
        assert view is large is None


def test_bytes_behind_a_null_are_not_sent():
    """Arrow lets a null cell have bytes: they are nobody's."""
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 3, 6, 9)))
    column = pa.Array.from_buffers(
        pa.binary(), 3, [pa.py_buffer(b"\x05"), offsets, pa.py_buffer(b"one???two")]
    )
    assert column.to_pylist() == [b"one", None, b"two"]
    view = binary_view(column)
    assert view is not None
    assert bytes(view.data) == b"onetwo"
    assert view.lengths.cast("i").tolist() == [3, -1, 3]


@given(
    st.lists(st.one_of(st.none(), st.binary(max_size=4)), min_size=1),
    st.integers(1, 50),
    st.sampled_from(sorted(PARTITIONERS)),
)
def test_a_key_goes_where_the_producer_sends_it(keys, count, name):
    partitioner = PARTITIONERS[name]
    found = keyed_partitions(pa.array(keys, pa.binary()), count, partitioner).to_pylist()
    assert found == [None if key is None else partitioner(key, count) for key in keys]


@given(st.lists(st.text(max_size=4), min_size=1), st.integers(1, 50))
def test_a_text_key_goes_where_its_utf8_bytes_go(keys, count):
    crc32 = PARTITIONERS["crc32"]
    found = keyed_partitions(pa.array(keys, pa.string()), count, crc32).to_pylist()
    assert found == [crc32(key.encode(), count) for key in keys]


TOPICS = {"a": 1, "b": 3, "c": 7}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(TOPICS)),
            st.one_of(st.none(), st.integers(0, 0)),
            st.one_of(st.none(), st.binary(max_size=2)),
        ),
        min_size=1,
        max_size=40,
    ),
    st.booleans(),
)
def test_rows_are_arranged_by_partition_in_their_order(found, with_partition):
    crc32 = PARTITIONERS["crc32"]
    columns = {
        "topic": pa.array([row[0] for row in found]),
        "key": pa.array([row[2] for row in found], pa.binary()),
        "value": pa.array([b"%d" % number for number in range(len(found))]),
    }
    if with_partition:
        columns["partition"] = pa.array([row[1] for row in found], pa.int32())
    expected: dict[tuple[str, int | None], list[bytes]] = {}
    for number, (topic, given_, key) in enumerate(found):
        partition = given_ if with_partition else None
        if partition is None and key is not None:
            partition = crc32(key, TOPICS[topic])
        expected.setdefault((topic, partition), []).append(b"%d" % number)
    got: dict[tuple[str, int | None], list[bytes]] = {}
    batch = pa.RecordBatch.from_pydict(columns)
    for rows_, runs in arrange(batch, None, TOPICS.__getitem__, crc32):
        values = rows_.column("value").to_pylist()
        assert runs[0].start == 0
        assert runs[-1].stop == len(values)
        for topic, partition, start, stop in runs:
            assert (topic, partition) not in got
            got[topic, partition] = values[start:stop]
    assert got == expected


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_partition_that_is_not_there_is_named(wrong):
    batch = pa.RecordBatch.from_pydict(
        {"partition": pa.array([0, wrong], pa.int32()), "value": pa.array([b"", b""])}
    )
    with pytest.raises(UnknownPartition, match=rf"says {wrong}, t has 0 to 2"):
        list(arrange(batch, "t", lambda _: 3, PARTITIONERS["crc32"]))


def test_a_row_without_topic_is_refused():
    batch = pa.RecordBatch.from_pydict(
        {"topic": pa.array(["t", None]), "value": pa.array([b"", b""])}
    )
    with pytest.raises(BadBatch, match="1 rows have no topic"):
        list(arrange(batch, None, lambda _: 3, PARTITIONERS["crc32"]))


def test_a_header_without_a_key_is_refused():
    batch = arrow([{"key": None, "value": b"", "headers": [{"key": None, "value": b""}],
                    "timestamp": None}])  # fmt: skip
    with pytest.raises(BadBatch, match="a header needs a key"):
        columns_of(batch)


def test_large_arrow_batches_are_taken_in_pieces():
    seed = random.randrange(1 << 32)
    source = random.Random(seed)
    values = [source.randbytes(source.randrange(2000)) for _ in range(500)]
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    pieces = record_batch_pieces(batch, 10_000)
    assert [v for piece in pieces for v in piece.column("value").to_pylist()] == values, seed
    assert all(piece.nbytes <= 10_000 for piece in pieces), seed
    assert len(pieces) > 10
    assert record_batch_pieces(batch.slice(0, 0), 10) == []


def test_a_batch_has_the_size_that_was_counted():
    pending = PendingRows()
    pending.add(columns_of(arrow([{"key": b"k", "value": b"v", "headers": None,
                                   "timestamp": None}])), 0, 1)  # fmt: skip
    assert HEADER_BYTES < len(pending.encode()) <= pending.size_bytes
