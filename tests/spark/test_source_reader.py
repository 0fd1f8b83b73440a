"""The source called as Spark calls it, without a JVM around it: a real broker, and many cases."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from seglog import SyncAdmin, SyncConsumer, SyncProducer, TopicPartition, errors
from seglog.protocol.batch import encode_batch
from seglog.protocol.constants import PREFIX_BYTES
from seglog.protocol.header import pack_prefix
from seglog.spark_connector import batch_reader
from seglog.spark_connector.arrow import record_batches
from seglog.spark_connector.batch_reader import SeglogFilteringReader
from seglog.spark_connector.bookmark import GroupUnavailable
from seglog.spark_connector.connections import link
from seglog.spark_connector.data_loss import DataLost
from seglog.spark_connector.offsets import Span
from seglog.spark_connector.options import InvalidOption
from seglog.spark_connector.read_options import read_options
from seglog.spark_connector.source import SeglogDataSource

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp()) * 1000
ALL = ReadAllAvailable()


@pytest.fixture
def admin(seglog_broker):
    with SyncAdmin(seglog_broker.bootstrap) as client:
        yield client


@pytest.fixture
def producer(seglog_broker):
    with SyncProducer(seglog_broker.bootstrap) as client:
        yield client


@pytest.fixture
def make(seglog_broker):
    """A data source with these options; dots as two underscores."""
    readers = []

    def made(**options: Any) -> SeglogDataSource:
        given = {name.replace("__", "."): str(value) for name, value in options.items()}
        servers = {"seglog.bootstrap.servers": seglog_broker.bootstrap, "idleWait": "0"}
        return SeglogDataSource(CaseInsensitiveDict(servers | given))

    def stream(**options: Any) -> Any:
        reader = made(**{"subscribe": "t"} | options).streamReader(None)
        readers.append(reader)
        return reader

    yield type("Make", (), {"source": staticmethod(made), "stream": staticmethod(stream)})
    for reader in readers:
        reader.stop()


def as_stored(offset: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from the checkpoint."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def next_offset(reader: Any, start: dict[str, Any], limit: Any = ALL) -> dict[str, Any]:
    return as_stored(reader.latestOffset(as_stored(start), limit))


def rows(reader: Any, partitions: Any) -> list[tuple[int, int]]:
    """(partition, offset) of every row; each RecordBatch goes through a pickled reader."""
    executor = pickle.loads(pickle.dumps(reader))
    batches = [
        batch for each in partitions for batch in executor.read(pickle.loads(pickle.dumps(each)))
    ]
    table = pa.Table.from_batches(batches) if batches else None
    if table is None:
        return []
    return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def batch_rows(source: SeglogDataSource) -> list[tuple[int, int]]:
    reader = source.reader(None)
    return rows(reader, reader.partitions())


def places(partition: int, first: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(first, end)]


# --- where a query begins and ends ---


@pytest.fixture
def filled(admin, producer):
    """Two partitions with 20 records, one each second from noon on; `g` has read some."""
    admin.create_topic("t", 2)
    for partition in (0, 1):
        times = [NOON_MS * 1000 + second * 1_000_000 for second in range(20)]
        producer.send_batch("t", [b"v"] * 20, partition=partition, timestamps=times).result()
    admin.commit_offsets("g", {("t", 0): 7})


@pytest.mark.parametrize(
    ("options", "first", "end"),
    [
        ({}, (0, 0), (20, 20)),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, (0, 0), (20, 20)),
        ({"startingOffsets": '{"t": {"0": 5, "1": -2}}'}, (5, 0), (20, 20)),
        ({"endingOffsets": '{"t": {"0": 5, "1": -1}}'}, (0, 0), (5, 20)),
        ({"startingOffsets": "committed", "group__id": "g"}, (7, 0), (20, 20)),
        ({"endingOffsets": "committed", "group__id": "g"}, (0, 0), (7, 0)),
        ({"startingTimestamp": NOON_MS + 3_000}, (3, 3), (20, 20)),
        ({"startingTimestamp": NOON_MS + 2_001}, (3, 3), (20, 20)),
        ({"endingTimestamp": NOON_MS + 3_000}, (0, 0), (3, 3)),
        ({"endingTimestamp": NOON_MS + 99_000}, (0, 0), (20, 20)),
        (
            {"startingOffsetsByTimestamp": f'{{"t": {{"0": {NOON_MS}, "1": {NOON_MS + 9_000}}}}}'},
            (0, 9),
            (20, 20),
        ),
        (
            {"endingOffsetsByTimestamp": f'{{"t": {{"0": {NOON_MS}, "1": {NOON_MS + 9_000}}}}}'},
            (0, 0),
            (0, 9),
        ),
        (
            {
                "startingTimestamp": NOON_MS + 99_000,
                "startingOffsetsByTimestampStrategy": "latest",
            },
            (20, 20),
            (20, 20),
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_batch_reads_from_its_start_to_its_end(filled, make, options, first, end):
    expected = places(0, first[0], end[0]) + places(1, first[1], end[1])
    assert batch_rows(make.source(subscribe="t", **options)) == expected


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOffsets": '{"t": {"0": 5}}'}, "does not name t/1"),
        ({"startingOffsets": '{"t": {"0": 5, "1": 0, "2": 0}}'}, "names t/2, which is not read"),
        ({"startingTimestamp": NOON_MS + 99_000}, "startingOffsetsByTimestampStrategy=latest"),
    ],
    ids=["missing", "extra", "too-late"],
)
def test_a_place_that_cannot_be_is_refused(filled, make, options, says):
    with pytest.raises(InvalidOption, match=says):
        batch_rows(make.source(subscribe="t", **options))


def test_what_is_read_is_named_assigned_or_matched(filled, admin, producer, make):
    admin.create_topic("t-2", 1)
    producer.send_batch("t-2", [b"v"]).result()
    assert batch_rows(make.source(assign='{"t": [1]}')) == places(1, 0, 20)
    assert batch_rows(make.source(subscribePattern="t-.*")) == places(0, 0, 1)
    assert len(batch_rows(make.source(subscribe="t,t-2"))) == 41
    assert batch_rows(make.source(subscribePattern="nothing.*")) == []
    with pytest.raises(errors.UnknownTopic, match="none"):
        batch_rows(make.source(subscribe="none"))
    with pytest.raises(errors.UnknownPartition, match="t has no partition 9"):
        batch_rows(make.source(assign='{"t": [9]}'))


def test_filters_leave_out_what_they_can_and_never_too_much(filled, make, seglog_broker):
    from pyspark.sql import datasource as ds

    options = read_options(
        {"seglog.bootstrap.servers": seglog_broker.bootstrap, "subscribe": "t"}, is_streaming=False
    )

    def read(*filters: ds.Filter) -> list[tuple[int, int]]:
        reader = SeglogFilteringReader(options)
        assert list(reader.pushFilters(list(filters))) == list(filters)  # Spark applies them too
        return rows(reader, reader.partitions())

    assert read(ds.EqualTo(("partition",), 1), ds.LessThan(("offset",), 4)) == places(1, 0, 4)
    late = NOON.replace(second=15)
    assert read(ds.GreaterThanOrEqual(("timestamp",), late)) == places(0, 15, 20) + places(
        1, 15, 20
    )
    assert read(ds.LessThan(("timestamp",), late)) == places(0, 0, 20) + places(1, 0, 20)
    assert read(ds.GreaterThan(("timestamp",), NOON.replace(year=2027))) == []
    assert type(make.source(subscribe="t").reader(None)) is batch_reader.SeglogReader


def test_the_tasks_of_a_worker_share_one_connection(filled, make, seglog_broker):
    given = {"seglog.bootstrap.servers": seglog_broker.bootstrap, "subscribe": "t"}
    first, second = (link(read_options(given, is_streaming=False)) for _ in range(2))
    assert second.cluster is first.cluster
    connection = first.thread.call(first.cluster.any_connection())
    batch_rows(make.source(subscribe="t", minPartitions=6))
    assert first.thread.call(first.cluster.any_connection()) is connection
    connection.abort()  # as after a long idle time
    assert len(batch_rows(make.source(subscribe="t"))) == 40


@pytest.mark.parametrize(
    "values", [[b"0123456789"] * 7, [b"0" * number for number in range(7)]], ids=["one", "many"]
)
def test_a_flipped_bit_never_becomes_a_row(values):
    batch = bytes(encode_batch(values, timestamps=0))
    stored = pack_prefix(100, 0, len(batch), 0) + batch[PREFIX_BYTES:]
    span = Span(TopicPartition("t", 0), 100, 107)
    (sound,) = record_batches([memoryview(stored)], span, include_headers=False)
    assert sound.column("value").to_pylist() == values
    for place in range(8 * len(stored)):
        damaged = bytearray(stored)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(errors.SeglogError):
            list(record_batches([memoryview(damaged)], span, include_headers=False))


def test_a_range_of_many_fetches_is_read_whole(filled, producer, make):
    many = [b"%d" % number * 30 for number in range(2_000)]
    for first in range(0, 2_000, 50):
        producer.send_batch("t", many[first : first + 50], partition=0).result()
    reader = make.source(subscribe="t", fetchBytes="8k").reader(None)
    found = [
        value
        for split in reader.partitions()
        for batch in reader.read(split)
        if split.span.name.partition == 0
        for value in batch.column("value").to_pylist()
    ]
    assert found[-2_000:] == many


# --- a stream ---


@pytest.mark.parametrize("place", ["latest", "earliest", "committed"])
def test_a_replay_of_the_first_batch_reads_what_it_would_have_read(
    filled, admin, producer, make, place
):
    options = {"startingOffsets": place, "group__id": "g", "minPartitions": 3}
    first = make.stream(**options)
    start = as_stored(first.initialOffset())
    producer.send_batch("t", [b"v"] * 5, partition=0).result()
    end = next_offset(first, start)
    planned = [each.value for each in first.partitions(start, end)]
    read = rows(first, first.partitions(start, end))
    first.stop()
    # Whatever the option would say now:
    producer.send_batch("t", [b"v"] * 50, partition=1).result()
    admin.commit_offsets("g", {("t", 0): 25, ("t", 1): 2})

    second = make.stream(**options)
    other = as_stored(second.initialOffset())
    assert other["t"] != start["t"] or place == "earliest"
    assert [each.value for each in second.partitions(other, end)] == planned
    assert rows(second, second.partitions(other, end)) == read
    assert next_offset(second, end)["t"] == {"0": 25, "1": 70}


def test_nothing_new_is_the_same_offset_and_no_splits(filled, make):
    reader = make.stream(startingOffsets="earliest")
    start = as_stored(reader.initialOffset())
    end = next_offset(reader, start)
    assert next_offset(reader, end) == end
    assert reader.partitions(end, end) == []
    assert reader.reportLatestOffset() == {"t": {"0": 20, "1": 20}}


def test_limits_come_from_the_options_and_count_together(filled, admin, make):
    reader = make.stream(
        startingOffsets="earliest", maxOffsetsPerTrigger=10, maxBytesPerTrigger="1g"
    )
    assert reader.getDefaultReadLimit() == ReadMaxRows(10)
    start = as_stored(reader.initialOffset())
    assert sum(next_offset(reader, start, ReadMaxRows(10))["t"].values()) == 10
    assert sum(next_offset(reader, start, ALL)["t"].values()) == 40  # a trigger that takes all

    size = sum(each.size_bytes for each in admin.describe_topic("t").partitions)
    reader = make.stream(startingOffsets="earliest", maxBytesPerTrigger=size // 4)
    assert reader.getDefaultReadLimit() == ReadMaxBytes(size // 4)
    end = next_offset(reader, start, ReadMaxBytes(size // 4))
    assert 8 <= sum(end["t"].values()) <= 10


def test_a_position_that_was_deleted_is_told_or_passed_over(filled, admin, producer, make, caplog):
    reader = make.stream(startingOffsets="earliest", maxOffsetsPerTrigger=10)
    start = as_stored(reader.initialOffset())
    begun = next_offset(reader, start, ReadMaxRows(10))
    admin.delete_records("t", 0, 12)
    with pytest.raises(DataLost, match=r"t/0: offsets 5 to 11 are lost: the log starts at 12"):
        next_offset(reader, begun)
    with pytest.raises(DataLost, match=r"t/0: offsets 0 to 4 are lost"):  # in an executor
        rows(reader, reader.partitions(start, begun))

    lenient = make.stream(startingOffsets="earliest", failOnDataLoss="false")
    assert rows(lenient, lenient.partitions(start, begun)) == places(1, 0, 5)
    end = next_offset(lenient, begun)
    assert rows(lenient, lenient.partitions(begun, end)) == places(0, 12, 20) + places(1, 5, 20)
    assert "t/0: offsets 0 to 4 are lost" in caplog.text
    assert "t/0: offsets 5 to 11 are lost" in caplog.text


def test_a_topic_that_was_made_anew_is_told_or_read_from_its_start(filled, admin, producer, make):
    reader = make.stream(startingOffsets="latest")
    begun = next_offset(reader, as_stored(reader.initialOffset()))
    admin.delete_topic("t")
    with pytest.raises(DataLost, match="there is no such partition any more"):
        next_offset(reader, begun)
    was_there = {"t": {"0": 0, "1": 0}}
    with pytest.raises(DataLost, match=r"t/0: offsets 0 to 19 are lost: no topic"):  # in a task
        rows(reader, reader.partitions(was_there, begun | {"@from": was_there}))
    admin.create_topic("t", 2)
    with SyncProducer(reader._options._given["seglog.bootstrap.servers"]) as again:
        again.send_batch("t", [b"v"] * 3, partition=0).result()
    with pytest.raises(DataLost, match=r"t/0: offsets 3 to 19 are lost: the log ends at 3"):
        next_offset(reader, begun)
    lenient = make.stream(startingOffsets="latest", failOnDataLoss="false")
    end = next_offset(lenient, begun)
    assert rows(lenient, lenient.partitions(begun, end)) == places(0, 0, 3)
    admin.delete_topic("t")
    assert rows(lenient, lenient.partitions(was_there, end)) == []


# --- the group ---


def test_the_bookmark_follows_what_is_done_and_is_left_when_the_query_stops(
    filled, admin, producer, make
):
    reader = make.stream(startingOffsets="earliest", group__id="q", maxOffsetsPerTrigger=10)
    start = as_stored(reader.initialOffset())
    end = next_offset(reader, start, ReadMaxRows(10))
    described = admin.describe_group("q")
    assert described.lag.records == 40  # planned is not done
    (member,) = described.members
    assert member.client_name.startswith("spark on ")
    end = next_offset(reader, end, ReadMaxRows(10))
    assert admin.describe_group("q").lag.records == 30
    reader.commit(end)
    assert admin.describe_group("q").lag.records == 20
    reader.stop()
    assert admin.describe_group("q").members == []
    assert admin.fetch_offsets("q")[TopicPartition("t", 0)].offset == 10


def test_a_second_query_with_the_same_group_is_refused_and_the_first_not_disturbed(
    filled, admin, make, seglog_broker
):
    options = {"group__id": "q", "group__session__timeout": "3s", "startingOffsets": "earliest"}
    first = make.stream(**options)
    start = as_stored(first.initialOffset())
    end = next_offset(first, start)
    second = make.stream(**options)
    with pytest.raises(GroupUnavailable, match=r"'q' cannot be used.*in use by spark on .*process"):
        next_offset(second, second.initialOffset())
    with (
        pytest.raises(errors.GroupTaken, match="spark on"),
        SyncConsumer("t", group="q", bootstrap=seglog_broker.bootstrap),
    ):
        pass
    assert next_offset(first, end) == end
    assert admin.describe_group("q").lag.records == 0
    first.stop()
    assert next_offset(second, second.initialOffset())["t"] == {"0": 20, "1": 20}


def test_a_query_started_again_takes_its_seat_and_the_former_run_is_fenced(filled, make):
    options = {"group__id": "q", "startingOffsets": "earliest"}
    first = make.stream(**options)
    end = next_offset(first, first.initialOffset())
    second = make.stream(**options)
    assert next_offset(second, end) == end  # at once: it has the same checkpoint

    def go_on() -> None:
        for _ in range(1_000):  # it hears of it with its next heartbeat
            next_offset(first, end)

    with pytest.raises(GroupUnavailable, match="started a second time from the same checkpoint"):
        go_on()
