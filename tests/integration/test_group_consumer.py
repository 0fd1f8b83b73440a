"""Consumers that share partitions, against a real broker: who gets what, and when."""

import asyncio
import re
import time
from pathlib import Path

import pytest

from seglog import Admin, Producer, Record, SyncConsumer, TopicPartition, errors
from seglog.client.embedded import embedded

from tests.groups import Calls, eventually, fill, member_of
from tests.proxy import running_proxy


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


def all_of(topic, count):
    return {TopicPartition(topic, number) for number in range(count)}


async def test_members_share_and_only_owners_of_what_moves_are_disturbed(broker, admin):
    await admin.create_topic("t", 6)
    a, b, c = Calls(), Calls(), Calls()
    async with member_of(broker, "t", calls=a) as first:
        assert a.held == set(first.assignment) == all_of("t", 6)
        async with member_of(broker, "t", calls=b):
            await b.until_held(3)
            assert a.held | b.held == all_of("t", 6)
            async with member_of(broker, "t", calls=c):
                await c.until_held(2)
                assert a.held | b.held | c.held == all_of("t", 6)
                kept = {"a": set(a.held), "b": set(b.held)}
            await a.until_held(3)
            await b.until_held(3)
            assert kept["a"] < a.held
            assert kept["b"] < b.held
        await a.until_held(6)
    # Each change moved what it had to, and nothing else.
    assert [len(names) for names in a.of("revoked")] == [3, 1, 6]
    assert [len(names) for names in a.of("assigned")] == [6, 1, 3]
    assert [len(names) for names in b.of("revoked")] == [1, 3]
    assert [name for name, _ in c.made] == ["assigned", "revoked"]
    assert not a.of("lost") + b.of("lost") + c.of("lost")


async def test_a_partition_is_given_on_only_after_on_revoked_has_ended(broker, admin, producer):
    await fill(admin, producer, partitions=2, count=20)
    order, entered, may_end = [], asyncio.Event(), asyncio.Event()

    async def on_revoked(names):
        order.append(("begun", names))
        entered.set()
        await may_end.wait()
        order.append(("revoked", names))

    def on_assigned(names):
        order.append(("assigned", names))

    async with (
        member_of(broker, "t", on_revoked=on_revoked) as first,
        member_of(broker, "t", on_assigned=on_assigned) as second,
    ):
        await entered.wait()
        ((_, (moved,)),) = order
        assert second.assignment == []
        assert await state(admin) == "rebalancing"
        # Meanwhile nothing of it is handed out, though it was fetched; the other is read as ever.
        found: list[Record] = []
        while len(found) < 20:
            found += await first.getmany(100)
        found += await first.getmany(100, timeout=0.1)
        assert {record.partition for record in found} == {1 - moved.partition}
        may_end.set()
        await eventually(lambda: state(admin), "stable")
        assert order == [("begun", [moved]), ("revoked", [moved]), ("assigned", [moved])]
        assert second.assignment == [moved]
        assert moved not in first.assignment


async def state(admin):
    return (await admin.describe_group("g")).state


async def test_what_is_in_hand_is_finished_and_committed_before_it_moves(broker, admin, producer):
    await fill(admin, producer, partitions=2, count=20)
    first_calls, second_calls = Calls(), Calls()
    async with member_of(broker, "t", calls=first_calls) as first:
        while len(await first.getmany(30, timeout=0)) < 30:  # until there is some of both at once
            await first.seek_to_start()
        taken = {name: first.position(*name) for name in first.assignment}
        async with member_of(broker, "t", calls=second_calls) as second:
            # The first is told at once; many requests later it still has what is in its hand.
            for _ in range(50):
                assert (await admin.describe_group("g")).state == "rebalancing"
            assert second.assignment == []
            assert first_calls.made == [("assigned", [("t", 0), ("t", 1)])]
            await first.getmany(1, timeout=0)  # it moves on
            await second_calls.until_held(1)
            (moved,) = second_calls.held
            assert (await second.committed())[moved].offset == taken[moved]
            assert second.position(*moved) == taken[moved]


async def test_a_pattern_picks_up_new_topics_and_added_partitions(broker, admin, producer):
    await admin.create_topic("orders-a", 1)
    await admin.create_topic("other", 1)
    calls = Calls()
    async with member_of(
        broker, pattern="orders-.*", calls=calls, start="latest", max_wait_ms=50
    ) as consumer:
        assert consumer.assignment == [("orders-a", 0)]
        await admin.create_topic("orders-b", 1)
        # Before anyone can know of it: a reader that wants the latest must not miss it.
        await producer.send_and_wait("orders-b", b"first")
        await calls.until_held(2)
        assert (await anext(consumer)).value == b"first"
        await admin.alter_topic("orders-a", 2)
        await calls.until_held(3)
        await admin.create_topic("more-orders-c", 1)
        await admin.delete_topic("orders-b")
        reading = asyncio.ensure_future(anext(consumer))  # it is past what it had of orders-b
        await calls.until_held(2)
        assert consumer.assignment == [("orders-a", 0), ("orders-a", 1)]
        await producer.send_and_wait("orders-a", b"still here", partition=1)
        assert (await reading).value == b"still here"  # and no error


async def test_a_topic_that_is_not_there_is_waited_for(broker, admin, producer):
    calls = Calls()
    async with member_of(broker, ["t"], calls=calls) as consumer:
        assert consumer.assignment == []
        await admin.create_topic("t", 1)
        await calls.until_held(1)
        await producer.send_and_wait("t", b"x")
        assert (await anext(consumer)).value == b"x"


async def test_two_groups_read_the_same_and_know_nothing_of_each_other(broker, admin, producer):
    await fill(admin, producer, count=100)
    async with (
        member_of(broker, "t", group="fast") as fast,
        member_of(broker, "t", group="slow") as slow,
    ):
        await fast.getmany(60)
        await slow.getmany(10)
        await fast.commit()
        await slow.commit()
        assert (await fast.committed())[T0].offset == fast.position("t", 0) > 10
        assert (await slow.committed())[T0].offset == slow.position("t", 0) == 10
    # Reading removes nothing.
    async with member_of(broker, "t", group="third") as third:
        found: list[Record] = []
        while len(found) < 100:
            found += await third.getmany(100)
        assert [record.offset for record in found] == list(range(100))


async def test_a_static_member_comes_back_to_its_partitions_and_nobody_notices(broker, admin):
    await admin.create_topic("t", 4)
    a, b = Calls(), Calls()
    async with member_of(broker, "t", calls=a):
        async with member_of(broker, "t", calls=b, instance_id="seat") as seated:
            await b.until_held(2)
            await a.until_held(2)
            mine = seated.assignment
        before = list(a.made)
        async with member_of(broker, "t", instance_id="seat") as again:
            assert again.assignment == mine
            assert a.made == before


async def test_who_is_replaced_on_its_seat_is_told_and_ends(broker, admin, producer):
    await fill(admin, producer)
    calls = Calls()
    async with member_of(broker, "t", instance_id="seat", calls=calls) as old:
        record = await anext(old)
        async with member_of(broker, "t", instance_id="seat") as new:
            await calls.until(lambda calls: calls.of("lost"))
            with pytest.raises(errors.MemberFenced):
                await old.getmany(1)
            with pytest.raises(errors.MemberFenced):
                await old.commit(record)
            assert new.assignment == [("t", 0)]
            assert (await anext(new)).offset == 0


async def test_a_member_without_a_broker_stops_at_the_end_of_its_session(broker, admin, producer):
    await fill(admin, producer, count=1000)
    async with running_proxy(broker.bootstrap) as proxy:
        calls = Calls()
        options = {"session_timeout_ms": 1500, "calls": calls, "bootstrap": proxy.bootstrap}
        async with member_of(broker, "t", **options) as consumer:
            taken = [await anext(consumer) for _ in range(15)]
            await consumer.commit(taken[9])
            proxy.open_to_broker.clear()  # the broker hears nothing more
            await calls.until(lambda calls: calls.of("lost"))
            assert consumer.assignment == []
            with pytest.raises(errors.SeglogError) as refused:
                await consumer.commit()
            assert type(refused.value) in (errors.NotOwner, errors.UnknownMember)
            proxy.open_to_broker.set()
            proxy.cut_all()
            await calls.until(lambda calls: len(calls.of("assigned")) == 2)
            assert (await anext(consumer)).offset == 10  # from the last commit


async def test_an_application_that_never_waits_keeps_its_session(broker, admin, producer):
    await fill(admin, producer, count=3000, per_batch=1000)
    calls = Calls()
    async with member_of(broker, "t", calls=calls, session_timeout_ms=3000) as consumer:
        end = time.monotonic() + 4.5
        while time.monotonic() < end:
            await anext(consumer)
            time.sleep(0.002)  # noqa: ASYNC251 - it computes
        await consumer.commit()
    assert [name for name, _ in calls.made] == ["assigned", "revoked"]


async def test_a_step_that_is_longer_than_the_session_loses_it_before_the_next_record(
    broker, admin, producer
):
    await fill(admin, producer, count=100, per_batch=100)
    calls = Calls()
    async with member_of(broker, "t", calls=calls, session_timeout_ms=2000) as consumer:
        await anext(consumer)
        held = await anext(consumer)
        await consumer.commit({T0: 1})
        time.sleep(2.4)  # noqa: ASYNC251 - it computes, or the process is paused
        with pytest.raises(errors.SeglogError) as refused:
            await consumer.commit(held)
        assert type(refused.value) in (errors.NotOwner, errors.UnknownMember)
        assert (await anext(consumer)).offset == 1  # what was in hand comes again
        assert calls.of("lost") == [[T0]]


async def test_what_is_in_hand_for_too_long_is_given_to_another(broker, admin, producer):
    await fill(admin, producer, partitions=2, count=20)
    calls = Calls()
    async with member_of(broker, "t", max_hold_ms=50) as first:
        while len(await first.getmany(40, timeout=0)) < 40:  # until all of both is there at once
            await first.seek_to_start()
        async with member_of(broker, "t", calls=calls) as second:
            await calls.until_held(1)
            assert (await anext(second)).offset == 0
            with pytest.raises(errors.NotOwner, match="lost since the records were taken"):
                await first.commit()


async def test_a_callback_that_raises_is_heard_of_by_the_reader(broker, admin):
    await admin.create_topic("t", 1)

    def on_assigned(names):
        raise ValueError("not today")

    with pytest.raises(errors.CallbackFailed, match="not today") as raised:
        await member_of(broker, "t", on_assigned=on_assigned).start()
    assert isinstance(raised.value.__cause__, ValueError)

    async def on_revoked(names):
        raise ValueError("nor tomorrow")

    async with member_of(broker, "t", on_revoked=on_revoked, group="other") as first:
        reading = asyncio.ensure_future(anext(first))
        async with member_of(broker, "t", group="other"):
            await admin.alter_topic("t", 2)
            await admin.delete_topic("t")
            with pytest.raises(errors.CallbackFailed, match="nor tomorrow"):
                await reading


async def test_what_the_broker_refuses_is_raised_by_start(broker, admin):
    await admin.create_topic("t", 1)
    with pytest.raises(errors.BadGroupName):
        await member_of(broker, "t", group="no/such").start()
    with pytest.raises(errors.LimitExceeded, match="session"):
        await member_of(broker, "t", session_timeout_ms=1).start()
    async with member_of(broker, "t", assignors=["range"]) as consumer:
        with pytest.raises(errors.NoCommonAssignor):
            await member_of(broker, "t", assignors=["sticky"]).start()
        assert consumer.assignment == [("t", 0)]


@pytest.mark.parametrize(
    "options",
    [
        {"pattern": "t.*", "group": None},
        {"pattern": "("},
        {"assign": [("t", 0)]},
        {"topics": "t", "pattern": "t"},
        {"topics": "t", "assignors": []},
        {"topics": "t", "session_timeout_ms": 0},
    ],
)
async def test_options_that_make_no_sense_are_refused(broker, options):
    with pytest.raises(errors.BadConfig):
        member_of(broker, **options)


async def test_commit_needs_a_group(broker, admin):
    await admin.create_topic("t", 1)
    async with member_of(broker, "t", group=None) as consumer:
        with pytest.raises(errors.ClientClosed, match="group"):
            await consumer.commit()


async def test_a_blocking_consumer_is_a_member_too(broker, admin, producer):
    await fill(admin, producer, count=20)

    def read(count, commit):
        options = {"bootstrap": broker.bootstrap, "group": "g", "start": "earliest"}
        with SyncConsumer("t", **options) as consumer:
            found = [next(consumer).offset for _ in range(count)]
            if commit:
                consumer.commit()
                assert consumer.committed()[T0].offset == found[-1] + 1
            return found

    assert await asyncio.to_thread(read, 5, False) == list(range(5))
    assert await asyncio.to_thread(read, 5, True) == list(range(4, 9))  # 4 was in hand
    assert await asyncio.to_thread(read, 5, False) == list(range(9, 14))


def test_the_example_of_the_document_runs_and_prints_what_it_says(capsys):
    text = (Path(__file__).resolve().parents[2] / "docs" / "groups.md").read_text(encoding="utf-8")
    example, printed = re.findall(r"```(?:python|text)\n(.*?)```", text, re.DOTALL)
    exec(compile(example, "groups.md", "exec"), {"__name__": "groups"})
    assert capsys.readouterr().out == printed
