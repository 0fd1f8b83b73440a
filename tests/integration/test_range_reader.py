"""A range is read whole and in order, ahead of the reader, whatever happens to the broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from seglog import SyncAdmin, SyncProducer, TopicPartition, errors
from seglog.client.loop_thread import LoopThread
from seglog.client.range_reader import MAX_WAITING_CHUNKS, Chunk, Gap, RangeReader, open_cluster
from seglog.protocol.header import hop

from tests.broker_server import BrokerServer

NAME = TopicPartition("t", 0)
COUNT = 2_000
PER_BATCH = 20


@pytest.fixture
def broker(tmp_path) -> Iterator[BrokerServer]:
    with BrokerServer(tmp_path / "data") as server:
        with SyncAdmin(server.bootstrap) as admin, SyncProducer(server.bootstrap) as producer:
            admin.create_topic("t", 1)
            for first in range(0, COUNT, PER_BATCH):
                values = [b"%05d" % number * 20 for number in range(first, first + PER_BATCH)]
                producer.send_batch("t", values).result()
        yield server


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    shared = LoopThread.share()
    yield shared
    shared.release()


@pytest.fixture
def cluster(broker, thread):
    opened = open_cluster(thread, broker.bootstrap, patience_s=30)
    yield opened
    thread.call(opened.close())


@pytest.fixture
def reader(thread, cluster) -> RangeReader:
    return RangeReader(thread, cluster, patience_s=30, fetch_bytes=10_000)


def starts(chunk: Chunk | Gap) -> list[int]:
    """The base offsets of a chunk's batches."""
    assert isinstance(chunk, Chunk)
    found, position = [], 0
    while position < len(chunk.batches):
        step = hop(chunk.batches, position)
        found.append(step.base_offset)
        position += step.length
    return found


@pytest.mark.parametrize(
    ("start", "end"), [(0, COUNT), (0, 1), (19, 21), (990, 1_011), (COUNT - 1, COUNT), (5, 5)]
)
def test_a_range_is_all_batches_that_hold_a_part_of_it(reader, start, end):
    found = [base for chunk in reader.read(NAME, start, end) for base in starts(chunk)]
    assert found == [
        base
        for base in range(0, COUNT, PER_BATCH)
        if start < end and base < end and start < base + PER_BATCH
    ]


def test_a_broker_that_is_killed_within_a_range_is_waited_for(reader, broker):
    chunks = reader.read(NAME, 0, COUNT)
    found = starts(next(chunks))
    with broker.away(1):
        found += [base for chunk in chunks for base in starts(chunk)]
    assert found == list(range(0, COUNT, PER_BATCH))


def test_a_broker_that_stays_away_is_given_up_after_a_while(thread, cluster, broker):
    impatient = RangeReader(thread, cluster, patience_s=0.2)
    assert list(impatient.read(NAME, 0, 1))
    broker.kill()
    with pytest.raises(errors.SeglogError) as failure:
        list(impatient.read(NAME, 0, COUNT))
    assert failure.value.retriable


def test_what_is_deleted_is_told_before_what_follows(reader, broker):
    with SyncAdmin(broker.bootstrap) as admin:
        admin.delete_records("t", 0, 105)
    first, *others = reader.read(NAME, 0, COUNT)
    assert (first.first_offset, first.end_offset) == (0, 105)
    assert isinstance(first.reason, errors.OffsetOutOfRange)
    assert [base for chunk in others for base in starts(chunk)] == list(
        range(100, COUNT, PER_BATCH)
    )
    assert [tuple(each)[:2] for each in reader.read(NAME, 3, 9)] == [(3, 9)]  # all of it


def test_what_was_never_there_is_a_gap_and_no_endless_wait(reader):
    *_, last = reader.read(NAME, COUNT - 1, COUNT + 50)
    assert last == Gap(COUNT, COUNT + 50, None)
    assert [type(each) for each in reader.read(NAME, COUNT + 10, COUNT + 50)] == [Gap]


def test_little_is_held_ahead_of_a_slow_reader(reader, cluster, thread):
    connection = thread.call(cluster.any_connection())
    before = connection._last_id
    chunks = reader.read(NAME, 0, COUNT)
    taken = next(chunks)
    for _ in range(20):
        thread.run(lambda: None)  # the loop has turned: what can be fetched was asked for
        thread.call(cluster.refresh(["t"]))
    asked = connection._last_id - before - 20
    # Who leads the partition; one chunk here, those that wait, and one that waits to wait.
    assert asked <= 3 + MAX_WAITING_CHUNKS, "it fetches on and on"
    assert starts(taken)
    chunks.close()
