"""What a scrape asks the broker for: lag, topics that come and go; its limits; its manners."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from seglog import Admin, Consumer, Producer
from seglog.prometheus import SHARE, Pacer
from seglog.protocol import api, messages
from seglog.protocol.batch import encode_batch
from seglog.server.app import Broker
from seglog.server.metrics_table import LAG_RECORDS

from tests.brokers import NOON_US, RawClient, running_broker
from tests.metrics import Scrape

LAG = ("group", "topic", "partition")


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running_broker(tmp_path) as running:
        yield running


def bootstrap(broker: Broker) -> str:
    return f"127.0.0.1:{broker.port}"


# --- lag -----------------------------------------------------------------------------------------


async def test_lag_in_records_and_seconds_is_that_of_each_bookmark(broker: Broker):
    async with (
        Admin(bootstrap(broker)) as admin,
        await RawClient.open(broker.port) as client,
    ):
        await admin.create_topic("t", 3)
        for number in range(10):
            await client.produce("t", 0, b"x")
            if number < 4:
                await client.produce("t", 1, b"x")
        await admin.commit_offsets("slow", {("t", 0): 3, ("t", 1): 4, ("t", 2): 0})
        await admin.commit_offsets("new", {("t", 0): 0})
        appended = {
            number: broker.topics.partition("t", 0).log.append_time_of(number) or 0
            for number in (0, 3)
        }
        for _ in range(2):  # the second one knows the append times from the first
            earliest = time.time_ns() // 1000
            scrape = await Scrape.of(broker)
            latest = time.time_ns() // 1000
            assert scrape.series("seglog_consumer_group_lag_records", *LAG) == {
                ("slow", "t", "0"): 7,
                ("slow", "t", "1"): 0,
                ("slow", "t", "2"): 0,
                ("new", "t", "0"): 10,
            }
            seconds = scrape.series("seglog_consumer_group_lag_seconds", *LAG)
            for group, number in (("slow", 3), ("new", 0)):
                lag_us = round(seconds.pop((group, "t", "0")) * 1e6)
                assert earliest - appended[number] <= lag_us <= latest - appended[number]
            assert seconds == {("slow", "t", "1"): 0, ("slow", "t", "2"): 0}
        assert scrape.value(
            "seglog_consumer_group_committed_offset", group="slow", topic="t", partition=0
        ) == 3  # fmt: skip
        assert scrape["seglog_consumer_groups"] == 2

        # A bookmark that moves has another append time; records below the log start do not count.
        await admin.commit_offsets("slow", {("t", 0): 9})
        await admin.delete_records("t", 0, 6)
        scrape = await Scrape.of(broker)
        lags = scrape.series("seglog_consumer_group_lag_records", *LAG)
        assert lags["slow", "t", "0"] == 1
        assert lags["new", "t", "0"] == 4
        seconds = scrape.series("seglog_consumer_group_lag_seconds", *LAG)
        assert 0 < seconds["slow", "t", "0"] < seconds["new", "t", "0"]


async def test_lag_agrees_with_what_the_group_is_told_by_the_client(broker: Broker):
    async with (
        Admin(bootstrap(broker)) as admin,
        Producer(bootstrap(broker)) as producer,
    ):
        await admin.create_topic("t", 2)
        await producer.send_batch("t", [b"x"] * 500, partition=0)
        await producer.send_batch("t", [b"x"] * 300, partition=1)
        await producer.flush()
        read = 0
        async with Consumer(
            "t", bootstrap=bootstrap(broker), group="g", start="earliest"
        ) as consumer:
            async for _ in consumer:
                read += 1
                if read == 350:
                    break
            await consumer.commit()
            scrape = await Scrape.of(broker)
            described = await admin.describe_group("g")
        assert scrape.value("seglog_consumer_group_members", group="g") == 1
        assert scrape.value("seglog_consumer_group_epoch", group="g") == described.epoch
        lags = scrape.series("seglog_consumer_group_lag_records", *LAG)
        told = {
            ("g", each.name.topic, str(each.name.partition)): each.lag.records
            for each in described.partitions
            if each.lag is not None
        }
        assert lags == told
        committed = scrape.series("seglog_consumer_group_committed_offset", *LAG)
        assert sum(lags.values()) == 800 - sum(committed.values())


async def test_a_member_that_waits_for_news_is_shown_as_a_long_poll(broker: Broker):
    async with Admin(bootstrap(broker)) as admin:
        await admin.create_topic("t", 1)
        async with Consumer("t", bootstrap=bootstrap(broker), group="g", start="earliest"):
            while True:  # its heartbeat is parked once it has its assignment
                scrape = await Scrape.of(broker)
                if scrape.value("seglog_long_polls", api="group_heartbeat") == 1:
                    break
        after = await Scrape.of(broker)
    assert after.value("seglog_long_polls", api="group_heartbeat") == 0


async def test_a_bookmark_in_a_lost_segment_has_its_lag_in_records_and_is_counted(tmp_path: Path):
    async with (
        running_broker(tmp_path, open_segments=1) as broker,
        Admin(bootstrap(broker)) as admin,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t", 1, segment_bytes=200)
        for _ in range(5):
            await client.produce("t", 0, b"x" * 100)
        await admin.commit_offsets("lost", {("t", 0): 0})
        await admin.commit_offsets("sound", {("t", 0): 4})
        (tmp_path / "topic-t" / "partition-0" / "00000000.log").unlink()
        scrape = await Scrape.of(broker)
    records = scrape.series("seglog_consumer_group_lag_records", "group")
    assert records == {"lost": 5, "sound": 1}
    assert set(scrape.series("seglog_consumer_group_lag_seconds", "group")) == {"sound"}
    assert scrape.value("seglog_metrics_left_out", kind="unreadable") == 1


# --- topics that come and go ---------------------------------------------------------------------


async def test_a_deleted_topic_takes_its_series_along_and_leaves_the_sums(broker: Broker):
    async with Admin(bootstrap(broker)) as admin, await RawClient.open(broker.port) as client:
        await admin.create_topic("gone", 2)
        await admin.create_topic("stays", 1)
        for topic in ("gone", "stays"):
            await client.produce(topic, 0, b"a", b"b")
            await client.fetch(topic, 0, 0)
        await admin.commit_offsets("g", {("gone", 0): 1, ("stays", 0): 1})
        before = await Scrape.of(broker)
        await admin.delete_topic("gone")
        after = await Scrape.of(broker)
        await admin.create_topic("gone", 1)
        again = await Scrape.of(broker)

    assert "gone" in before.label_values("topic")
    assert "gone" not in after.label_values("topic")
    assert "stays" in after.label_values("topic")
    for name in ("seglog_records_in_total", "seglog_bytes_in_total", "seglog_records_out_total"):
        assert after[name] == before[name] > 0
    assert again.value("seglog_topic_records_in_total", topic="gone") == 0
    assert not any(place[1] == "gone" for place in again.series(
        "seglog_consumer_group_lag_records", *LAG))  # fmt: skip


async def test_partitions_that_are_added_count_with_their_topic(broker: Broker):
    async with Admin(bootstrap(broker)) as admin, await RawClient.open(broker.port) as client:
        await admin.create_topic("t", 1)
        await client.produce("t", 0, b"a")
        await admin.alter_topic("t", partitions=3)
        await client.produce("t", 2, b"b", b"c")
        scrape = await Scrape.of(broker)
    assert scrape.value("seglog_topic_records_in_total", topic="t") == 3
    ends = scrape.series("seglog_log_end_offset", "topic", "partition")
    assert ends == {("t", "0"): 1, ("t", "1"): 0, ("t", "2"): 2}


# --- limits --------------------------------------------------------------------------------------


async def scrape_with(data: Path, **limits: Any) -> Scrape:
    """Three topics of two partitions and three groups with a bookmark in each partition."""
    async with running_broker(data, **limits) as broker, Admin(bootstrap(broker)) as admin:
        if "a" not in await admin.list_topics():
            places = []
            for name in "abc":
                await admin.create_topic(name, 2)
                places += [(name, 0), (name, 1)]
            for group in ("g1", "g2", "g3"):
                await admin.commit_offsets(group, dict.fromkeys(places, 0))
        return await Scrape.of(broker)


def left_out(scrape: Scrape) -> dict[Any, float]:
    found = scrape.series("seglog_metrics_left_out", "kind")
    return {kind: count for kind, count in found.items() if count}


async def test_up_to_its_limit_everything_is_shown_and_beyond_it_is_counted(tmp_path: Path):
    await scrape_with(tmp_path)  # makes the topics and groups, and `__groups`
    exactly = {
        "metrics_max_topics": 4,
        "metrics_max_partitions": 7,
        "metrics_max_groups": 3,
        "metrics_max_group_partitions": 18,
    }
    scrape = await scrape_with(tmp_path, **exactly)
    assert not left_out(scrape)
    assert len(scrape.series("seglog_topic_records_in_total", "topic")) == 4
    assert len(scrape.series("seglog_log_end_offset", "topic", "partition")) == 7
    assert len(scrape.series("seglog_consumer_group_members", "group")) == 3
    assert len(scrape.series("seglog_consumer_group_lag_records", *LAG)) == 18

    less = {name: limit - 1 for name, limit in exactly.items()}
    scrape = await scrape_with(tmp_path, **less)
    # Of the group that is left out, its six bookmarks are not among those that might be shown.
    assert left_out(scrape) == {"topics": 1, "partitions": 1, "groups": 1}
    assert len(scrape.series("seglog_topic_records_in_total", "topic")) == 3
    assert len(scrape.series("seglog_log_end_offset", "topic", "partition")) == 6
    assert set(scrape.series("seglog_consumer_group_members", "group")) == {"g1", "g2"}
    assert (scrape["seglog_topics"], scrape["seglog_partitions"]) == (4, 7)
    assert scrape["seglog_consumer_groups"] == 3

    scrape = await scrape_with(tmp_path, metrics_max_group_partitions=17)
    assert left_out(scrape) == {"group_partitions": 1}
    assert len(scrape.series("seglog_consumer_group_lag_records", *LAG)) == 17

    nothing = dict.fromkeys(exactly, 0)
    scrape = await scrape_with(tmp_path, **nothing)
    assert left_out(scrape) == {"topics": 4, "partitions": 7, "groups": 3}
    assert not {"topic", "partition", "group"} & {
        label for _, labels in scrape.samples for label, _ in labels
    }


# --- scraping beside traffic ---------------------------------------------------------------------


async def test_scrapes_during_full_load_see_counters_grow_and_lose_nothing(broker: Broker):
    partitions, rounds, connections = 4, 120, 4
    scrapes: list[Scrape] = []
    done = asyncio.Event()

    async def produce(number: int) -> int:
        read = 0
        async with await RawClient.open(broker.port) as client:
            for each in range(rounds):
                partition = (number + each) % partitions
                offset = await client.produce("t", partition, *[b"x" * 50] * 5)
                found = await client.fetch("t", partition, offset, max_bytes=1)
                assert found.batches
                read += 5
        return read

    async def scrape() -> None:
        while not done.is_set():
            scrapes.append(await Scrape.of(broker))

    async with await RawClient.open(broker.port) as client:
        await client.create("t", partitions, segment_bytes=20_000)
        scraping = asyncio.create_task(scrape())
        read = sum(await asyncio.gather(*map(produce, range(connections))))
        done.set()
        await scraping
        last = await Scrape.of(broker)

    assert last["seglog_records_in_total"] == connections * rounds * 5
    assert last["seglog_batches_in_total"] == connections * rounds
    assert last["seglog_records_out_total"] == read
    assert last.value("seglog_requests_total", api="produce") == connections * rounds
    assert last.value("seglog_requests_total", api="fetch") == connections * rounds
    assert last["seglog_group_commit_batches_sum"] == connections * rounds
    assert not last.series("seglog_errors_total", "api", "code")
    previous: dict = {}
    for each in [*scrapes, last]:
        now = each.counters()
        lower = {place: (was, now[place]) for place, was in previous.items() if now[place] < was}
        assert not lower
        previous = now
        for number in map(str, range(partitions)):
            place = {"topic": "t", "partition": number}
            assert (
                each.value("seglog_log_start_offset", **place)
                <= each.value("seglog_log_durable_end_offset", **place)
                <= each.value("seglog_log_end_offset", **place)
            )


async def test_a_large_scrape_lets_others_work_again_and_again(tmp_path: Path):
    """Two thousand bookmarks. In the middle of the scrape, wherever it pauses, produces are
    answered, topics are made and deleted, and bookmarks move.
    """
    groups, partitions = 20, 100
    pauses = 0
    async with (
        running_broker(tmp_path) as broker,
        Admin(bootstrap(broker)) as admin,
        await RawClient.open(broker.port) as client,
    ):
        await admin.create_topic("many", partitions, {"durability": "os"})
        await client.create("t", 1)
        batch = memoryview(encode_batch([b"x"], timestamps=NOON_US))
        batches = [messages.ProduceBatch("many", each, batch) for each in range(partitions)]
        await client.call(api.PRODUCE, messages.ProduceRequest(batches))
        bookmarks = {("many", each): 0 for each in range(partitions)}
        for number in range(groups):
            await admin.commit_offsets(f"g{number:02}", bookmarks)

        async def work() -> None:
            await client.produce("t", 0, b"x")
            await client.create(f"new-{pauses}", 1)
            await client.call(api.DELETE_TOPIC, messages.DeleteTopicRequest(f"new-{pauses}"))
            await admin.commit_offsets(f"late-{pauses}", {("many", 0): 0})

        loop = asyncio.get_running_loop()

        def pause() -> None:
            nonlocal pauses
            pauses += 1
            if pauses % 150 == 0:
                asyncio.run_coroutine_threadsafe(work(), loop).result(30)

        rows = await asyncio.to_thread(broker.scraper.scrape, pause)
        scrape = await Scrape.of(broker)

    assert pauses >= groups * partitions + partitions  # after each log and each bookmark
    lags = dict(rows[LAG_RECORDS])
    for number in range(groups):
        for each in range(partitions):
            assert lags[f"g{number:02}", "many", str(each)] == 1
    assert scrape["seglog_records_in_total"] == partitions + pauses // 150


def test_the_pacer_keeps_to_its_share_of_the_time():
    now, slept = 0.0, 0.0

    def sleep(seconds: float) -> None:
        nonlocal now, slept
        now, slept = now + seconds, slept + seconds

    pacer = Pacer(lambda: now, sleep)
    for _ in range(10_000):
        now += 0.0001
        pacer()
    worked = now - slept
    assert worked == pytest.approx(1.0)
    assert worked / now == pytest.approx(SHARE, rel=0.01)
    pacer()
    assert slept == now - worked  # a moment of work is no reason to sleep
