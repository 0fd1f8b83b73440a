"""What the Spark source decides without Spark and without a broker: options, splits, limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from seglog import TopicPartition
from seglog.spark_connector.filters import Pushed
from seglog.spark_connector.limits import SegmentSize, limit_bytes, limit_records
from seglog.spark_connector.offsets import Span, StreamOffset, spans
from seglog.spark_connector.options import InvalidOption, Options, byte_size, duration_ms
from seglog.spark_connector.read_options import (
    ASSIGN,
    FAIL_ON_DATA_LOSS,
    GROUP_ID,
    MAX_BYTES,
    READ_OPTIONS,
    STARTING_OFFSETS,
    SUBSCRIBE,
    read_options,
)
from seglog.spark_connector.splits import split

pytestmark = pytest.mark.spark

SERVERS = {"seglog.bootstrap.servers": "127.0.0.1:1"}
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)

counts = st.dictionaries(st.sampled_from([T0, T1, U0]), st.integers(0, 1_000), min_size=1)


# --- options ---


def test_names_are_known_in_any_case_and_by_their_name_in_kafka():
    options = read_options(
        {"KAFKA.bootstrap.Servers": "h:1", "SUBSCRIBE": "b, a", "kafka.group.id": "g"},
        is_streaming=True,
    )
    assert options[SUBSCRIBE] == ["a", "b"]
    assert options[GROUP_ID] == "g"
    assert options[FAIL_ON_DATA_LOSS] is True


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"subscribe": "t"}, "seglog.bootstrap.servers is missing"),
        (SERVERS, "give subscribe, subscribePattern or assign"),
        (SERVERS | {"subscribe": "t", "assign": "{}"}, "assign must name at least one partition"),
        (SERVERS | {"subscribe": "t", "subscribePattern": "t"}, "exclude each other"),
        (SERVERS | {"subscribe": "t", "maxOffsetPerTrigger": "1"}, "mean maxOffsetsPerTrigger?"),
        (SERVERS | {"subscribe": "t", "maxOffsetsPerTrigger": "x"}, "must be a whole number"),
        (SERVERS | {"subscribe": "t", "maxBytesPerTrigger": "0"}, "must be at least 1"),
        (SERVERS | {"subscribe": "t", "failOnDataLoss": "no"}, "must be true or false"),
        (SERVERS | {"subscribe": "t", "startingOffsets": "first"}, "must be earliest, latest"),
        (SERVERS | {"subscribe": "t", "startingOffsets": '{"t": 1}'}, 'must be as {"t": {"0"'),
        (SERVERS | {"subscribe": "t", "startingOffsets": "committed"}, "group.id is missing"),
        (SERVERS | {"subscribe": "t", "endingOffsets": "latest"}, "a stream has no end"),
        (
            SERVERS | {"kafka.bootstrap.servers": "other:1", "subscribe": "t"},
            "seglog.bootstrap.servers is given twice",
        ),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_a_wrong_option_is_named_with_what_it_should_be(given, says):
    with pytest.raises(InvalidOption) as failure:
        read_options(given, is_streaming=True)
    assert says in str(failure.value)


def test_options_of_spark_and_of_kafka_are_let_through_and_kafkas_are_named(caplog):
    given = {"checkpointLocation": "/c", "kafka.security.protocol": "SSL", "subscribe": "t"}
    Options(given, READ_OPTIONS)
    assert "mean nothing here: kafka.security.protocol" in caplog.text


@pytest.mark.parametrize(
    ("text", "value"), [("5", 5), ("64k", 65_536), ("8MB", 8 << 20), ("1g", 1 << 30)]
)
def test_sizes_have_units(text, value):
    assert byte_size(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("5", 5), ("300ms", 300), ("2s", 2_000), ("5m", 300_000), ("1h", 3_600_000)]
)
def test_durations_have_units(text, value):
    assert duration_ms(text) == value


def test_json_options_are_read():
    options = read_options(
        SERVERS
        | {"assign": '{"t": [1, 0]}', "startingOffsets": '{"t": {"0": 5, "1": -2}}'}
        | {"maxBytesPerTrigger": "2k"},
        is_streaming=True,
    )
    assert options[ASSIGN] == [T0, T1]
    assert options[STARTING_OFFSETS] == {T0: 5, T1: -2}
    assert options[MAX_BYTES] == 2_048


# --- offsets and splits ---


@given(positions=counts, begins=counts, reader=st.none() | st.text())
def test_an_offset_is_the_same_after_its_way_through_the_checkpoint(positions, begins, reader):
    offset = StreamOffset(positions, begins, reader)
    assert StreamOffset.from_json(offset.to_json()) == offset


def test_a_batch_begins_where_its_end_says_whatever_the_start_says_now():
    end = StreamOffset({T0: 10, T1: 4}, {T0: 3})
    assert spans(StreamOffset({T0: 9, T1: 4}), end) == [Span(T0, 3, 10)]
    assert spans(StreamOffset({}), end) == [Span(T0, 3, 10), Span(T1, 0, 4)]
    assert spans(end, end) == []  # its own beginning counts no more


@given(
    sizes=counts,
    min_partitions=st.none() | st.integers(1, 20),
    max_records=st.none() | st.integers(1, 300),
)
def test_splits_hold_every_offset_once_and_are_as_many_as_asked(sizes, min_partitions, max_records):
    whole = [Span(name, 7, 7 + size) for name, size in sorted(sizes.items())]
    pieces = [piece.span for piece in split(whole, min_partitions, max_records)]
    for span in whole:
        mine = [piece for piece in pieces if piece.name == span.name]
        offsets = [o for piece in mine for o in range(piece.first_offset, piece.end_offset)]
        assert offsets == list(range(span.first_offset, span.end_offset))
    assert all(piece.offset_count for piece in pieces)
    if max_records is not None:
        assert all(piece.offset_count <= max_records for piece in pieces)
    if min_partitions is not None:
        assert len(pieces) >= min(min_partitions, sum(sizes.values()))


# --- limits ---


@given(start=counts, waiting=counts, room=st.integers(1, 2_000))
def test_a_limit_of_records_is_used_up_and_never_passed(start, waiting, room):
    start = {name: start.get(name, 0) for name in waiting}
    end = {name: start[name] + waiting[name] for name in waiting}
    found = limit_records(start, end, room)
    taken = {name: found[name] - start[name] for name in waiting}
    assert all(0 <= taken[name] <= waiting[name] for name in waiting)
    assert sum(taken.values()) == min(room, sum(waiting.values()))
    if room >= len(waiting):
        assert all(taken[name] for name in waiting if waiting[name]), "one is starved"


def test_a_limit_below_the_number_of_partitions_goes_round():
    at, end = {T0: 0, T1: 0, U0: 0}, {T0: 9, T1: 9, U0: 9}
    served = []
    for _ in range(6):
        after = limit_records(at, end, 1)
        served += [name for name in at if after[name] > at[name]]
        at = after
    assert sorted(served) == sorted([T0, T1, U0] * 2)


@given(waiting=counts, room=st.integers(1, 100_000), record_bytes=st.integers(1, 500))
def test_a_limit_of_bytes_is_about_met_and_something_is_always_read(waiting, room, record_bytes):
    start = dict.fromkeys(waiting, 0)
    segments = {
        name: [
            SegmentSize(first, first + 100, 100 * record_bytes) for first in range(0, 1_000, 100)
        ]
        for name in waiting
    }
    found = limit_bytes(start, waiting, segments, room)
    taken = sum(found.values())
    assert all(found[name] <= waiting[name] for name in waiting)
    assert taken * record_bytes <= max(room, record_bytes)
    assert taken > 0 or not sum(waiting.values())
    assert taken >= min(sum(waiting.values()), room // record_bytes) - len(waiting)


# --- filters ---


def test_filters_cut_partitions_and_offsets_and_nothing_else():
    from datetime import UTC, datetime

    from pyspark.sql import datasource as ds

    whole = [Span(T0, 0, 100), Span(T1, 0, 100)]

    def cut(*filters: ds.Filter) -> list[Span]:
        return Pushed.of(filters).cut(whole)

    assert cut(ds.EqualTo(("partition",), 1)) == [Span(T1, 0, 100)]
    assert cut(ds.In(("Partition",), (0, 5))) == whole  # a range around them: Spark does the rest
    assert cut(ds.GreaterThan(("offset",), 10), ds.LessThanOrEqual(("offset",), 20)) == [
        Span(T0, 11, 21),
        Span(T1, 11, 21),
    ]
    assert cut(ds.EqualTo(("offset",), 100)) == []
    assert cut(ds.EqualTo(("value",), b"x"), ds.Not(ds.EqualTo(("offset",), 1))) == whole
    assert cut(ds.EqualNullSafe(("offset",), None), ds.IsNotNull(("offset",))) == whole
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    pushed = Pushed.of([ds.GreaterThanOrEqual(("timestamp",), noon)])
    assert pushed.timestamp_us.low == int(noon.timestamp()) * 1_000_000
