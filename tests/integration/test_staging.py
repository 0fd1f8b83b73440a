"""What waits for a commit: kept as long as it is needed, gone when it is not, and bounded."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgpack
import pytest

from seglog.protocol import api, errors, messages
from seglog.protocol.batch import encode_batch
from seglog.protocol.constants import KIB, MIB
from seglog.server.app import Broker
from seglog.server.fetch_waiters import FetchWaiter
from seglog.server.staging import STAGED_TOPIC
from seglog.server.transactions import TRANSACTIONS_TOPIC, Transaction

from tests.brokers import NOON_US, RawClient, broker_process, running_broker

NAME = "query-7"
SMALL = 4 * KIB
NEVER = 24 * 60 * 60 * 1000  # no housekeeping while a test runs


def stage_request(
    step: int, *values: bytes, name: str = NAME, topic: str = "out", partition: int = 0
) -> messages.StageRequest:
    batch = memoryview(encode_batch(values, timestamps=NOON_US))
    return messages.StageRequest(name, step, [messages.ProduceBatch(topic, partition, batch)])


async def stage(client: RawClient, step: int, *values: bytes, **options) -> int:
    result = (await client.call(api.STAGE, stage_request(step, *values, **options))).results[0]
    if result.error is not None:
        raise result.error.to_exception()
    position: int = result.position
    return position


async def commit(client: RawClient, step: int, *positions: int, name: str = NAME, is_last=False):
    request = messages.CommitStagedRequest(name, step, list(positions), is_last)
    return await client.call(api.COMMIT_STAGED, request)


async def small_segments(broker: Broker, client: RawClient) -> None:
    """Let `__staged` be there, and roll often."""
    await client.create("out", 4)
    await commit(client, 0, await stage(client, 0, b"first", name="first"), name="first")
    await broker.topics.alter(STAGED_TOPIC, None, {"segment.bytes": SMALL})


def staged_log(broker: Broker):
    return broker.topics.partition(STAGED_TOPIC, 0).log


async def until(condition: Callable[[], object]) -> None:
    """Let the broker, which runs in this loop, go on until it is so."""
    while not condition():  # noqa: ASYNC110 - the broker has no event for it
        await asyncio.sleep(0)


async def test_what_is_published_goes_from_disk(tmp_path):
    async with (
        running_broker(tmp_path, housekeeping_interval_ms=NEVER) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await small_segments(broker, client)
        for step in range(20):
            await stage(client, step, b"another attempt" * 100)
            await commit(client, step, await stage(client, step, b"x" * 1000))
        assert len(staged_log(broker).segments) > 10
        await broker.transactions.staging.trim()
        assert len(staged_log(broker).segments) == 1
        assert broker.transactions.staging.count == 0
        assert len(await client.values("out")) == 21


async def test_what_waits_stays_with_all_that_came_after_it(tmp_path):
    async with (
        running_broker(tmp_path, housekeeping_interval_ms=NEVER) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await small_segments(broker, client)
        waiting = await stage(client, 0, b"waits", name="other")
        for step in range(20):
            await commit(client, step, await stage(client, step, b"x" * 1000))
        await broker.transactions.staging.trim()
        assert staged_log(broker).log_start <= waiting
        await commit(client, 0, waiting, name="other")
        await broker.transactions.staging.trim()
        assert len(staged_log(broker).segments) == 1
        assert (await client.values("out"))[-1] == b"waits"


async def test_what_is_written_and_not_yet_known_is_not_trimmed(tmp_path):
    """The log has grown, and the one who staged has not yet heard of it."""
    async with (
        running_broker(tmp_path, housekeeping_interval_ms=NEVER) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await small_segments(broker, client)
        partition = broker.topics.partition(STAGED_TOPIC, 0)
        needed = []

        class Looker(FetchWaiter):
            """Called where the log grew, before anyone who waits for the append runs."""

            def __init__(self) -> None:
                pass

            def arrived(self, length: int) -> None:
                needed.append(broker.transactions.staging.first_needed(partition.log))

        looker = Looker()
        partition.waiters.add(looker)
        for step in range(10):
            position = await stage(client, step, b"x" * 3000)
            assert needed[-1] <= position
            await commit(client, step, position)
            await broker.transactions.staging.trim()
        partition.waiters.discard(looker)
        assert len(needed) == 10
        assert len(await client.values("out")) == 11


async def test_a_restart_knows_what_waits_and_what_does_not(tmp_path):
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await small_segments(broker, client)
        await commit(client, 0, await stage(client, 0, b"a" * 5000))
        waiting = [await stage(client, 1, b"b", partition=1), await stage(client, 1, b"c" * 5000)]
        count = broker.transactions.staging.count
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        assert broker.transactions.staging.count == count == 2
        with pytest.raises(errors.StagedDataGone):
            await commit(client, 1, 1)
        assert not (await commit(client, 1, *waiting)).was_done
        assert await client.values("out", 1) == [b"b"]
        assert broker.transactions.staging.count == 0


async def test_what_nobody_commits_expires(tmp_path):
    async with (
        running_broker(tmp_path, staged_retention_ms=1, housekeeping_interval_ms=10) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("out")
        position = await stage(client, 0, b"a")
        await until(lambda: not broker.transactions.staging.count)  # housekeeping comes by
        with pytest.raises(errors.StagedDataGone):
            await commit(client, 0, position)


async def test_a_decision_keeps_what_it_names_and_is_carried_out_by_housekeeping(tmp_path):
    """As after a decision that met a full disk: nobody asks for it again."""
    settings: dict[str, Any] = {"staged_retention_ms": 1, "housekeeping_interval_ms": 10}
    async with (
        running_broker(tmp_path, **settings) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("out", 1, max_batch_bytes=20_000)
        async with broker.transactions._turns.of(NAME):
            position = await stage(client, 0, b"x" * 10_000)
            # Decided, and then the topic does not take it.
            await client.call(
                api.ALTER_TOPIC, messages.AlterTopicRequest("out", None, {"max.batch.bytes": 500})
            )
            decided = Transaction(77, 0, False, (position,), NOON_US)
            await broker.transactions.save(NAME, decided)
        with pytest.raises(errors.BatchTooLarge):
            await commit(client, 0)
        assert await broker.transactions.expire() == 0
        assert broker.transactions.staging.count == 1
        assert await client.values("out") == []
        # When: the topic takes it again, housekeeping does the rest.
        await client.call(
            api.ALTER_TOPIC, messages.AlterTopicRequest("out", None, {"max.batch.bytes": 20_000})
        )
        while not await client.values("out"):
            pass
        assert (await commit(client, 0)).was_done
        assert await client.values("out") == [b"x" * 10_000]


async def test_a_commit_goes_on_when_the_driver_goes_away(tmp_path):
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await client.create("out")
        other = await RawClient.open(broker.port)
        positions = [await stage(other, 0, b"%d" % number) for number in range(50)]
        other.send(api.COMMIT_STAGED, messages.CommitStagedRequest(NAME, 0, positions))
        await other.writer.drain()
        await until(lambda: broker.transactions._commits)
        other.close()
        while len(await client.values("out")) < len(positions):
            pass
        assert (await commit(client, 0)).was_done


async def test_a_broker_that_stops_first_finishes_the_commits_it_took(tmp_path):
    async with running_broker(tmp_path) as broker:
        client = await RawClient.open(broker.port)
        await client.create("out")
        positions = [await stage(client, 0, b"%d" % number) for number in range(50)]
        client.send(api.COMMIT_STAGED, messages.CommitStagedRequest(NAME, 0, positions))
        await client.writer.drain()
        await until(lambda: broker.transactions._commits)
        client.close()
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        assert broker.transactions._table[NAME].is_done
        assert len(await client.values("out")) == len(positions)


async def test_the_number_of_staged_batches_is_bounded(tmp_path):
    async with (
        running_broker(tmp_path, max_staged_batches=3) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("out")
        positions = [await stage(client, 0, b"a") for _ in range(3)]
        with pytest.raises(errors.LimitExceeded, match=r"max\.staged\.batches"):
            await stage(client, 0, b"a")
        await commit(client, 0, *positions)
        await stage(client, 1, b"b")


async def test_refused_commits_leave_nothing_in_memory(tmp_path):
    async with (
        running_broker(tmp_path, max_transactions=1) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("out")
        await commit(client, 0)
        for number in range(20):
            with pytest.raises(errors.LimitExceeded, match=r"max\.transactions"):
                await commit(client, 0, name=f"other-{number}")
            assert not broker.transactions._turns.is_taken(f"other-{number}")


async def test_a_batch_that_the_topic_does_not_take_is_not_staged(tmp_path):
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await client.create("out", 1, max_batch_bytes=500)
        with pytest.raises(errors.BatchTooLarge):
            await stage(client, 0, b"x" * 1000)
        with pytest.raises(errors.UnknownTopic):
            await stage(client, 0, b"x", topic="nowhere")
        with pytest.raises(errors.UnknownPartition):
            await stage(client, 0, b"x", partition=7)
        assert broker.transactions.staging.count == 0


async def test_a_commit_that_cannot_be_published_is_not_decided(tmp_path):
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await client.create("out")
        position = await stage(client, 0, b"x" * 1000)
        with pytest.raises(errors.BadRequest, match="twice"):
            await commit(client, 0, position, position)
        await client.call(
            api.ALTER_TOPIC, messages.AlterTopicRequest("out", None, {"max.batch.bytes": 500})
        )
        with pytest.raises(errors.BatchTooLarge):
            await commit(client, 0, position)
        assert broker.transactions.last_step(NAME) == -1


async def test_a_last_step_is_remembered_as_long_as_it_can_be_repeated(tmp_path):
    settings: dict[str, Any] = {"staged_retention_ms": 60_000, "housekeeping_interval_ms": NEVER}
    async with (
        running_broker(tmp_path, **settings) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("out")
        transactions = broker.transactions
        await commit(
            client, 0, await stage(client, 0, b"job", name="job"), name="job", is_last=True
        )
        await commit(client, 0, await stage(client, 0, b"query"))
        assert await transactions.expire() == 0
        assert (await commit(client, 0, name="job")).was_done
        for name in ("job", NAME):
            known = transactions._table[name]
            await transactions.save(name, known._replace(time_us=known.time_us - 61_000_000))
        assert await transactions.expire() == 1
        assert transactions.last_step("job") == -1
        assert transactions.last_step(NAME) == 0


async def test_a_transaction_is_not_forgotten_under_a_commit(tmp_path):
    """A crash after the forgetting would find no decision, and never finish it."""
    settings: dict[str, Any] = {"transaction_retention_ms": 1, "housekeeping_interval_ms": NEVER}
    async with (
        running_broker(tmp_path, **settings) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("out")
        transactions = broker.transactions
        for step in range(10):
            position = await stage(client, step, b"%d" % step)
            committing = asyncio.create_task(transactions.commit(NAME, step, [position]))
            await until(lambda: transactions._turns.is_taken(NAME))
            await asyncio.gather(committing, transactions.expire())
            assert transactions.last_step(NAME) == step
        assert [int(value) for value in await client.values("out")] == list(range(10))
        assert await transactions.expire() == 1
        written = [record.value for record in transactions._log.records()]
        for before, after in pairwise(written):
            is_done = before is None or msgpack.unpackb(before)[2]
            assert is_done or after is not None, "a decision was forgotten before it was done"
        assert written[-1] is None


async def test_a_record_of_an_older_broker_is_understood(tmp_path):
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await client.create("out")
        position = await stage(client, 0, b"a")
        value = msgpack.packb([77, 0, False, [position], NOON_US])
        await broker.transactions._log.append([NAME.encode()], [value], NOON_US)
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await broker.transactions.finished.wait()
        assert await client.values("out") == [b"a"]


async def test_damage_in_what_is_staged_costs_that_alone(tmp_path):
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await client.create("out")
        bad = await stage(client, 0, b"spoiled" * 1000)
        good = await stage(client, 0, b"good", name="other")
    (segment,) = (tmp_path / f"topic-{STAGED_TOPIC}" / "partition-0").glob("*.log")
    data = segment.read_bytes()
    segment.write_bytes(data.replace(b"spoiled", b"sqoiled", 1))
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await commit(client, 0, good, name="other")
        with pytest.raises(errors.SeglogError):
            await commit(client, 0, bad)
        assert await client.values("out") == [b"good"]


async def test_a_step_of_any_size_takes_little_memory(tmp_path):
    """120 MiB in one step: the broker has it in memory window by window."""
    value = bytes(1 * MIB)
    async with broker_process(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await client.create("out", 4)
        await commit(client, 0, await stage(client, 0, value))
        before = broker.memory.sample()
        positions = [await stage(client, 1, value, partition=number % 4) for number in range(120)]
        committing = asyncio.create_task(commit(client, 1, *positions))
        while not committing.done():
            broker.memory.sample()
            await asyncio.wait([committing], timeout=0.01)
        assert not committing.result().was_done
        assert broker.memory.peak_bytes - before < 60 * MIB
        async with await RawClient.open(broker.port) as reader:
            ends = [(await reader.fetch("out", n, 0, max_bytes=1)).durable_end for n in range(4)]
        assert sum(ends) == 121


async def test_the_settings_of_internal_topics_are_their_own(tmp_path):
    """A broker's defaults for users' topics must not make a decision too large for its log."""
    async with (
        running_broker(tmp_path, topic={"max.batch.bytes": 200}) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("out", 1, max_batch_bytes=4000)
        positions = [await stage(client, 0, b"x" * 100) for _ in range(100)]
        await commit(client, 0, *positions)
        assert len(await client.values("out")) == 100
        for topic in (STAGED_TOPIC, TRANSACTIONS_TOPIC):
            assert broker.topics.partition(topic, 0).log.config.max_batch_bytes == 16 * MIB


@pytest.mark.parametrize("seen_before_the_kill", [1, 20, 50])
async def test_a_step_of_many_windows_is_published_once_around_a_kill(
    tmp_path, seen_before_the_kill
):
    """Several batches for each partition, more than are in memory together: killed in between."""
    partitions, count = range(3), 60
    async with broker_process(tmp_path) as broker:
        client = await RawClient.open(broker.port)
        await client.create("out", len(partitions))
        positions = [
            await stage(client, 0, b"%d" % number, bytes(300 * KIB), partition=number % 3)
            for number in range(count)
        ]
        client.send(api.COMMIT_STAGED, messages.CommitStagedRequest(NAME, 0, positions))
        await client.writer.drain()
        async with await RawClient.open(broker.port) as reader:
            seen = 0
            while seen < seen_before_the_kill:
                results = [await reader.fetch("out", n, max_bytes=1) for n in partitions]
                seen = sum(result.durable_end for result in results) // 2
        broker.process.kill()
        await broker.process.wait()
        client.close()
    async with running_broker(tmp_path) as next_, await RawClient.open(next_.port) as client:
        assert (await commit(client, 0, *positions)).last_step == 0
        for partition in partitions:
            values = await client.values("out", partition)
            assert values[::2] == [b"%d" % number for number in range(partition, count, 3)]
            assert len(values) == 2 * count // 3
        assert next_.transactions.staging.count == 0
