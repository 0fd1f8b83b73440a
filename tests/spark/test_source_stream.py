"""A streaming query reads every record once, and the same after a crash."""

from __future__ import annotations

from typing import Any

import pytest

from seglog import SyncAdmin, SyncProducer

from tests.spark_session import Batches, source

EVERYTHING = {"availableNow": True}


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@pytest.fixture
def admin(broker):
    with SyncAdmin(broker.bootstrap) as client:
        yield client


@pytest.fixture
def producer(broker):
    with SyncProducer(broker.bootstrap) as client:
        yield client


def test_a_replayed_batch_has_the_same_splits_and_rows(spark, broker, admin, producer, tmp_path):
    admin.create_topic("t", 2)
    for partition in (0, 1):
        producer.send_batch("t", numbers(0, 100), partition=partition).result()
    options: dict[str, Any] = {"minPartitions": 5, "startingOffsets": "earliest"}
    frame = source(spark.readStream, broker.bootstrap, **options)
    first = Batches(fails_in=0)
    with pytest.raises(Exception, match="batch 0 fails"):
        first.run(frame, tmp_path / "checkpoint")
    # Meanwhile there is more to read, and less: what the source would answer now is another thing.
    producer.send_batch("t", numbers(100, 150), partition=0).result()

    second = Batches()
    frame = source(spark.readStream, broker.bootstrap, **options)
    second.run(frame, tmp_path / "checkpoint", **EVERYTHING)

    assert len({row[0] for row in first.rows[0]}) == 6
    assert second.rows[0] == first.rows[0]
    assert second.offsets == [(0, n) for n in range(150)] + [(1, n) for n in range(100)]
