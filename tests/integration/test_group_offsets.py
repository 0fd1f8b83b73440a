"""What a group commits, where it goes on, how far behind it is and how it is moved."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from seglog import (
    Admin,
    Lag,
    OffsetChange,
    Producer,
    SameAs,
    Shift,
    SyncAdmin,
    TopicPartition,
    errors,
)
from seglog.client.embedded import embedded

from tests.groups import eventually, fill, member_of


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


T0 = TopicPartition("t", 0)


async def bookmarks(admin, group="g"):
    return {name: mark.offset for name, mark in (await admin.fetch_offsets(group)).items()}


# --- what is committed without being asked ---


async def one_by_one(consumer):
    """Offset 12 is in hand: 12 of the batch from 10 on."""
    for _ in range(13):
        await anext(consumer)


async def many_at_once(consumer):
    await consumer.getmany(12)
    await consumer.getmany(30)


async def by_batches(consumer):
    await consumer.next_batch()
    await consumer.next_batch()


async def one_by_one_after_many(consumer):
    await consumer.getmany(12)
    for _ in range(3):  # of the same batch, the last in hand
        await anext(consumer)


async def rest_of_a_batch(consumer):
    await consumer.getmany(14)
    await consumer.next_batch()


async def paused_with_a_record_in_hand(consumer):
    await one_by_one(consumer)
    consumer.pause()


async def sought_forward_with_a_record_in_hand(consumer):
    await one_by_one(consumer)
    consumer.seek("t", 0, 50)


async def sought_back(consumer):
    await one_by_one(consumer)
    consumer.seek("t", 0, 5)


async def sought_and_read_on(consumer):
    await one_by_one(consumer)
    consumer.seek("t", 0, 50)
    await anext(consumer)


async def all_and_asked_for_more(consumer):
    taken = 0
    while taken < 100:
        taken += len(await consumer.getmany(100))
    assert await consumer.getmany(1, timeout=0) == []


async def all_in_hand(consumer):
    await consumer.getmany(1000)


@pytest.mark.parametrize(
    ("read", "committed"),
    [
        (one_by_one, 12),
        (many_at_once, 12),
        (by_batches, 10),
        (one_by_one_after_many, 14),
        (rest_of_a_batch, 14),
        (paused_with_a_record_in_hand, 12),
        (sought_forward_with_a_record_in_hand, 12),
        (sought_back, 5),
        (sought_and_read_on, 50),
        (all_and_asked_for_more, 100),
        (all_in_hand, 0),
    ],
)
@pytest.mark.parametrize("when", ["on close", "by time"])
async def test_only_what_was_moved_past_is_committed(
    broker, admin, producer, read, committed, when
):
    await fill(admin, producer, count=100, per_batch=10)
    interval = 20 if when == "by time" else 600_000
    async with member_of(broker, "t", auto_commit_interval_ms=interval) as consumer:
        await read(consumer)
        if when == "by time":
            await eventually(lambda: bookmarks(admin), {("t", 0): committed})
    assert await bookmarks(admin) == {("t", 0): committed}


async def test_while_a_reader_waits_for_more_all_it_had_is_done(broker, admin, producer):
    await fill(admin, producer, count=3)
    async with member_of(broker, "t", auto_commit_interval_ms=20) as consumer:
        for _ in range(3):
            await anext(consumer)
        waiting = asyncio.ensure_future(anext(consumer))
        await eventually(lambda: bookmarks(admin), {("t", 0): 3})
        await producer.send_and_wait("t", b"3")
        await waiting
    assert await bookmarks(admin) == {("t", 0): 3}


# --- what is committed by hand ---


async def test_by_hand_only_what_is_said_is_committed(broker, admin, producer):
    await fill(admin, producer, count=100)
    async with member_of(broker, "t", auto_commit=False) as consumer:
        records = await consumer.getmany(30)
        await consumer.getmany(1)
        assert await bookmarks(admin) == {("t", 0): 0}  # where it began
        await consumer.commit(records[6])
        assert (await consumer.committed())[T0].offset == 7
        await consumer.commit()
        assert (await consumer.committed())[T0].offset == consumer.position("t", 0)
        await consumer.commit({("t", 0): (5, "about 5")})
        mark = (await consumer.committed(T0))[T0]
        assert (mark.offset, mark.metadata) == (5, "about 5")
        assert abs(mark.committed_at - datetime.now(UTC)) < timedelta(minutes=1)
        with pytest.raises(errors.NotOwner):
            await consumer.commit({("u", 0): 5})
        with pytest.raises(errors.BadConfig):
            await consumer.commit({("t", 0): -5})
        await consumer.getmany(10)
    assert await bookmarks(admin) == {("t", 0): 5}


# --- where a group begins ---


@pytest.mark.parametrize(("start", "first"), [("earliest", 0), ("latest", 50), (20, 20)])
async def test_without_a_bookmark_start_decides_once_and_for_all(
    broker, admin, producer, start, first
):
    await fill(admin, producer, count=50)
    async with member_of(broker, "t", start=start) as consumer:
        assert consumer.position("t", 0) == first
    # Nothing was read; what came meanwhile is not skipped by who comes next.
    await producer.send_batch("t", [b"x"] * 10)
    await producer.flush()
    async with member_of(broker, "t", start="latest") as consumer:
        assert (await anext(consumer)).offset == first


@pytest.mark.parametrize(("on_reset", "goes_on_at"), [("earliest", 40), ("latest", 100)])
async def test_a_bookmark_that_was_deleted_follows_on_reset_and_is_told(
    broker, admin, producer, on_reset, goes_on_at
):
    await fill(admin, producer, count=100)
    await admin.commit_offsets("g", {("t", 0): 10})
    await admin.delete_records("t", 0, 40)
    jumps = []
    async with member_of(
        broker, "t", on_reset=on_reset, on_data_loss=lambda *jump: jumps.append(jump)
    ) as consumer:
        reading = asyncio.ensure_future(anext(consumer))
        await eventually(lambda: has_jumped(jumps), True)  # to what is the end now
        await producer.send_and_wait("t", b"100")
        assert (await reading).offset == goes_on_at
    assert jumps == [("t", 0, 10, goes_on_at)]


async def has_jumped(jumps):
    return bool(jumps)


async def test_a_bookmark_that_was_deleted_is_an_error_unless_told_otherwise(
    broker, admin, producer
):
    await fill(admin, producer, count=100)
    await admin.commit_offsets("g", {("t", 0): 10})
    await admin.delete_records("t", 0, 40)
    async with member_of(broker, "t") as consumer:
        with pytest.raises(errors.OffsetOutOfRange) as raised:
            await anext(consumer)
        assert raised.value.log_start == 40
        consumer.seek("t", 0, 40)
        assert (await anext(consumer)).offset == 40


# --- looking at groups ---


async def test_lag_is_told_in_records_and_in_seconds(broker, admin, producer):
    await fill(admin, producer, "t", partitions=2, count=50)
    await fill(admin, producer, "u", count=10)
    began = time.monotonic()
    await admin.commit_offsets("g", {("t", 0): 20, ("t", 1): 50, ("u", 0): 9})
    described = await admin.describe_group("g")
    waited = time.monotonic() - began
    assert (described.group, described.state, described.members) == ("g", "empty", [])
    lags = described.lag_by_partition
    assert [lags["t", 0].records, lags["t", 1], lags["u", 0].records] == [30, Lag(0, 0.0), 1]
    assert 0 <= lags["t", 0].seconds < 60 + waited
    assert described.lag_by_topic["t"].records == 30
    assert described.lag == Lag(31, max(lags["t", 0].seconds, lags["u", 0].seconds))
    await eventually(lambda: is_older(admin, lags["t", 0].seconds), True)


async def is_older(admin, seconds):
    return (await admin.describe_group("g")).lag.seconds > seconds


async def test_groups_are_listed_described_and_deleted(broker, admin, producer):
    await fill(admin, producer, partitions=2)
    async with member_of(broker, "t", instance_id="seat") as consumer:
        (listed,) = await admin.list_groups()
        assert (listed.group, listed.members, listed.assignor) == ("g", 1, "sticky")
        described = await admin.describe_group("g")
        (member,) = described.members
        assert (member.instance_id, member.topics) == ("seat", ["t"])
        assert {partition.owner for partition in described.partitions} == {member.member_id}
        assert described.lag.records == 200
        with pytest.raises(errors.GroupNotEmpty):
            await admin.delete_group("g")
        with pytest.raises(errors.GroupNotEmpty):
            await admin.commit_offsets("g", {("t", 0): 1})
        assert len(consumer.assignment) == 2
    with pytest.raises(errors.GroupNotEmpty):  # it keeps its seat
        await admin.delete_group("g")


def test_the_blocking_admin_does_the_same(seglog_broker):
    with SyncAdmin(seglog_broker.bootstrap) as admin:
        admin.create_topic("t", 1)
        admin.commit_offsets("g", {("t", 0): (0, "mine")})
        assert [listed.group for listed in admin.list_groups()] == ["g"]
        assert admin.fetch_offsets("g")[T0].metadata == "mine"
        assert admin.describe_group("g").lag == Lag(0, 0.0)
        assert admin.reset_offsets("g", "latest") == [OffsetChange("t", 0, 0, 0)]
        admin.delete_group("g")
        with pytest.raises(errors.UnknownGroup):
            admin.describe_group("g")


# --- moving groups ---


@pytest.mark.parametrize(
    ("to", "target"),
    [
        ("earliest", 10),
        ("latest", 100),
        (33, 33),
        (5, 10),  # deleted: the log start
        (1000, 100),
        (Shift(-5), 25),
        (Shift(+5), 35),
        (Shift(-100), 10),
        (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=42), 42),
        (datetime(9000, 1, 1, tzinfo=UTC), 100),
        (SameAs("other"), 77),
    ],
)
async def test_a_reset_tells_first_and_then_does_it(broker, admin, producer, to, target):
    await admin.create_topic("t", 2)
    for start in range(0, 100, 10):
        numbers = range(start, start + 10)
        values = [b"%d" % n for n in numbers]
        await producer.send_batch("t", values, partition=0, timestamps=list(numbers))
    await producer.flush()
    await admin.delete_records("t", 0, 10)
    await admin.commit_offsets("g", {("t", 0): 30})
    await admin.commit_offsets("other", {("t", 0): 77})

    told = await admin.reset_offsets("g", to)
    assert told == [OffsetChange("t", 0, 30, target)]
    assert told[0].difference == target - 30
    assert await bookmarks(admin) == {("t", 0): 30}

    assert await admin.reset_offsets("g", to, dry_run=False) == told
    assert await bookmarks(admin) == {("t", 0): target}
    assert await bookmarks(admin, "other") == {("t", 0): 77}


async def test_a_reset_can_name_partitions_and_topics(broker, admin, producer):
    await fill(admin, producer, "t", partitions=2)
    await fill(admin, producer, "u")
    with pytest.raises(errors.UnknownGroup):
        await admin.reset_offsets("g", "latest")
    changes = await admin.reset_offsets(
        "g", "latest", topics="u", partitions=[("t", 1)], dry_run=False
    )
    assert changes == [OffsetChange("t", 1, None, 100), OffsetChange("u", 0, None, 100)]
    assert changes[0].difference is None
    assert await bookmarks(admin) == {("t", 1): 100, ("u", 0): 100}
    with pytest.raises(errors.BadConfig, match="t/0"):
        await admin.reset_offsets("g", Shift(1), topics="t")
    with pytest.raises(errors.BadConfig):
        await admin.reset_offsets("g", "newest")
    with pytest.raises(errors.UnknownTopic):
        await admin.reset_offsets("g", "latest", topics="nothing")


async def test_a_group_with_members_is_not_moved(broker, admin, producer):
    await fill(admin, producer)
    async with member_of(broker, "t"):
        assert (await admin.reset_offsets("g", "latest"))[0].to_offset == 100
        with pytest.raises(errors.GroupNotEmpty):
            await admin.reset_offsets("g", "latest", dry_run=False)
    assert await bookmarks(admin) == {("t", 0): 0}
    await admin.reset_offsets("g", "latest", dry_run=False)
    assert await bookmarks(admin) == {("t", 0): 100}
