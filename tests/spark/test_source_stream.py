"""A streaming query reads every record once, and the same after a crash."""

from __future__ import annotations

import threading
from typing import Any, Self

import pytest

from seglog import SyncProducer

from tests.spark_query import hear, query_process
from tests.spark_session import PATIENCE_S, Batches, eventually, source

EVERYTHING = {"availableNow": True}


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def in_partition(partition: int, first: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(first, end)]


class Appending:
    """A producer that goes on while a test does something else."""

    def __init__(self, bootstrap: str, topic: str = "t", pause_s: float = 0.002) -> None:
        self._bootstrap, self._topic, self._pause_s = bootstrap, topic, pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0

    def _run(self) -> None:
        with SyncProducer(self._bootstrap) as producer:
            while not self._stop.wait(self._pause_s):
                producer.send_and_wait(self._topic, b"more")
                self.count += 1

    def wait_for(self, count: int) -> int:
        """Return once so many were appended; how many there are."""
        return eventually(lambda: self.count, lambda found: found >= count)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)


def test_a_replayed_batch_has_the_same_splits_and_rows(spark, broker, admin, producer, tmp_path):
    admin.create_topic("t", 2)
    for partition in (0, 1):
        producer.send_batch("t", numbers(0, 100), partition=partition).result()
    options: dict[str, Any] = {"minPartitions": 5, "startingOffsets": "earliest"}
    frame = source(spark.readStream, broker.bootstrap, **options)
    first = Batches(fails_in=0)
    with pytest.raises(Exception, match="batch 0 fails"):
        first.run(frame, tmp_path / "checkpoint")
    # Meanwhile there is more to read: what the source would answer now is another thing.
    producer.send_batch("t", numbers(100, 150), partition=0).result()

    second = Batches()
    frame = source(spark.readStream, broker.bootstrap, **options)
    second.run(frame, tmp_path / "checkpoint", **EVERYTHING)

    assert len({row[0] for row in first.rows[0]}) == 6
    assert second.rows[0] == first.rows[0]
    assert second.offsets == in_partition(0, 0, 150) + in_partition(1, 0, 100)


def test_a_kill_in_the_first_batch_loses_nothing_of_a_query_that_began_at_the_latest(
    spark, broker, admin, producer, tmp_path
):
    admin.create_topic("t", 1)
    producer.send_batch("t", numbers(0, 500)).result()
    plan: dict[str, Any] = {
        "bootstrap": broker.bootstrap,
        "topic": "t",
        "checkpoint": str(tmp_path / "checkpoint"),
        # The query joins its group after it has looked where it begins: some records come between.
        "options": {"startingOffsets": "latest", "group__id": "g", "group__session__timeout": "2s"},
        "hangs_in": 0,
    }
    with query_process(plan) as process:
        hear(process, "started")
        with Appending(broker.bootstrap):
            killed = [tuple(place) for place in hear(process, "batch")["offsets"]]
    assert killed, "no record came between the start of the query and its first batch"
    assert killed[0] >= (0, 500)
    end = admin.list_offsets("t")[0].offset

    batches = Batches()
    frame = source(spark.readStream, broker.bootstrap, **plan["options"])
    batches.run(frame, tmp_path / "checkpoint", **EVERYTHING)
    assert [row[1:3] for row in batches.rows[0]] == killed
    assert batches.offsets == in_partition(0, killed[0][1], end)


def test_available_now_ends_at_its_target_while_producers_go_on(
    spark, broker, admin, producer, tmp_path
):
    admin.create_topic("t", 2)
    seen: list[tuple[int, int]] = []
    with Appending(broker.bootstrap) as appending:
        for run in range(2):
            aimed = appending.wait_for(20 * (run + 1))
            batches = Batches()
            frame = source(
                spark.readStream,
                broker.bootstrap,
                startingOffsets="earliest",
                maxOffsetsPerTrigger=500,
            )
            batches.run(frame, tmp_path / "checkpoint", **EVERYTHING)
            ended = appending.count
            seen += batches.offsets
            assert len(seen) >= aimed, "it ended before its target"
            assert len(seen) <= ended
            appending.wait_for(ended + 1)  # it did not end because nothing came any more
    assert len(set(seen)) == len(seen)
    for partition in (0, 1):
        offsets = sorted(offset for number, offset in seen if number == partition)
        assert offsets == list(range(len(offsets))), "something was left out"


def test_max_offsets_is_obeyed_also_when_changed_and_a_partition_is_added_while_stopped(
    spark, broker, admin, producer, tmp_path
):
    admin.create_topic("t", 2)
    producer.send_batch("t", numbers(0, 70), partition=0).result()
    producer.send_batch("t", numbers(0, 5), partition=1).result()

    def run(limit: int) -> Batches:
        batches = Batches()
        frame = source(
            spark.readStream,
            broker.bootstrap,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=limit,
        )
        batches.run(frame, tmp_path / "checkpoint", **EVERYTHING)
        return batches

    first = run(30)
    assert first.counts == [30, 30, 15]
    assert first.rows[0][-1][1] == 1, "the small partition waits for the large one"
    admin.alter_topic("t", partitions=3)
    with SyncProducer(broker.bootstrap) as later:  # which knows of the new partition
        later.send_batch("t", numbers(0, 20), partition=2).result()
        later.send_batch("t", numbers(70, 90), partition=0).result()
    second = run(25)
    assert max(second.counts) <= 25
    assert second.offsets == in_partition(0, 70, 90) + in_partition(2, 0, 20)


@pytest.mark.parametrize("broker_settings", [("housekeeping.interval.ms=100",)], ids=["retention"])
def test_what_retention_took_is_an_error_that_names_it_or_is_passed_over(
    spark, broker, admin, producer, tmp_path
):
    admin.create_topic("t", 1, {"segment.bytes": 2_000})
    for first in range(0, 1_000, 10):
        producer.send_batch("t", numbers(first, first + 10)).result()

    def run(fails_in: int | None = None, **options: Any) -> Batches:
        batches = Batches(fails_in)
        frame = source(
            spark.readStream,
            broker.bootstrap,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=300,
            **options,
        )
        batches.run(frame, tmp_path / "checkpoint", **EVERYTHING)
        return batches

    # Batch 0 is done, batch 1 is planned and was not finished.
    with pytest.raises(Exception, match="batch 1 fails"):
        run(fails_in=1)
    admin.alter_topic("t", config={"retention.bytes": 5_000})
    log_start = eventually(
        lambda: admin.list_offsets("t", "earliest")[0].offset, lambda offset: offset >= 600
    )

    with pytest.raises(Exception, match=r"DataLost: t/0: offsets 300 to 599 are lost.*failOnData"):
        run()
    assert run(failOnDataLoss="false").offsets == in_partition(0, log_start, 1_000)


def test_a_broker_that_is_away_for_ten_seconds_ends_no_query(
    spark, broker, admin, producer, tmp_path
):
    admin.create_topic("t", 1)
    producer.send_batch("t", numbers(0, 100)).result()
    idle, reading = Batches(), Batches()
    is_away = threading.Event()
    frame = source(spark.readStream, broker.bootstrap, startingOffsets="earliest", group__id="idle")
    waiting = idle.start(frame, tmp_path / "idle")
    eventually(lambda: sum(idle.counts), lambda count: count == 100)

    def when_planned(batch_id: int) -> None:
        is_away.wait(PATIENCE_S)  # the offsets are known, nothing was read yet

    reading.before = when_planned
    frame = source(spark.readStream, broker.bootstrap, startingOffsets="earliest")
    other = reading.start(frame, tmp_path / "reading")
    with broker.away(10):
        is_away.set()  # now it reads
    eventually(lambda: sum(reading.counts), lambda count: count == 100)
    with SyncProducer(broker.bootstrap) as again:
        again.send_batch("t", numbers(100, 120)).result()
    eventually(lambda: (sum(idle.counts), sum(reading.counts)), lambda counts: counts == (120, 120))
    assert idle.offsets == reading.offsets == in_partition(0, 0, 120)
    for query in (waiting, other):
        assert query.exception() is None
        query.stop()


def test_topics_and_partitions_that_appear_while_it_runs_are_read_from_their_start(
    spark, broker, admin, tmp_path
):
    admin.create_topic("orders-1", 1)
    admin.create_topic("other", 1)
    batches = Batches()
    frame = source(spark.readStream, broker.bootstrap, None, subscribePattern="orders-.*")
    query = batches.start(frame, tmp_path / "checkpoint")
    eventually(lambda: batches.counts, bool)  # it has begun: at the latest
    admin.create_topic("orders-2", 1)
    admin.alter_topic("orders-1", partitions=2)
    with SyncProducer(broker.bootstrap) as later:
        later.send_batch("orders-2", [b"new topic"]).result()
        later.send_batch("orders-1", [b"new partition"], partition=1).result()
        later.send_batch("other", [b"not mine"]).result()
    eventually(lambda: len(batches.values), lambda count: count >= 2)
    query.stop()
    assert sorted(map(bytes, filter(None, batches.values))) == [b"new partition", b"new topic"]
