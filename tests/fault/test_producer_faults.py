"""A producer whose broker refuses, forgets and stays silent: each record once, in its order."""

# Records are sent here without waiting for each.
# mypy: disable-error-code="unused-awaitable"

import asyncio

import pytest

from seglog import Producer, errors

from tests.proxy import running_proxy
from tests.scripted_broker import scripted_broker


@pytest.fixture
async def broker():
    async with scripted_broker() as running:
        yield running


def values(count):
    return [b"%03d" % n for n in range(count)]


async def send_in_batches(producer, records):
    """Each record a batch of its own."""
    return [await producer.send_batch("t", [record]) for record in records]


@pytest.mark.parametrize("place", range(8))
async def test_an_error_that_passes_is_followed_by_the_same_batches_in_order(broker, place):
    broker.steps.extend([None] * place + [lambda _: errors.StorageFull("full")])
    async with Producer(broker.bootstrap) as producer:
        deliveries = await send_in_batches(producer, values(12))
        offsets = [(await delivery)[0].offset for delivery in deliveries]
    assert broker.values["t", 0] == values(12)
    assert offsets == list(range(12))


async def test_a_broker_that_forgot_the_producer_gets_a_new_epoch(broker):
    broker.steps.extend([None] * 3 + [lambda b: b.forget_producers()])
    async with Producer(broker.bootstrap) as producer:
        for delivery in await send_in_batches(producer, values(12)):
            await delivery
    assert broker.values["t", 0] == values(12)
    assert broker.epochs == 1


async def test_a_refused_batch_fails_alone_and_the_next_ones_arrive(broker):
    broker.steps.extend([None, None, lambda _: errors.BatchTooLarge("too large")])
    async with Producer(broker.bootstrap) as producer:
        deliveries = await send_in_batches(producer, values(10))
        with pytest.raises(errors.BatchTooLarge):
            await deliveries[2]
        for number, delivery in enumerate(deliveries):
            if number != 2:
                await delivery
    assert broker.values["t", 0] == [v for v in values(10) if v != b"002"]


async def test_a_duplicate_too_old_to_be_known_counts_as_done(broker):
    broker.steps.append(lambda _: errors.DuplicateSequence("long ago"))
    async with Producer(broker.bootstrap) as producer:
        assert (await producer.send_and_wait("t", b"x")).offset == -1


async def test_a_fenced_producer_fails_for_good(broker):
    broker.steps.append(lambda _: errors.ProducerFenced("another"))
    producer = Producer(broker.bootstrap)
    await producer.start()
    with pytest.raises(errors.ProducerFenced):
        await producer.send_and_wait("t", b"x")
    with pytest.raises(errors.ProducerFenced):
        await producer.send("t", b"y")
    await producer.close()


async def test_what_is_not_acknowledged_in_time_is_told_by_its_delivery(broker):
    async with running_proxy(broker.bootstrap) as proxy:
        async with Producer(proxy.bootstrap, delivery_timeout_s=2) as producer:
            await producer.send_and_wait("t", b"000")
            proxy.open_to_broker.clear()
            with pytest.raises(errors.DeliveryTimeout):
                await producer.send_and_wait("t", b"001")
            # It was told: neither flush nor close tell it again.
            await producer.flush()
        proxy.open_to_broker.set()


async def test_what_nobody_awaited_is_told_by_flush_and_else_by_close(broker):
    async with running_proxy(broker.bootstrap) as proxy:
        producer = Producer(proxy.bootstrap, delivery_timeout_s=0.05)
        await producer.start()
        await producer.partitions_for("t")
        proxy.open_to_broker.clear()
        await producer.send("t", b"a")
        await producer.send("t", b"b")
        with pytest.raises(errors.DeliveryTimeout, match="2 records"):
            await producer.flush()
        await producer.send("t", b"c")
        with pytest.raises(errors.DeliveryTimeout, match="1 records"):
            await producer.close()
        await producer.close()
        proxy.open_to_broker.set()


async def test_an_error_in_the_block_is_not_hidden_by_what_was_not_delivered(broker):
    async def fail(proxy):
        async with Producer(proxy.bootstrap, delivery_timeout_s=0.05) as producer:
            await producer.partitions_for("t")
            proxy.open_to_broker.clear()
            await producer.send("t", b"a")
            raise KeyError

    async with running_proxy(broker.bootstrap) as proxy:
        with pytest.raises(KeyError) as caught:
            await fail(proxy)
        assert "1 records were not delivered" in caught.value.__notes__[0]
        proxy.open_to_broker.set()


@pytest.mark.parametrize("arrives", [False, True])
async def test_after_a_timeout_the_next_records_are_neither_lost_nor_doubled(broker, arrives):
    """Whether or not the record that timed out is in the log, what follows is there once."""
    async with (
        running_proxy(broker.bootstrap) as proxy,
        Producer(proxy.bootstrap, delivery_timeout_s=3) as producer,
    ):
        await producer.send_and_wait("t", b"000")
        gate = proxy.open_to_client if arrives else proxy.open_to_broker
        gate.clear()
        with pytest.raises(errors.DeliveryTimeout):
            await producer.send_and_wait("t", b"001")
        proxy.cut_all()
        gate.set()
        for record in (b"002", b"003", b"004"):
            await producer.send_and_wait("t", record)
    kept = broker.values["t", 0]
    assert kept == ([b"000", b"001"] if arrives else [b"000"]) + [b"002", b"003", b"004"]


async def test_a_cancelled_close_stops_at_once_and_tells_the_deliveries(broker):
    async with running_proxy(broker.bootstrap) as proxy:
        producer = Producer(proxy.bootstrap)
        await producer.start()
        await producer.partitions_for("t")
        proxy.open_to_broker.clear()
        delivery = await producer.send("t", b"x")
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(errors.ClientClosed):
            await delivery
        proxy.open_to_broker.set()


async def test_without_idempotence_records_arrive_too(broker):
    async with Producer(broker.bootstrap, idempotent=False, max_in_flight=1) as producer:
        broker.steps.extend([None, lambda _: errors.StorageFull("full")])
        for delivery in await send_in_batches(producer, values(6)):
            await delivery
    assert broker.values["t", 0] == values(6)
