"""A consumer against a real broker."""

# Records are sent here without waiting for each.
# mypy: disable-error-code="unused-awaitable"

import asyncio
import logging
from datetime import UTC, datetime

import pytest

from seglog import Admin, Consumer, Producer, TopicPartition, errors
from seglog.client.embedded import embedded

from tests.groups import eventually


@pytest.fixture
async def broker():
    async with embedded() as running:
        yield running


@pytest.fixture
async def admin(broker):
    async with Admin(broker.bootstrap) as opened:
        yield opened


@pytest.fixture
async def producer(broker):
    async with Producer(broker.bootstrap) as opened:
        yield opened


def consumer_of(broker, *topics, start="earliest", **options):
    return Consumer(*topics, bootstrap=broker.bootstrap, start=start, **options)


async def fill(admin, producer, count=100, topic="t", partitions=1, per_batch=10, **config):
    """A topic with the numbers 0 to `count` - 1 in each partition, and as their timestamps."""
    await admin.create_topic(topic, partitions, config)
    for number in range(partitions):
        for start in range(0, count, per_batch):
            numbers = range(start, min(count, start + per_batch))
            values = [b"%d" % n for n in numbers]
            await producer.send_batch(topic, values, partition=number, timestamps=list(numbers))
    await producer.flush()


def numbers(records):
    return [int(record.value) for record in records]


async def test_records_come_in_order_one_by_one(broker, admin, producer):
    await fill(admin, producer)
    async with consumer_of(broker, "t") as consumer:
        found = []
        async for record in consumer:
            found.append(record)
            assert consumer.position("t", 0) == record.offset + 1
            if len(found) == 100:
                break
    assert numbers(found) == [r.offset for r in found] == list(range(100))


async def test_batches_come_as_columns_and_go_on_where_records_stopped(broker, admin, producer):
    await fill(admin, producer)
    async with consumer_of(broker, "t") as consumer:
        first = await consumer.getmany(25)
        batches = consumer.batches()
        rest = await anext(batches)
        assert list(rest.offsets) == list(range(25, 30))
        assert consumer.position("t", 0) == 30
        whole = await anext(batches)
        assert whole.values == [b"%d" % n for n in range(30, 40)]
        assert whole.to_arrow().num_rows == 10
        assert (await anext(consumer)).offset == 40
    assert numbers(first) == list(range(25))


async def test_nothing_to_read_is_an_empty_list(broker, admin, producer):
    await fill(admin, producer, count=3)
    async with consumer_of(broker, "t", start="latest") as consumer:
        assert await consumer.getmany(10, timeout=0) == []
        assert await consumer.getmany(10, timeout=0.01) == []
        assert await consumer.lag() == {("t", 0): 0}
        await producer.send("t", b"3")
        assert numbers(await consumer.getmany(10, timeout=10)) == [3]


async def test_a_reader_that_waits_gets_what_is_sent_later(broker, admin, producer):
    await fill(admin, producer, count=1)
    async with consumer_of(broker, "t", start="latest", max_wait_ms=60_000) as consumer:
        waiting = asyncio.ensure_future(anext(consumer))
        await producer.send_and_wait("t", b"7")
        assert (await waiting).value == b"7"


async def test_several_topics_and_assigned_partitions(broker, admin, producer):
    await fill(admin, producer, topic="a", partitions=2, count=20)
    await fill(admin, producer, topic="b", count=20)
    async with consumer_of(broker, ["a", "b"]) as consumer:
        assert consumer.assignment == [("a", 0), ("a", 1), ("b", 0)]
        found: list = []
        while len(found) < 60:
            found += await consumer.getmany(100)
        for name in consumer.assignment:
            mine = [r for r in found if (r.topic, r.partition) == name]
            assert numbers(mine) == list(range(20))
    async with consumer_of(broker, assign=[("a", 1)], start=15) as consumer:
        assert consumer.assignment == [TopicPartition("a", 1)]
        assert numbers(await consumer.getmany(100)) == list(range(15, 20))


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 0),
        (37, 37),
        (datetime.fromtimestamp(0, UTC).replace(microsecond=42), 42),
        ({("t", 0): 55}, 55),
        ({}, 0),
    ],
)
async def test_reading_begins_where_it_was_asked_to(broker, admin, producer, start, first):
    await fill(admin, producer)
    async with consumer_of(broker, "t", start=start) as consumer:
        assert (await anext(consumer)).offset == first


async def test_a_seek_does_not_wait_for_the_poll_at_the_end(broker, admin, producer):
    await admin.create_topic("t", 1)
    await producer.send_batch("t", [b"%d" % number for number in range(10)])
    await producer.flush()
    poll_ms = 50_000  # twenty of these would be far longer than this test may take
    async with Consumer(
        "t", bootstrap=broker.bootstrap, start="earliest", max_wait_ms=poll_ms
    ) as consumer:
        for again in range(20):
            values: list[bytes | None] = []
            while len(values) < 10:
                values += [record.value for record in await consumer.getmany(10)]
            assert values == [b"%d" % number for number in range(10)], again
            await consumer.seek_to_start()


async def test_seeks_in_quick_succession_give_their_memory_back(broker, admin, producer):
    await admin.create_topic("t", 1)
    await producer.send_batch("t", [b"%d" % number for number in range(10)])
    await producer.flush()
    async with Consumer(
        "t", bootstrap=broker.bootstrap, start="earliest", max_wait_ms=50_000
    ) as consumer:
        for number in range(200):
            consumer.seek("t", 0, number % 10)
            for _ in range(number % 5):
                await asyncio.sleep(0)  # so that a poll is given up at each of its stages
        consumer.seek("t", 0, 3)
        assert (await consumer.getmany(1))[0].offset == 3


async def test_seeking_drops_what_was_fetched(broker, admin, producer):
    await fill(admin, producer)
    async with consumer_of(broker, "t") as consumer:
        assert (await anext(consumer)).offset == 0
        consumer.seek("t", 0, 73)
        assert consumer.position("t", 0) == 73
        assert numbers(await consumer.getmany(3)) == [73, 74, 75]
        await consumer.seek_to_start()
        assert (await anext(consumer)).offset == 0
        await consumer.seek_to_time(50)
        assert (await anext(consumer)).offset == 50
        assert await consumer.lag() == {("t", 0): 49}
        await consumer.seek_to_time(datetime(2100, 1, 1, tzinfo=UTC))
        assert consumer.position("t", 0) == 100
        await consumer.seek_to_time(datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC))
        assert consumer.position("t", 0) == 0
        await consumer.seek_to_end(("t", 0))
        assert consumer.position("t", 0) == (await consumer.end_offsets())["t", 0] == 100


async def test_a_paused_partition_gives_nothing_and_then_goes_on(broker, admin, producer):
    await fill(admin, producer, partitions=2)
    async with consumer_of(broker, "t") as consumer:
        first = await anext(consumer)
        paused = first.partition
        consumer.pause(("t", paused))
        assert consumer.paused() == [("t", paused)]
        found: list = []
        while len(found) < 100:
            found += await consumer.getmany(1000)
        assert {r.partition for r in found} == {1 - paused}
        assert await consumer.getmany(10, timeout=0) == []
        consumer.resume()
        found = []
        while len(found) < 99:
            found += await consumer.getmany(1000)
        assert numbers(found) == list(range(1, 100))


async def test_fetching_ahead_is_bounded_and_moves_no_position(broker, admin, producer):
    await fill(admin, producer, count=20_000, per_batch=100)
    options = {"max_buffer_bytes": 100_000, "partition_max_bytes": 50_000}
    async with consumer_of(broker, "t", **options) as consumer:
        await anext(consumer)
        found = 1
        while found < 20_000:
            found += len(await consumer.getmany(100))
            assert consumer.position("t", 0) == found
            assert consumer._fetcher._buffered_bytes <= 100_000


async def test_lost_records_raise_where_nothing_else_was_asked_for(broker, admin, producer):
    await fill(admin, producer)
    await admin.delete_records("t", 0, 40)
    async with consumer_of(broker, "t", start=5) as consumer:
        for _ in range(2):  # it stays lost until somebody decides
            with pytest.raises(errors.OffsetOutOfRange) as caught:
                await anext(consumer)
            assert caught.value.log_start == 40
        consumer.seek("t", 0, caught.value.log_start)
        assert (await anext(consumer)).offset == 40


@pytest.mark.parametrize(("on_reset", "first"), [("earliest", 40), ("latest", 100)])
async def test_a_jump_over_lost_records_is_reported(
    broker, admin, producer, on_reset, first, caplog
):
    await fill(admin, producer)
    await admin.delete_records("t", 0, 40)
    told = []
    options = {"on_reset": on_reset, "on_data_loss": lambda *lost: told.append(lost)}
    with caplog.at_level(logging.WARNING):
        async with consumer_of(broker, "t", start=5, **options) as consumer:
            reading = asyncio.ensure_future(anext(consumer))
            await eventually(lambda: has_jumped(told), True)  # to what is the end now
            await producer.send_and_wait("t", b"100")
            assert (await reading).offset == first
    assert told == [("t", 0, 5, first)]
    assert "instead of 5" in caplog.text


async def has_jumped(told):
    return bool(told)


async def test_records_before_an_error_come_before_it(broker, admin, producer):
    """What is buffered is read; what the error tells comes in its place."""
    await fill(admin, producer)
    async with consumer_of(broker, "t", max_wait_ms=10) as consumer:
        found = await consumer.getmany(100)
        assert numbers(found) == list(range(100))
        await admin.delete_topic("t")
        with pytest.raises(errors.UnknownTopic):
            await anext(consumer)


async def test_a_compacted_gap_is_no_loss(broker, admin, producer):
    """Offsets may be missing, and still every record comes once and in order."""
    await admin.create_topic("t", 1, {"cleanup.policy": "compact"})
    for n in range(50):
        await producer.send_and_wait("t", b"%d" % n, key=b"%d" % (n % 5))
    async with consumer_of(broker, "t") as consumer:
        found = await consumer.getmany(50)
        while consumer.position("t", 0) < 50:
            found += await consumer.getmany(50)
    offsets = [r.offset for r in found]
    assert offsets == sorted(set(offsets))
    assert [int(r.value) for r in found] == offsets


async def test_what_cannot_be_read_is_refused(broker, admin):
    with pytest.raises(errors.UnknownTopic):
        async with consumer_of(broker, "nowhere"):
            pass
    await admin.create_topic("t", 1)
    with pytest.raises(errors.UnknownPartition):
        async with consumer_of(broker, assign=[("t", 1)], start=0):
            pass
    async with consumer_of(broker, "t") as consumer:
        with pytest.raises(errors.UnknownPartition):
            consumer.seek("t", 1, 0)
    for wrong in ({}, {"topics": "t", "assign": [("t", 0)]}, {"topics": "t", "start": "middle"}):
        with pytest.raises(errors.BadConfig):
            Consumer(**wrong)


async def test_a_closed_consumer_says_so_also_to_who_waits(broker, admin, producer):
    await fill(admin, producer, count=1)
    consumer = consumer_of(broker, "t", start="latest")
    await consumer.start()
    waiting = asyncio.ensure_future(anext(consumer))
    await asyncio.sleep(0)
    await consumer.close()
    await consumer.close()
    with pytest.raises(errors.ClientClosed):
        await waiting
    with pytest.raises(errors.ClientClosed):
        await anext(consumer)


async def test_a_damaged_batch_is_named_and_never_given(broker, admin, producer, tmp_path):
    await fill(admin, producer, count=30, per_batch=10)
    (log,) = broker.data.glob("topic-t*/partition-0/*.log")
    data = bytearray(log.read_bytes())
    at = data.index(b"151617")  # cells lie back to back
    with log.open("r+b") as file:
        file.seek(at)
        file.write(b"X")
    async with consumer_of(broker, "t") as consumer:
        assert numbers(await consumer.getmany(10)) == list(range(10))
        for _ in range(2):
            with pytest.raises(errors.SeglogError, match="10"):
                await anext(consumer)
        consumer.seek("t", 0, 20)
        assert numbers(await consumer.getmany(10)) == list(range(20, 30))


async def test_several_batches_come_at_once_and_nothing_in_time_is_nothing(broker, admin, producer):
    await fill(admin, producer)
    async with consumer_of(broker, "t") as consumer:
        found: list[int] = []
        while len(found) < 100:
            batches = await consumer.get_batches(25)
            taken = [n for batch in batches for n in numbers(batch)]
            assert sum(len(batch) for batch in batches[:-1]) < 25  # no more than was asked for
            found += taken
            assert consumer.position("t", 0) == len(found)
        assert found == list(range(100))
        assert await consumer.get_batches(timeout=0) == []


async def test_what_was_taken_in_batches_is_committed_once_it_is_behind(broker, admin, producer):
    await fill(admin, producer, count=30)
    async with consumer_of(broker, "t", group="g") as consumer:
        first = await consumer.get_batches(10)
        assert sum(map(len, first)) == 10
        assert await consumer.get_batches(1)  # in hand when it closes

    assert (await admin.fetch_offsets("g"))[TopicPartition("t", 0)].offset == 10
