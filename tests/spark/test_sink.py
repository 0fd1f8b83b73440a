"""What is written is what is read: every kind of cell, by batch writes and by streams, once."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from seglog import SyncAdmin
from seglog.client.partitioner import crc32

from tests.sink_checks import forget_batches, keys, once, records, sink
from tests.spark_session import PATIENCE_S, source

pytestmark = pytest.mark.timeout(600)  # it only bounds a hang

HEADERS = "array<struct<key: string, value: binary>>"
MEGABYTE = 1_000_000


@pytest.fixture
def admin(broker):
    with SyncAdmin(broker.bootstrap) as client:
        yield client


def numbers(spark, count, tasks=2):
    return spark.range(count, numPartitions=tasks).selectExpr(
        "cast(id as string) key", "cast(id as string) value"
    )


def test_every_kind_of_cell_comes_back_as_it_was_written(spark, broker, admin):
    """In a session that is not in UTC: a time is a moment, not what a clock showed."""
    admin.create_topic("out", 3)
    noon = datetime(2024, 7, 1, 12, 0, 0, 123456, tzinfo=UTC)
    before = datetime.now(UTC)
    rows = [
        (b"a", b"plain", 0, [("h", b"1"), ("h", None), ("", b"")], noon),
        (b"a", None, 0, None, noon),  # a tombstone
        (None, b"", 1, [], None),
        (b"", bytes(range(256)), 1, [("ü", b"\x00")], datetime(1969, 12, 31, tzinfo=UTC)),
        (b"large", b"x" * MEGABYTE, 2, None, noon),
        (None, None, 2, None, noon),
    ]
    schema = f"key binary, value binary, partition int, headers {HEADERS}, timestamp timestamp"
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = spark.createDataFrame(rows, schema).coalesce(1)
        sink(frame.write, broker.bootstrap).mode("append").save()
        read = source(spark.read, broker.bootstrap, "out", includeHeaders="true")
        # By Spark, which must see the moments that it wrote, …
        micros = "cast(unix_micros(timestamp) as bigint) as micros"
        seen = read.orderBy("partition", "offset").selectExpr("key", "value", micros).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    # … and by a client.
    found = records(broker.bootstrap)
    assert [(record.key, record.value, record.partition) for record in found] == [
        row[:3] for row in rows
    ]
    assert [record.headers for record in found] == [tuple(row[3]) if row[3] else () for row in rows]
    for record, row, from_spark in zip(found, rows, seen, strict=True):
        if row[4] is None:
            assert before <= record.timestamp <= datetime.now(UTC)
        else:
            assert record.timestamp == row[4]
        assert from_spark["micros"] == record.timestamp_us
    assert found[1].is_tombstone


def test_text_goes_to_the_topic_and_partition_that_its_row_says(spark, broker, admin):
    counts = {"a": 2, "b": 5}
    for name, count in counts.items():
        admin.create_topic(name, count)
    frame = spark.range(100).selectExpr(
        "case when id % 2 = 0 then 'a' else 'b' end topic",
        "concat('key-', id) key",
        "cast(id as string) value",
        "case when id % 10 = 0 then cast(1 as int) end partition",
    )
    sink(frame.write, broker.bootstrap, None, compression="zstd").mode("append").save()
    found = {name: records(broker.bootstrap, name) for name in counts}
    assert sorted(int(r.value or b"") for rows in found.values() for r in rows) == list(range(100))
    for name, rows in found.items():
        for record in rows:
            number = int(record.value or b"")
            assert name == ("a" if number % 2 == 0 else "b")
            expected = 1 if number % 10 == 0 else crc32(b"key-%d" % number, counts[name])
            assert record.partition == expected


def test_many_partitions_many_batches_and_rows_without_a_key(spark, broker, admin):
    admin.create_topic("out", 50)
    frame = spark.range(20_000).selectExpr("repeat('x', 100) value")
    sink(frame.write, broker.bootstrap, batchBytes="16k").mode("append").save()
    found = records(broker.bootstrap)
    assert len(found) == 20_000
    assert len({record.partition for record in found}) > 40, "rows without a key are spread"


def test_nothing_to_write_is_written(spark, broker, admin):
    admin.create_topic("out")
    empty = spark.createDataFrame([], "value string")
    sink(empty.write, broker.bootstrap).mode("append").save()
    sink(numbers(spark, 0).write, broker.bootstrap).mode("append").save()
    assert records(broker.bootstrap) == []


def run(query):
    assert query.awaitTermination(PATIENCE_S), "the query did not end"


def copy(spark, broker, checkpoint, **options):
    """A query from the topic `in` to the topic `out`, until it has read everything."""
    frame = source(
        spark.readStream,
        broker.bootstrap,
        "in",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=20,
    )
    writer = sink(frame.select("key", "value").writeStream, broker.bootstrap, **options)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def fill(spark, broker, admin, count):
    admin.create_topic("in", 2)
    admin.create_topic("out", 3)
    sink(numbers(spark, count).write, broker.bootstrap, "in").mode("append").save()


def test_a_replayed_batch_is_recognised_and_an_older_one_is_refused(spark, broker, admin, tmp_path):
    # Given: a query that found nothing at first, then three batches.
    fill(spark, broker, admin, 0)
    checkpoint = tmp_path / "checkpoint"
    run(copy(spark, broker, checkpoint))
    sink(numbers(spark, 60).write, broker.bootstrap, "in").mode("append").save()
    run(copy(spark, broker, checkpoint))
    assert keys(broker.bootstrap) == once(60)
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    assert last >= 2
    # The last batch was published, and Spark does not know: what a crash after the commit leaves.
    forget_batches(checkpoint, commits_from=last)
    run(copy(spark, broker, checkpoint))
    assert keys(broker.bootstrap) == once(60)
    # A checkpoint that is older than that comes from a copy: its batches may be others now.
    forget_batches(checkpoint, commits_from=last - 1, offsets_from=last)
    with pytest.raises(Exception, match=f"batch {last - 1} of spark-.* comes after batch {last}"):
        run(copy(spark, broker, checkpoint))
    assert keys(broker.bootstrap) == once(60)


def test_a_named_write_is_done_once_so_that_foreach_batch_is_exact(spark, broker, admin, tmp_path):
    """Spark gives Python sinks no update mode: this is the way to it."""
    fill(spark, broker, admin, 60)
    checkpoint = tmp_path / "checkpoint"

    def write(frame, batch_id, fails=False):
        named = {"txnAppId": "totals", "txnVersion": batch_id}
        sink(frame.write, broker.bootstrap, **named).mode("append").save()
        if fails:
            raise RuntimeError("after the write")

    def start(write):
        frame = source(spark.readStream, broker.bootstrap, "in", startingOffsets="earliest")
        totals = frame.groupBy("key").count().selectExpr("key", "cast(count as string) value")
        writer = totals.writeStream.outputMode("update").foreachBatch(write)
        return (
            writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        )

    with pytest.raises(Exception, match="after the write"):
        run(start(lambda frame, batch_id: write(frame, batch_id, fails=True)))
    run(start(write))
    assert keys(broker.bootstrap) == once(60)


def test_complete_mode_appends_the_whole_result(spark, broker, admin, tmp_path):
    fill(spark, broker, admin, 10)
    frame = source(spark.readStream, broker.bootstrap, "in", startingOffsets="earliest")
    total = frame.groupBy().count().selectExpr("cast(count as string) value")
    writer = sink(total.writeStream, broker.bootstrap).outputMode("complete")
    run(
        writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert [record.value for record in records(broker.bootstrap)] == [b"10"]


def test_what_cannot_be_written_is_said_before_anything_runs(spark, broker, admin):
    admin.create_topic("out")
    frame = numbers(spark, 1)
    for bad, message in [
        (sink(frame.write, broker.bootstrap).mode("overwrite"), "a log only grows"),
        (
            sink(frame.write, broker.bootstrap, batchByte=1).mode("append"),
            "did you mean batchBytes",
        ),
        (sink(frame.drop("value").write, broker.bootstrap).mode("append"), "no column `value`"),
    ]:
        with pytest.raises(Exception, match=message):
            bad.save()
    with pytest.raises(Exception, match="no topic nowhere"):
        sink(frame.write, broker.bootstrap, "nowhere").mode("append").save()
    assert records(broker.bootstrap) == []
