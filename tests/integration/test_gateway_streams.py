"""Streams: a range or on and on, resumed exactly, ended cleanly, and nothing left behind."""

import asyncio
import json
import random
from contextlib import aclosing
from typing import Any

import pytest

from tests.gateways import Running, assert_problem, events_of, running_gateway
from tests.groups import eventually


@pytest.fixture
async def gateway(tmp_path):
    async with running_gateway(tmp_path) as running:
        yield running


async def fill(gateway: Running, partitions: int = 1, count: int = 10, topic: str = "t") -> None:
    """The numbers 0 to `count` - 1, dealt to the partitions in turn."""
    await gateway.create(topic, partitions)
    records = [{"value": str(n), "partition": n % partitions} for n in range(count)]
    await gateway.produce(topic, *records)


async def no_streams(gateway: Running) -> None:
    """All consumers are closed: only the connections of the Producer and the Admin are left."""

    async def open_streams() -> tuple[int, bool]:
        is_few = len(gateway.broker.listener.connections) <= 2
        return gateway.server.gateway.streams.taken, is_few

    await eventually(open_streams, (0, True))


async def lines_of(gateway: Running, topic: str = "t", **query: Any) -> list[dict[str, Any]]:
    """A stream that ends."""
    answer = await gateway.http.get(f"/v1/topics/{topic}/stream", params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def by_partition(records: list[dict[str, Any]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for record in records:
        found.setdefault(record["partition"], []).append(record["offset"])
    return found


# --- lines ---------------------------------------------------------------------------------------


async def test_a_stream_of_lines_has_all_that_is_there_and_ends(gateway):
    await fill(gateway, partitions=3, count=3000)

    lines = await lines_of(gateway)

    assert by_partition(lines) == {number: list(range(1000)) for number in range(3)}
    await no_streams(gateway)


@pytest.mark.parametrize(
    ("query", "offsets"),
    [
        ({"from": 3, "to": 7}, range(3, 7)),
        ({"from": "-3"}, range(7, 10)),
        ({"from": "earliest", "to": "-8"}, range(2)),
        ({"from": 9, "to": 10}, range(9, 10)),
        ({"from": 5, "to": 5}, range(0)),
        ({"from": 7, "to": 3}, range(0)),
        ({"from": "latest"}, range(0)),
        ({"max_records": 4}, range(4)),
        ({"partition": 0, "from": 8}, range(8, 10)),
        ({"follow": True, "from": 4, "max_records": 3}, range(4, 7)),
    ],
    ids=str,
)
async def test_a_range_is_read_exactly(gateway, query, offsets):
    await fill(gateway)

    assert [line["offset"] for line in await lines_of(gateway, **query)] == list(offsets)


async def test_a_stream_that_follows_gives_what_comes_later(gateway):
    await fill(gateway, count=2)
    values = []

    async with gateway.http.stream("GET", "/v1/topics/t/stream?follow=true") as answer:
        async for line in answer.aiter_lines():
            values.append(json.loads(line)["value"])
            if len(values) == 2:
                await gateway.produce("t", {"value": "new"})
            if values[-1] == "new":
                break

    assert values == ["0", "1", "new"]
    await no_streams(gateway)


async def test_an_error_behind_the_first_record_is_the_last_line(gateway):
    await fill(gateway, count=2)
    lines = []

    async with gateway.http.stream("GET", "/v1/topics/t/stream?follow=true") as answer:
        async for line in answer.aiter_lines():
            lines.append(json.loads(line))
            if len(lines) == 2:
                await gateway.http.delete("/v1/topics/t")

    assert [line.get("value") for line in lines] == ["0", "1", None]
    assert lines[-1]["error"]["name"] == "UNKNOWN_TOPIC"


async def test_what_is_wrong_is_told_before_a_stream_begins(gateway):
    await fill(gateway)
    for path, status, name in (
        ("/v1/topics/none/stream", 404, "UNKNOWN_TOPIC"),
        ("/v1/topics/t/stream?partition=5", 404, "UNKNOWN_PARTITION"),
        ("/v1/topics/t/events?from=99", 416, "OFFSET_OUT_OF_RANGE"),
        ("/v1/topics/t/stream?from=2026-99-99", 422, "BAD_REQUEST"),
        ("/v1/topics/t/stream?to=5&follow=true", 422, "BAD_REQUEST"),
    ):
        assert_problem(await gateway.http.get(path), status, name)
    await no_streams(gateway)


# --- events --------------------------------------------------------------------------------------


async def test_a_client_that_reconnects_with_the_last_id_misses_and_doubles_nothing(gateway):
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    await gateway.create("t", 3)
    total = 0
    seen: list[tuple[int, int]] = []
    last_id = "0:0,1:0,2:0"

    while len(seen) < 300:
        records = [
            {"value": "x", "partition": chance.randrange(3)} for _ in range(chance.randint(0, 60))
        ]
        if records:
            await gateway.produce("t", *records)
        total += len(records)
        wanted = chance.randint(0, total - len(seen))
        headers = {"Last-Event-ID": last_id}
        async with gateway.http.stream("GET", "/v1/topics/t/events", headers=headers) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            async with aclosing(events_of(answer)) as events:
                for _ in range(wanted):
                    event = await anext(events)
                    seen.append((event.record["partition"], event.record["offset"]))
                    last_id = event.id

    for number in range(3):
        offsets = [offset for partition, offset in seen if partition == number]
        assert offsets == list(range(len(offsets))), f"partition {number}, seed {seed}"
    await no_streams(gateway)


async def test_the_id_before_the_first_event_resumes_as_exactly(gateway):
    await fill(gateway, partitions=2, count=4)
    async with gateway.http.stream("GET", "/v1/topics/t/events") as answer:  # from the end
        lines = answer.aiter_lines()
        while not (line := await anext(lines)).startswith("id: "):
            pass
    await gateway.produce("t", {"value": "a", "partition": 0}, {"value": "b", "partition": 1})

    headers = {"Last-Event-ID": line.removeprefix("id: ")}
    async with (
        gateway.http.stream("GET", "/v1/topics/t/events", headers=headers) as answer,
        aclosing(events_of(answer)) as events,
    ):
        found = [(await anext(events)).record["value"] for _ in range(2)]

    assert sorted(found) == ["a", "b"]


async def test_a_partition_that_came_after_the_id_is_read_from_its_start(gateway):
    await fill(gateway, partitions=1, count=2)
    await gateway.http.patch("/v1/topics/t", json={"partitions": 2})
    await gateway.produce("t", {"value": "new", "partition": 1})

    headers = {"Last-Event-ID": "0:2"}
    async with (
        gateway.http.stream("GET", "/v1/topics/t/events", headers=headers) as answer,
        aclosing(events_of(answer)) as events,
    ):
        event = await anext(events)

    assert (event.record["value"], event.id) == ("new", "0:2,1:1")


async def test_one_partition_alone_can_be_followed(gateway):
    await fill(gateway, partitions=2, count=4)

    path = "/v1/topics/t/events?partition=1&from=earliest"
    async with gateway.http.stream("GET", path) as answer, aclosing(events_of(answer)) as events:
        found = [await anext(events) for _ in range(2)]

    assert [(e.id, e.record["partition"]) for e in found] == [("1:1", 1), ("1:2", 1)]


async def test_an_id_whose_records_are_deleted_is_an_error_and_not_a_jump(gateway):
    await fill(gateway, count=10)
    await gateway.http.delete("/v1/topics/t/partitions/0/records", params={"before": 5})

    for given, status, name in (
        ("0:3", 416, "OFFSET_OUT_OF_RANGE"),
        ("0:99", 416, "OFFSET_OUT_OF_RANGE"),
        ("noise", 422, "BAD_REQUEST"),
        ("0:1,0:2", 422, "BAD_REQUEST"),
        ("0:99999999999999999999", 422, "BAD_REQUEST"),
    ):
        answer = await gateway.http.get("/v1/topics/t/events", headers={"Last-Event-ID": given})
        assert_problem(answer, status, name)


async def test_a_topic_that_is_deleted_ends_its_streams_with_an_error_event(gateway):
    await fill(gateway, count=1)

    path = "/v1/topics/t/events?from=earliest"
    async with gateway.http.stream("GET", path) as answer:
        found = []
        async for event in events_of(answer):
            found.append(event)
            if len(found) == 1:
                await gateway.http.delete("/v1/topics/t")

    assert [event.kind for event in found] == ["message", "error"]
    assert found[-1].record["name"] == "UNKNOWN_TOPIC"


async def test_a_quiet_stream_shows_that_it_lives(tmp_path):
    async with running_gateway(tmp_path, heartbeat_ms=20) as gateway:
        await gateway.create("t")
        beats = 0
        async with gateway.http.stream("GET", "/v1/topics/t/events") as answer:
            async for line in answer.aiter_lines():
                beats += line.startswith(":")
                if beats == 3:
                    break
        assert beats == 3
        await no_streams(gateway)


async def test_a_stream_ends_after_its_time_and_goes_on_with_its_id(tmp_path):
    async with running_gateway(tmp_path, max_stream_ms=300) as gateway:
        await fill(gateway, count=500)
        last_id = "0:0"
        seen: list[int] = []
        while len(seen) < 500:
            headers = {"Last-Event-ID": last_id}
            path = "/v1/topics/t/events"
            async with gateway.http.stream("GET", path, headers=headers) as answer:
                async for event in events_of(answer):  # ends by itself
                    seen.append(event.record["offset"])
                    last_id = event.id
        assert seen == list(range(500))


# --- ends ----------------------------------------------------------------------------------------


async def test_clients_that_go_free_their_consumers(gateway):
    await fill(gateway)

    async def follow(kind: str) -> None:
        async with gateway.http.stream("GET", f"/v1/topics/t/{kind}") as answer:
            async for _ in answer.aiter_raw():
                break

    await asyncio.gather(*(follow("events") for _ in range(10)))
    await asyncio.gather(*(follow("stream?follow=true") for _ in range(10)))

    await no_streams(gateway)


async def test_a_stop_ends_streams_and_long_polls_and_answers_them(tmp_path):
    async with running_gateway(tmp_path) as gateway:
        await fill(gateway, count=1)
        path = "/v1/topics/t/events?from=earliest"
        async with (
            gateway.http.stream("GET", path) as answer,
            aclosing(events_of(answer)) as events,
        ):
            await anext(events)
            place: dict[str, Any] = {"from": "latest"}
            waiting = asyncio.create_task(gateway.read("t", wait_ms=30_000, **place))
            await eventually(gateway.parked, 2)  # the stream's, and the one that waits
            stopping = asyncio.create_task(gateway.server.stop())
            rest = [event async for event in events]  # the end of the body, not a cut
        await stopping
        assert rest == []
        assert (await waiting)["records"] == []
        await gateway.server.stop()  # twice is harmless
