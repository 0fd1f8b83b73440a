"""Topics, settings, offsets and deletion through the admin client."""

from datetime import UTC, datetime

import pytest

from seglog import Admin, Producer, errors
from seglog.client.embedded import embedded


@pytest.fixture
async def broker():
    async with embedded() as running:
        yield running


@pytest.fixture
async def admin(broker):
    async with Admin(broker.bootstrap) as opened:
        yield opened


async def test_a_topic_is_created_described_altered_and_deleted(admin):
    assert await admin.create_topic("b", 2, {"retention.ms": 1000}) == 2
    assert await admin.create_topic("a") == 1
    assert await admin.list_topics() == ["a", "b"]
    await admin.alter_topic("b", partitions=3, config={"retention.ms": 2000})
    described = await admin.describe_topic("b")
    assert described.config["retention.ms"] == 2000
    assert [p.partition for p in described.partitions] == [0, 1, 2]
    metadata = await admin.metadata(["b"])
    assert metadata.topics[0].leaders == [metadata.brokers[0].broker_id] * 3
    await admin.delete_topic("b")
    assert await admin.list_topics() == ["a"]


async def test_errors_come_by_their_own_names(admin):
    await admin.create_topic("t")
    with pytest.raises(errors.TopicExists):
        await admin.create_topic("t")
    with pytest.raises(errors.UnknownTopic):
        await admin.delete_topic("nowhere")
    with pytest.raises(errors.UnknownTopic):
        await admin.describe_topic("nowhere")
    with pytest.raises(errors.BadTopicName):
        await admin.create_topic("../etc")
    with pytest.raises(errors.BadConfig):
        await admin.create_topic("u", config={"no.such.setting": 1})
    with pytest.raises(errors.UnknownPartition):
        await admin.delete_records("t", 9, 0)
    with pytest.raises(errors.UnknownTopic):
        await admin.list_offsets("nowhere")


async def test_offsets_are_found_by_place_and_by_time(admin, broker):
    await admin.create_topic("t", 2)
    async with Producer(broker.bootstrap) as producer:
        sent = await producer.send_batch("t", [b"x"] * 10, partition=1, timestamps=list(range(10)))
        await sent
    assert {n: f.offset for n, f in (await admin.list_offsets("t")).items()} == {0: 0, 1: 10}
    assert await admin.delete_records("t", 1, 4) == 4
    assert (await admin.list_offsets("t", "earliest"))[1].offset == 4
    assert (await admin.list_offsets("t", 7, [1]))[1][:2] == (7, 7)
    assert (await admin.list_offsets("t", 99))[1].offset == -1
    just_before_1970 = datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)
    assert (await admin.list_offsets("t", just_before_1970))[1].offset == 4, "not the end, as -1 is"
    assert await admin.delete_records("t", 1, -1) == 10


async def test_an_address_list_works_while_one_of_it_does(broker):
    async with Admin(f"127.0.0.1:1, {broker.bootstrap}") as admin:
        assert await admin.list_topics() == []


async def test_a_closed_admin_says_so(broker):
    admin = Admin(broker.bootstrap)
    await admin.start()
    await admin.close()
    await admin.close()
    with pytest.raises(errors.ClientClosed):
        await admin.list_topics()
