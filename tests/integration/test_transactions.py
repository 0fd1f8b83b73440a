"""Publishing exactly once: steps of a transaction are staged out of sight, and published once."""

import pytest

from seglog.protocol import api, errors, messages
from seglog.protocol.batch import encode_batch
from seglog.server.transactions import Transaction

from tests.brokers import NOON_US, RawClient, broker_process, running_broker

NAME = "query-7"


async def stage(
    client: RawClient, step: int, topic: str, partition: int, *values: bytes, name: str = NAME
) -> int:
    batch = memoryview(encode_batch(values, timestamps=NOON_US))
    request = messages.StageRequest(name, step, [messages.ProduceBatch(topic, partition, batch)])
    result = (await client.call(api.STAGE, request)).results[0]
    if result.error is not None:
        raise result.error.to_exception()
    position: int = result.position
    return position


async def commit(client: RawClient, step: int, *positions: int, name: str = NAME) -> bool:
    """Whether this call published the step."""
    request = messages.CommitStagedRequest(name, step, list(positions))
    return not (await client.call(api.COMMIT_STAGED, request)).was_done


async def last_step(client: RawClient, name: str = NAME) -> int:
    request = messages.DescribeTransactionRequest(name)
    step: int = (await client.call(api.DESCRIBE_TRANSACTION, request)).last_step
    return step


async def test_staged_batches_are_seen_by_no_reader_until_their_step_is_committed(tmp_path):
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await client.create("out", 2)
        first = await stage(client, 0, "out", 0, b"a", b"b")
        second = await stage(client, 0, "out", 1, b"c")
        assert await client.values("out", 0) == await client.values("out", 1) == []
        assert await commit(client, 0, first, second)
        assert await client.values("out", 0) == [b"a", b"b"]
        assert await client.values("out", 1) == [b"c"]


async def test_a_step_is_published_once_however_often_it_is_committed(tmp_path):
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await client.create("out")
        position = await stage(client, 0, "out", 0, b"a")
        assert await commit(client, 0, position)
        assert not await commit(client, 0, position)
        assert await last_step(client) == 0
        assert await client.values("out") == [b"a"]


async def test_of_two_attempts_only_the_committed_one_is_published(tmp_path):
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await client.create("out")
        await stage(client, 0, "out", 0, b"of the slow attempt")
        position = await stage(client, 0, "out", 0, b"of the quick one")
        assert await commit(client, 0, position)
        with pytest.raises(errors.StepCommitted):
            await stage(client, 0, "out", 0, b"too late")
        assert await client.values("out") == [b"of the quick one"]


async def test_a_step_that_was_passed_changes_nothing_any_more(tmp_path):
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await client.create("out")
        early = await stage(client, 3, "out", 0, b"late")
        assert await commit(client, 7, await stage(client, 7, "out", 0, b"seven"))
        assert not await commit(client, 3, early)
        assert await client.values("out") == [b"seven"]


async def test_a_commit_of_what_is_not_staged_for_it_publishes_nothing(tmp_path):
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await client.create("out")
        foreign = await stage(client, 0, "out", 0, b"x", name="other")
        other_step = await stage(client, 1, "out", 0, b"y")
        for position in (foreign, other_step, 1000):
            with pytest.raises(errors.StagedDataGone):
                await commit(client, 0, position)
        assert await last_step(client) == -1
        assert await client.values("out") == []


async def test_internal_topics_of_transactions_are_hidden_and_closed(tmp_path):
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await client.create("out")
        await commit(client, 0, await stage(client, 0, "out", 0, b"a"))
        listed = await client.call(api.METADATA, messages.MetadataRequest())
        assert [topic.name for topic in listed.topics] == ["out"]
        with pytest.raises(errors.ProtectedTopic):
            await client.produce("__staged", 0, b"x")
        with pytest.raises(errors.ProtectedTopic):
            await client.fetch("__staged", 0)
        with pytest.raises(errors.ProtectedTopic):
            await stage(client, 1, "__transactions", 0, b"x")


async def test_steps_and_their_records_survive_a_restart(tmp_path):
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await client.create("out")
        await commit(client, 4, await stage(client, 4, "out", 0, b"a"))
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        assert await last_step(client) == 4
        assert not await commit(client, 4, 0)
        assert await commit(client, 5, await stage(client, 5, "out", 0, b"b"))
        assert await client.values("out") == [b"a", b"b"]


async def test_a_topic_that_was_deleted_meanwhile_does_not_stop_the_transaction(tmp_path):
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await client.create("out")
        position = await stage(client, 0, "out", 0, b"a")
        await client.call(api.DELETE_TOPIC, messages.DeleteTopicRequest("out"))
        with pytest.raises(errors.UnknownTopic):
            await commit(client, 0, position)
        await client.create("out")
        assert await commit(client, 1, await stage(client, 1, "out", 0, b"b"))
        assert await client.values("out") == [b"b"]


@pytest.mark.parametrize("seen_before_the_kill", range(5))
async def test_a_broker_killed_during_a_commit_publishes_the_step_once(
    tmp_path, seen_before_the_kill
):
    """Killed as soon as so many of the batches can be read: between the decision and its end."""
    # Given: a step of many batches over eight partitions, staged.
    numbers = range(8)
    async with broker_process(tmp_path) as broker:
        client = await RawClient.open(broker.port)
        await client.create("out", len(numbers))
        positions = [
            await stage(client, 0, "out", number, *(b"%d" % n for n in range(100)))
            for number in numbers
        ]
        # When: the broker is killed somewhere in the commit.
        client.send(api.COMMIT_STAGED, messages.CommitStagedRequest(NAME, 0, positions))
        await client.writer.drain()
        async with await RawClient.open(broker.port) as reader:
            seen = 0
            while seen < seen_before_the_kill:
                ends = [(await reader.fetch("out", number)).durable_end for number in numbers]
                seen = sum(end > 0 for end in ends)
        broker.process.kill()
        await broker.process.wait()
        client.close()
    # Then: whatever the next broker finds, a second commit leaves every record there once.
    async with running_broker(tmp_path) as next_, await RawClient.open(next_.port) as client:
        await commit(client, 0, *positions)
        for number in numbers:
            assert await client.values("out", number) == [b"%d" % n for n in range(100)]
        assert await last_step(client) == 0


async def test_a_decided_step_is_finished_by_the_next_start_alone(tmp_path):
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await client.create("out")
        position = await stage(client, 0, "out", 0, b"a")
        # A decision with nothing behind it, as a kill right after it leaves it.
        decided = Transaction(77, 0, False, (position,), NOON_US)
        await broker.transactions.save(NAME, decided)
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await broker.transactions.finished.wait()
        assert await client.values("out") == [b"a"]


async def test_silent_transactions_are_forgotten(tmp_path):
    async with (
        running_broker(tmp_path, transaction_retention_ms=1, housekeeping_interval_ms=10) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("out")
        await commit(client, 0, await stage(client, 0, "out", 0, b"a"))
        while await last_step(client) != -1:
            pass  # housekeeping comes by
        assert await client.values("out") == [b"a"]
