"""Connections cut at any byte, either way: no record lost, none doubled, their order kept."""

# Records are sent here without waiting for each.
# mypy: disable-error-code="unused-awaitable"

import asyncio

import pytest

from seglog import Admin, Consumer, Producer
from seglog.client.embedded import embedded

from tests.proxy import PASS, Plan, running_proxy

PARTITIONS = 2
ROUNDS = 4
SAMPLE = 24  # cut positions of each direction in a quick run


@pytest.fixture
async def broker():
    async with embedded() as running:
        yield running


async def converse(bootstrap, topic):
    """Send a few batches to each partition; what each partition must hold then."""
    expected: dict[int, list] = {number: [] for number in range(PARTITIONS)}
    async with Producer(bootstrap, linger_ms=0, batch_bytes=400) as producer:
        for turn in range(ROUNDS):
            for number in range(PARTITIONS):
                values = [b"%d/%d/%d" % (number, turn, n) for n in range(8)]
                await producer.send_batch(topic, values, partition=number)
                await producer.send(topic, b"%d/%d/last" % (number, turn), partition=number)
                expected[number] += [*values, b"%d/%d/last" % (number, turn)]
    return expected


async def read(bootstrap, topic, count):
    """`count` records of a topic, by partition, and no more than are there."""
    found: dict[int, list] = {number: [] for number in range(PARTITIONS)}
    options = {"bootstrap": bootstrap, "start": "earliest", "partition_max_bytes": 500}
    async with Consumer(topic, **options) as consumer:
        while sum(map(len, found.values())) < count:
            for record in await consumer.getmany(1000, 10):
                found[record.partition].append(record.value)
        assert not any((await consumer.lag()).values())
    return found


def planned(plans):
    return lambda number: plans.get(number, PASS)


def positions(length):
    """Every byte of the first frames, where most can go wrong, then evenly to the end."""
    step = max(1, length // SAMPLE)
    return sorted({*range(0, 8, 3), *range(0, length, step), length - 1})


async def measure(broker, work):
    async with running_proxy(broker.bootstrap) as proxy:
        await work(proxy.bootstrap)
        return proxy.bytes_to_broker, proxy.bytes_to_client


async def create(broker, topic):
    async with Admin(broker.bootstrap) as admin:
        await admin.create_topic(topic, PARTITIONS)


async def check_producer_cuts(broker, cuts):
    for number, plan in enumerate(cuts):
        topic = f"cut-{number}"
        await create(broker, topic)
        # The first two connections are cut, so that what is sent again is cut too.
        plans = {0: plan, 1: plan}
        async with running_proxy(broker.bootstrap, planned(plans)) as proxy:
            expected = await converse(proxy.bootstrap, topic)
        count = sum(map(len, expected.values()))
        assert await read(broker.bootstrap, topic, count) == expected, plan


async def test_a_producer_cut_at_any_byte_it_sends_loses_and_doubles_nothing(broker):
    await create(broker, "measure")
    sent, _ = await measure(broker, lambda at: converse(at, "measure"))
    await check_producer_cuts(broker, [Plan(to_broker=at) for at in positions(sent)])


async def test_a_producer_cut_at_any_byte_it_receives_loses_and_doubles_nothing(broker):
    await create(broker, "measure")
    _, received = await measure(broker, lambda at: converse(at, "measure"))
    await check_producer_cuts(broker, [Plan(to_client=at) for at in positions(received)])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("direction", ["to_broker", "to_client"])
async def test_a_producer_cut_at_each_single_byte_loses_and_doubles_nothing(broker, direction):
    await create(broker, "measure")
    lengths = await measure(broker, lambda at: converse(at, "measure"))
    length = lengths[0] if direction == "to_broker" else lengths[1]
    await check_producer_cuts(broker, [Plan(**{direction: at}) for at in range(length)])


@pytest.mark.parametrize("direction", ["to_broker", "to_client"])
async def test_a_consumer_cut_at_any_byte_reads_each_record_once(broker, direction):
    await create(broker, "t")
    expected = await converse(broker.bootstrap, "t")
    count = sum(map(len, expected.values()))
    lengths = await measure(broker, lambda at: read(at, "t", count))
    length = lengths[0] if direction == "to_broker" else lengths[1]
    for at in positions(length):
        plans = {0: Plan(**{direction: at}), 1: Plan(**{direction: at // 2})}
        async with running_proxy(broker.bootstrap, planned(plans)) as proxy:
            assert await read(proxy.bootstrap, "t", count) == expected, (direction, at)


@pytest.mark.parametrize("piece_bytes", [1, 3, 100])
async def test_bytes_that_come_in_pieces_are_the_same_conversation(broker, piece_bytes):
    await create(broker, "t")
    plan = Plan(piece_bytes=piece_bytes)
    async with running_proxy(broker.bootstrap, lambda _: plan) as proxy:
        expected = await converse(proxy.bootstrap, "t")
        count = sum(map(len, expected.values()))
        assert await read(proxy.bootstrap, "t", count) == expected


async def test_an_idle_producer_whose_connection_went_away_sends_on(broker):
    await create(broker, "t")
    async with (
        running_proxy(broker.bootstrap) as proxy,
        Producer(proxy.bootstrap) as producer,
    ):
        for number in range(5):
            found = await producer.send_and_wait("t", b"x", partition=0)
            assert found.offset == number
            proxy.cut_all()


async def test_a_broker_that_restarts_is_found_again(tmp_path):
    """On another port, behind the same address."""
    async with embedded(tmp_path) as first, running_proxy(first.bootstrap) as proxy:
        await create(first, "t")
        async with (
            Producer(proxy.bootstrap) as producer,
            Consumer("t", bootstrap=proxy.bootstrap, start="earliest") as consumer,
        ):
            await producer.send_and_wait("t", b"before", partition=0)
            assert (await anext(consumer)).value == b"before"
            await first.broker.stop()
            delivery = await producer.send("t", b"between", partition=0)
            async with embedded(tmp_path) as second:
                proxy.retarget(second.bootstrap)
                assert (await delivery).offset == 1
                assert (await anext(consumer)).value == b"between"


async def cancel_after(steps, work):
    """Start `work`, let the loop turn `steps` times, cancel it. True: it was done before."""
    task = asyncio.ensure_future(work)
    for _ in range(steps):
        await asyncio.sleep(0)
    if task.done():
        await task
        return True
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return False


async def test_a_producer_is_usable_after_any_call_was_cancelled_anywhere(broker):
    await create(broker, "t")
    sent: list[bytes] = []
    waited_for: list[bytes] = []
    async with Producer(broker.bootstrap, batch_bytes=300, buffer_bytes=600) as producer:

        def value():
            sent.append(b"%06d" % len(sent))
            return sent[-1]

        for steps in range(12):
            await cancel_after(steps, producer.send("t", value(), partition=0))
            await cancel_after(steps, producer.send_and_wait("t", value(), partition=0))
            values = [value() for _ in range(40)]
            await cancel_after(steps, producer.send_batch("t", values, partition=0))
            await cancel_after(steps, producer.flush())
            waited_for.append(value())
            await producer.send_and_wait("t", waited_for[-1], partition=0)
    async with Admin(broker.bootstrap) as admin:
        end = (await admin.list_offsets("t"))[0].offset
    found = (await read(broker.bootstrap, "t", end))[0]
    # What a cancelled call took is sent or not, but in its place and once.
    assert found == sorted(set(found))
    assert set(waited_for) <= set(found)


async def test_opening_may_be_cancelled_anywhere(broker):
    await create(broker, "t")
    for steps in range(40):
        producer = Producer(broker.bootstrap)
        await cancel_after(steps, producer.start())
        await producer.close()
        consumer = Consumer("t", bootstrap=broker.bootstrap)
        await cancel_after(steps, consumer.start())
        await consumer.close()


async def test_a_consumer_loses_nothing_when_reads_are_cancelled_anywhere(broker):
    await create(broker, "t")
    expected = await converse(broker.bootstrap, "t")
    count = sum(map(len, expected.values()))
    found: dict[int, list] = {number: [] for number in range(PARTITIONS)}

    async def take(consumer):
        for record in await consumer.getmany(3):
            found[record.partition].append(record.value)

    async def take_one(consumer):
        record = await anext(consumer)
        found[record.partition].append(record.value)

    async def take_batch(consumer):
        columns = await anext(consumer.batches())
        found[columns.partition].extend(columns.values)

    options = {"bootstrap": broker.bootstrap, "start": "earliest", "partition_max_bytes": 200}
    async with Consumer("t", **options) as consumer:
        for steps in range(10_000):
            if sum(map(len, found.values())) == count:
                break
            for call in (take, take_one, take_batch, take_one):
                await cancel_after(steps % 7, call(consumer))
                # A call that was cancelled after it had its records would have lost them.
        for number in range(PARTITIONS):
            assert consumer.position("t", number) == len(expected[number])
    assert found == expected
