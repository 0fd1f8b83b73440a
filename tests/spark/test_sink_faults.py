"""A broker that goes away, and attempts that come late: the query survives, and writes once."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from seglog import SyncAdmin
from seglog.client.blocking_transactions import SyncTransactions
from seglog.client.transactions import Target
from seglog.protocol.errors import StepCommitted
from seglog.spark_connector import writer
from seglog.spark_connector.write_options import write_options

from tests.dying_sink import Gate, HeldSink
from tests.sink_checks import keys, once, records, sink
from tests.spark_session import PATIENCE_S, eventually, source

pa = pytest.importorskip("pyarrow")

pytestmark = pytest.mark.timeout(600)  # it only bounds a hang


@pytest.fixture
def admin(broker):
    with SyncAdmin(broker.bootstrap) as client:
        yield client


def held_copy(spark, broker, tmp_path, at):
    """A query of one batch from `in` to `out`, with gates in its sink."""
    spark.dataSource.register(HeldSink)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    frame = source(spark.readStream, broker.bootstrap, "in", startingOffsets="earliest")
    held = {"format": "held", "test__folder": tmp_path, "test__at": at}
    stream = sink(
        frame.select("key", "value").writeStream, broker.bootstrap, batchBytes=200, **held
    )
    checkpoint = str(tmp_path / "checkpoint")
    return stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


@pytest.fixture
def rows(spark, broker, admin):
    """100 numbers in the topic `in`."""
    admin.create_topic("in", 2)
    admin.create_topic("out", 20)
    frame = spark.range(100).selectExpr("cast(id as string) key", "cast(id as string) value")
    sink(frame.write, broker.bootstrap, "in").mode("append").save()
    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    yield 100
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", before)


@pytest.mark.parametrize("at", ["write", pytest.param("commit", marks=pytest.mark.slow)])
def test_a_query_survives_a_broker_that_is_away_for_ten_seconds(spark, broker, rows, tmp_path, at):
    gate = Gate(tmp_path, at)
    query = held_copy(spark, broker, tmp_path, at)
    eventually(lambda: gate.is_reached or not query.isActive, bool, f"{at} is not reached")
    with broker.away(10):
        gate.open()  # from now on the sink calls a broker that is not there
    assert query.awaitTermination(PATIENCE_S)
    assert keys(broker.bootstrap) == once(rows)


def test_a_broker_killed_during_the_commit_publishes_once(spark, broker, rows, tmp_path):
    gate = Gate(tmp_path, "commit")
    query = held_copy(spark, broker, tmp_path, "commit")
    eventually(lambda: gate.is_reached or not query.isActive, bool, "the commit is not reached")
    assert records(broker.bootstrap) == []
    with SyncAdmin(broker.bootstrap) as watcher:
        gate.open()
        # The first rows can be read: the decision is made, and perhaps not yet carried out.
        eventually(
            lambda: sum(found.offset for found in watcher.list_offsets("out").values()), bool
        )
        broker.kill()
    broker.start()
    assert query.awaitTermination(PATIENCE_S)
    assert keys(broker.bootstrap) == once(rows)


# --- without Spark: the task's own code, beside a commit that is quicker -----------------------


def arrow(*values: bytes):
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})


def options_for(broker):
    return write_options(
        {"seglog.bootstrap.servers": broker.bootstrap, "topic": "out", "batchBytes": "1"}
    )


def test_a_slow_attempt_is_fenced_by_the_commit_of_a_quicker_one(broker, admin):
    admin.create_topic("out")
    options = options_for(broker)
    is_slow, may_go_on = threading.Event(), threading.Event()
    told = []

    def slowly():
        yield arrow(b"slow 1", b"slow 2")  # staged at once: a row is a batch here
        is_slow.set()
        assert may_go_on.wait(PATIENCE_S)
        yield arrow(b"slow 3")

    slow = threading.Thread(target=lambda: told.append(writer._write(slowly(), "q", 0, options)))
    slow.start()
    assert is_slow.wait(PATIENCE_S)
    quick = writer._write(iter([arrow(b"quick")]), "q", 0, options)
    writer._commit([quick], "q", 0, options, is_last=False)
    may_go_on.set()
    slow.join(PATIENCE_S)
    # What the slow one staged is nowhere, and what it says changes nothing.
    assert told == [writer.Staged("q", 0, was_committed=True)]
    writer._commit(told, "q", 0, options, is_last=False)
    assert [record.value for record in records(broker.bootstrap)] == [b"quick"]


def test_an_attempt_at_a_batch_that_was_passed_is_refused(broker, admin):
    admin.create_topic("out")
    options = options_for(broker)
    late = writer._write(iter([arrow(b"late")]), "q", 4, options)
    for step in (5, 6):
        staged = writer._write(iter([arrow(b"%d" % step)]), "q", step, options)
        writer._commit([staged], "q", step, options, is_last=False)
    with pytest.raises(writer.StaleBatch, match="batch 4 of q comes after batch 6"):
        writer._commit([late], "q", 4, options, is_last=False)
    with pytest.raises(writer.StaleBatch):
        writer._write(iter([arrow(b"later")]), "q", 4, options)
    assert [record.value for record in records(broker.bootstrap)] == [b"5", b"6"]


def test_a_commit_that_the_broker_forgot_is_not_taken_for_done(broker, admin, tmp_path):
    """As after a data folder that was put back from an older copy."""
    admin.create_topic("out")
    options = options_for(broker)
    skipped = writer.Staged("q", 3, was_committed=True)
    with pytest.raises(RuntimeError, match="does not know of it any more"):
        writer._commit([skipped], "q", 3, options, is_last=False)
    with SyncTransactions(broker.bootstrap) as client:
        assert client.last_step("q") == -1


def test_a_job_that_failed_leaves_nothing_behind_and_nothing_can_be_added(broker, admin):
    admin.create_topic("out")
    options = options_for(broker)
    schema = StructType([StructField("value", BinaryType())])
    job = writer.BatchWriter(schema, options)
    staged = job.write(iter([arrow(b"given up")]))
    job.abort([staged, None])
    assert job.write(iter([arrow(b"late")])).was_committed
    with SyncTransactions(broker.bootstrap) as client, pytest.raises(StepCommitted):
        client.stage(staged.transaction, 0, [Target("out", 0, b"late")])
    assert records(broker.bootstrap) == []


def test_a_named_job_that_failed_can_be_tried_again(broker, admin):
    admin.create_topic("out")
    given = {"seglog.bootstrap.servers": broker.bootstrap, "topic": "out"}
    options = write_options({**given, "txnAppId": "a", "txnVersion": "3"})
    schema = StructType([StructField("value", BinaryType())])
    job = writer.BatchWriter(schema, options)
    job.abort([job.write(iter([arrow(b"given up")]))])
    for _ in range(2):
        again = writer.BatchWriter(schema, options)
        again.commit([again.write(iter([arrow(b"again")]))])
    assert [record.value for record in records(broker.bootstrap)] == [b"again"]


def test_tasks_of_another_batch_are_not_committed(broker, admin):
    options = options_for(broker)
    with pytest.raises(RuntimeError, match="a task wrote for step 2"):
        writer._commit([writer.Staged("q", 2, [1])], "q", 3, options, is_last=False)


def test_no_rows_are_no_commit(broker, admin):
    options = options_for(broker)
    writer._commit([None, writer.Staged("q", 0)], "q", 0, options, is_last=False)
    with SyncTransactions(broker.bootstrap) as client:
        assert client.last_step("q") == -1
