"""A producer against a real broker."""

# Records are sent here without waiting for each.
# mypy: disable-error-code="unused-awaitable"

import asyncio
import gc
import weakref
from datetime import UTC, datetime
from zlib import crc32

import pytest

from seglog import Admin, Consumer, Producer, errors
from seglog.client.embedded import embedded


@pytest.fixture
async def broker():
    async with embedded() as running:
        yield running


async def create(broker, topic="t", partitions=1, **config):
    async with Admin(broker.bootstrap) as admin:
        await admin.create_topic(topic, partitions, config)


async def read_all(broker, topic="t"):
    """All records of a topic, by partition."""
    found: dict[int, list] = {}
    async with Consumer(topic, bootstrap=broker.bootstrap, start="earliest") as consumer:
        while any((await consumer.lag()).values()):
            for record in await consumer.getmany(10_000, 5):
                found.setdefault(record.partition, []).append(record)
    return found


async def test_a_record_comes_back_as_it_was_sent(broker):
    await create(broker)
    when = datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=UTC)
    async with Producer(broker.bootstrap) as producer:
        delivery = await producer.send(
            "t", "größe", key="k", headers={"a": "x", "b": None}, timestamp=when
        )
        metadata = await delivery
    (record,) = (await read_all(broker))[0]
    assert (metadata.topic, metadata.partition, metadata.offset) == ("t", 0, 0)
    assert metadata.timestamp_us == record.timestamp_us
    assert (record.value, record.key) == ("größe".encode(), b"k")
    assert record.headers == (("a", b"x"), ("b", None))
    assert record.timestamp == when


async def test_records_of_one_batch_may_differ_in_what_they_have(broker):
    await create(broker)
    async with Producer(broker.bootstrap, linger_ms=1000) as producer:
        for fields in (
            {"value": b"plain"},
            {"value": b"keyed", "key": b"k"},
            {"value": b"timed", "timestamp": 7},
            {"value": None, "key": b"gone"},
            {"value": b"headed", "headers": [("h", b"1"), ("h", b"2")]},
            {"value": bytearray(b"last")},
        ):
            await producer.send("t", **fields)
    records = (await read_all(broker))[0]
    assert [r.value for r in records] == [b"plain", b"keyed", b"timed", None, b"headed", b"last"]
    assert [r.key for r in records] == [None, b"k", None, b"gone", None, None]
    assert records[2].timestamp_us == 7
    assert records[4].headers == (("h", b"1"), ("h", b"2"))
    assert records[3].is_tombstone


async def test_every_delivery_of_many_batches_knows_its_own_offset(broker):
    await create(broker)
    async with Producer(broker.bootstrap, batch_bytes=1000) as producer:
        deliveries = [await producer.send("t", b"%d" % n) for n in range(500)]
        found = [await delivery for delivery in deliveries]
    assert [metadata.offset for metadata in found] == list(range(500))
    assert [r.value for r in (await read_all(broker))[0]] == [b"%d" % n for n in range(500)]


async def test_keys_choose_partitions_as_crc32_says_in_send_and_in_send_batch(broker):
    await create(broker, partitions=5)
    keys = [b"key-%d" % n for n in range(200)]
    async with Producer(broker.bootstrap) as producer:
        for key in keys:
            await producer.send("t", key, key=key)
        delivery = await producer.send_batch("t", keys, keys)
        assert sum(part.record_count for part in await delivery) == 200
    for partition, records in (await read_all(broker)).items():
        mine = [key for key in keys if crc32(key) % 5 == partition]
        assert [r.value for r in records] == mine + mine


async def test_records_without_a_key_go_round_batch_by_batch(broker):
    await create(broker, partitions=3)
    async with Producer(broker.bootstrap, batch_bytes=2000) as producer:
        for n in range(600):
            await producer.send("t", b"%04d" % n)
        await producer.send_batch("t", [b"%04d" % n for n in range(600, 1200)])
    found = await read_all(broker)
    assert sorted(found) == [0, 1, 2]
    for records in found.values():
        values = [r.value for r in records]
        assert values == sorted(values)
        assert len(values) > 200
    assert sorted(r.value for rs in found.values() for r in rs) == [
        b"%04d" % n for n in range(1200)
    ]


async def test_a_batch_in_bulk_stays_behind_what_was_sent_before_it(broker):
    await create(broker)
    async with Producer(broker.bootstrap, linger_ms=1000) as producer:
        await producer.send("t", b"0", partition=0)
        await producer.send_batch("t", [b"1", b"2"], partition=0, timestamps=[5, 6])
        await producer.send("t", b"3", partition=0)
    records = (await read_all(broker))[0]
    assert [r.value for r in records] == [b"0", b"1", b"2", b"3"]
    assert [r.timestamp_us for r in records[1:3]] == [5, 6]


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
async def test_compressed_batches_read_the_same(broker, codec):
    await create(broker)
    values = [b"the same again" * 10] * 3000
    async with Producer(broker.bootstrap, compression=codec) as producer:
        await producer.send_batch("t", values)
    assert [r.value for r in (await read_all(broker))[0]] == values
    assert broker.broker.topics.partition("t", 0).log.size_bytes < 20_000


async def test_what_cannot_be_a_record_is_refused_at_once_and_harms_no_other(broker):
    await create(broker)
    async with Producer(broker.bootstrap) as producer:
        await producer.send("t", b"before")
        for wrong in (
            {"value": 5},
            {"value": b"x", "key": 5},
            {"value": b"x", "headers": {5: b"x"}},
            {"value": b"x", "timestamp": datetime(2024, 1, 1)},
            {"value": bytes(17 << 20)},
        ):
            with pytest.raises(errors.BadBatch):
                await producer.send("t", **wrong)
        with pytest.raises(errors.UnknownPartition):
            await producer.send("t", b"x", partition=1)
        with pytest.raises(errors.BadBatch):
            await producer.send_batch("t", [b"x"], keys=[])
        with pytest.raises(errors.UnknownTopic):
            await producer.send("nowhere", b"x")
        await producer.send("t", b"after")
    assert [r.value for r in (await read_all(broker))[0]] == [b"before", b"after"]


async def test_an_empty_bulk_is_done_at_once(broker):
    await create(broker)
    async with Producer(broker.bootstrap) as producer:
        assert await (await producer.send_batch("t", [])) == []


async def test_a_broker_that_creates_topics_does_so_for_a_producer(tmp_path):
    async with (
        embedded(tmp_path, auto_create_topics=True) as broker,
        Producer(broker.bootstrap) as producer,
    ):
        assert (await producer.send_and_wait("new", b"x")).offset == 0


async def test_a_full_buffer_makes_send_wait_and_nothing_is_lost(broker):
    await create(broker, partitions=2)
    async with Producer(broker.bootstrap, buffer_bytes=20_000, batch_bytes=5_000) as producer:

        async def send_some(name):
            for n in range(500):
                await producer.send("t", b"%d %04d" % (name, n) + bytes(100), partition=name % 2)
                assert producer._accumulator.buffered_bytes < 20_000 + 10 * 400

        await asyncio.gather(*map(send_some, range(8)))
    values = [r.value for records in (await read_all(broker)).values() for r in records]
    assert len(set(values)) == len(values) == 4000


async def test_flush_waits_for_everything_sent_before_it(broker):
    await create(broker)
    async with Producer(broker.bootstrap, linger_ms=60_000) as producer:
        deliveries = [await producer.send("t", b"x") for _ in range(10)]
        assert not any(delivery.is_done for delivery in deliveries)
        await producer.flush()
        assert all(delivery.is_done for delivery in deliveries)
        await producer.flush()


async def test_closing_sends_what_is_left_and_twice_is_harmless(broker):
    await create(broker)
    producer = Producer(broker.bootstrap, linger_ms=60_000)
    await producer.start()
    delivery = await producer.send("t", b"x")
    await producer.close()
    await producer.close()
    assert (await delivery).offset == 0
    with pytest.raises(errors.ClientClosed):
        await producer.send("t", b"y")


async def test_a_closed_producer_is_not_kept_until_its_linger_would_be_over(broker):
    await create(broker)
    producer = Producer(broker.bootstrap, linger_ms=3_600_000)
    async with producer:
        await producer.send("t", b"x")
    kept = weakref.ref(producer)
    del producer
    gc.collect()
    assert kept() is None


async def test_a_producer_that_is_not_open_says_so():
    with pytest.raises(errors.ClientClosed):
        await Producer("127.0.0.1:1").send("t", b"x")


async def test_no_broker_is_an_error_of_the_opening():
    with pytest.raises(errors.NoBroker):
        async with Producer("127.0.0.1:1", request_timeout_s=0.1):
            pass


async def test_records_of_a_topic_that_was_deleted_fail_by_name(broker):
    await create(broker)
    async with Producer(broker.bootstrap) as producer:
        await producer.send_and_wait("t", b"x")
        async with Admin(broker.bootstrap) as admin:
            await admin.delete_topic("t")
        with pytest.raises(errors.UnknownTopic):
            await producer.send_and_wait("t", b"y")


async def test_a_topic_made_anew_is_written_from_its_start(broker):
    await create(broker)
    async with Producer(broker.bootstrap) as producer:
        await producer.send_and_wait("t", b"old")
        async with Admin(broker.bootstrap) as admin:
            await admin.delete_topic("t")
            await admin.create_topic("t", 1)
        # The new log does not know this producer: it goes on in a new epoch.
        assert (await producer.send_and_wait("t", b"new")).offset == 0
        assert (await producer.send_and_wait("t", b"newer")).offset == 1


async def test_partitions_that_were_added_can_be_sent_to_once_they_are_asked_for(tmp_path):
    async with embedded(tmp_path) as broker, Admin(broker.bootstrap) as admin:
        await admin.create_topic("t", partitions=1)
        async with Producer(broker.bootstrap) as producer:
            assert await producer.partitions_for("t") == 1
            await admin.alter_topic("t", partitions=3)

            assert await producer.partitions_for("t", fresh=True) == 3
            metadata = await producer.send_and_wait("t", b"x", partition=2)

    assert (metadata.partition, metadata.offset) == (2, 0)
