"""A query that is killed anywhere in a batch writes each row once, from the source to the sink."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from seglog import SyncAdmin, SyncProducer

from tests.sink_checks import keys, once, sink
from tests.sink_program import ROWS_PER_BATCH
from tests.spark_session import ROOT, source

pytestmark = pytest.mark.timeout(600)  # a Spark of its own each time: it only bounds a hang

PATIENCE_S = 250
ROWS = 5 * ROWS_PER_BATCH
DIES_IN = 1


def run_program(*arguments: object) -> int:
    """In a process group of its own, which ends with it; its code."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.sink_program", *map(str, arguments)],
        cwd=ROOT,
        process_group=0,
    )
    try:
        return process.wait(PATIENCE_S)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # a JVM may be left
        except ProcessLookupError:
            pass
        process.wait()


@pytest.mark.parametrize(
    ("at", "seen"),
    [
        pytest.param("write", ROWS_PER_BATCH, id="during the write"),
        pytest.param(
            "decision", ROWS_PER_BATCH, id="before the sink's commit", marks=pytest.mark.slow
        ),
        pytest.param(
            "end", 2 * ROWS_PER_BATCH, id="after the sink's commit", marks=pytest.mark.slow
        ),
    ],
)
def test_a_killed_query_goes_on_from_its_checkpoint_exactly_once(spark, broker, tmp_path, at, seen):
    # Given: rows to read, and a query that dies in its second batch.
    with SyncAdmin(broker.bootstrap) as admin, SyncProducer(broker.bootstrap) as producer:
        admin.create_topic("in", 2)
        admin.create_topic("out", 3)
        for partition in (0, 1):  # as many in each, so that a batch takes as many of each
            numbers = [b"%d" % number for number in range(partition, ROWS, 2)]
            producer.send_batch("in", numbers, numbers, partition=partition).result()
    checkpoint = tmp_path / "checkpoint"
    assert run_program("dying", broker.bootstrap, checkpoint, at, DIES_IN) == -signal.SIGKILL
    assert sum(keys(broker.bootstrap).values()) == seen

    # When: it is started again.
    frame = source(
        spark.readStream, broker.bootstrap, "in",
        startingOffsets="earliest", maxOffsetsPerTrigger=ROWS_PER_BATCH,
    )  # fmt: skip
    writer = sink(frame.select("key", "value").writeStream, broker.bootstrap)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)

    # Then: every row is there once.
    assert keys(broker.bootstrap) == once(ROWS)


@pytest.mark.xdist_group("spark")
def test_a_task_that_fails_after_a_partial_write_is_repeated_exactly_once(broker, tmp_path):
    with SyncAdmin(broker.bootstrap) as admin:
        admin.create_topic("batch", 2)
        admin.create_topic("stream", 3)
    assert run_program("flaky", broker.bootstrap, tmp_path / "checkpoint") == 0
    assert keys(broker.bootstrap, "batch") == once(20)
    assert keys(broker.bootstrap, "stream") == once(20)


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_a_speculative_attempt_and_the_slow_one_that_it_beats_write_once(broker, tmp_path):
    with SyncAdmin(broker.bootstrap) as admin:
        admin.create_topic("out", 3)
    assert run_program("slow", broker.bootstrap, tmp_path) == 0
    assert keys(broker.bootstrap) == once(40)
