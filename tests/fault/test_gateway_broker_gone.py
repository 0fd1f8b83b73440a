"""The gateway while its broker is not there, goes away, and comes back."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from scripts.ports import kept_port
from seglog.gateway.server import GatewayServer
from seglog.gateway.settings import GatewaySettings

from tests.gateways import assert_problem, client_of, events_of
from tests.groups import eventually


@asynccontextmanager
async def broker_at(port: int, data: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A broker in a process of its own that listens; killed at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "seglog", "serve", "--data", str(data), "--port", str(port),
        "--log-level", "error", stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert (await process.stdout.readline()).startswith(b"listening on ")
        yield process
    finally:
        process.kill()
        await process.wait()


def gateway_for(port: int, **settings: Any) -> GatewayServer:
    configured = GatewaySettings(port=0, **settings)
    return GatewayServer(f"127.0.0.1:{port}", settings=configured)


ONE = {"records": [{"value": "x"}]}


async def test_a_gateway_starts_without_a_broker_and_serves_once_there_is_one(tmp_path):
    port = kept_port()
    server = gateway_for(port)
    async with server, client_of(server.url) as http:
        assert (await http.get("/healthz")).status_code == 200
        for answer in await asyncio.gather(
            http.get("/readyz"),
            http.get("/v1/topics"),
            http.post("/v1/topics/t/records", json=ONE),
            http.get("/v1/topics/t/partitions/0/records"),
            http.get("/v1/topics/t/events"),
        ):
            assert_problem(answer, 503, "NO_BROKER")

        async with broker_at(port, tmp_path):

            async def readiness() -> int:
                return (await http.get("/readyz")).status_code

            await eventually(readiness, 200)
            assert (await http.post("/v1/topics", json={"name": "t"})).status_code == 201
            assert (await http.post("/v1/topics/t/records", json=ONE)).status_code == 200


async def test_a_broker_that_is_killed_and_restarted_loses_nothing_that_was_answered(tmp_path):
    port = kept_port()
    server = gateway_for(port, broker_timeout_ms=20_000)
    async with server, client_of(server.url) as http:
        answered: list[str] = []
        stop = asyncio.Event()

        async def produce() -> None:
            number = 0
            while not stop.is_set():
                value = str(number := number + 1)
                body = {"records": [{"value": value}]}
                answer = await http.post("/v1/topics/t/records", json=body)
                if answer.status_code == 200:
                    answered.append(value)
                else:  # nothing was sent, and the client may say it again
                    assert_problem(answer, 503, "NO_BROKER")

        async def answered_more_than(count: int) -> bool:
            return len(answered) > count

        async with broker_at(port, tmp_path):
            await http.post("/v1/topics", json={"name": "t"})
            work = asyncio.create_task(produce())
            path = "/v1/topics/t/events?from=earliest"
            followed: list[str] = []

            async def follow() -> None:
                async with (
                    http.stream("GET", path) as answer,
                    aclosing(events_of(answer)) as events,
                ):
                    async for event in events:
                        followed.append(event.record["value"])  # noqa: PERF401 - seen meanwhile

            following = asyncio.create_task(follow())
            await eventually(lambda: answered_more_than(20), True)
        async with broker_at(port, tmp_path):
            count = len(answered)
            await eventually(lambda: answered_more_than(count + 20), True)
            stop.set()
            await work

            lines = (await http.get("/v1/topics/t/stream")).text.splitlines()
            stored = [json.loads(line)["value"] for line in lines]
            assert len(stored) == len(set(stored))  # the producer's own retries double nothing
            assert set(answered) <= set(stored)

            async def follower() -> list[str]:
                return followed

            await eventually(follower, stored)  # the same stream, through the restart
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def test_a_request_under_way_when_the_gateway_stops_is_answered(tmp_path):
    port = kept_port()
    async with broker_at(port, tmp_path) as broker:
        server = gateway_for(port)
        async with server, client_of(server.url) as http:
            await http.post("/v1/topics", json={"name": "t"})
            assert (await http.post("/v1/topics/t/records", json=ONE)).status_code == 200
            broker.send_signal(signal.SIGSTOP)
            try:
                asked = asyncio.create_task(http.post("/v1/topics/t/records", json=ONE))
                requests = server.gateway.backend

                async def is_sent() -> bool:
                    producer = requests._producer
                    return producer is not None and bool(producer._accumulator.unsettled)

                await eventually(is_sent, True)
                stopping = asyncio.create_task(server.stop())
                done, _ = await asyncio.wait({stopping, asked}, timeout=0.3)
                assert not done
            finally:
                broker.send_signal(signal.SIGCONT)
            answer = await asked
            await stopping

        assert answer.json()["records"][0]["offset"] == 1


async def test_an_outcome_that_is_not_known_is_told_as_that(tmp_path):
    port = kept_port()
    async with broker_at(port, tmp_path) as broker:
        server = gateway_for(port, broker_timeout_ms=5_000)
        async with server, client_of(server.url) as http:
            await http.post("/v1/topics", json={"name": "t"})
            await http.post("/v1/topics/t/records", json=ONE)
            broker.send_signal(signal.SIGSTOP)
            try:
                answer = await http.post("/v1/topics/t/records", json=ONE)
            finally:
                broker.send_signal(signal.SIGCONT)

            if answer.status_code == 503:  # the probe was due first: nothing was sent
                assert_problem(answer, 503, "NO_BROKER")
            else:
                problem = assert_problem(answer, 504, "DELIVERY_TIMEOUT")
                assert "may or may not be in the log" in problem["advice"]


async def test_a_producer_that_failed_for_good_is_replaced(tmp_path):
    port = kept_port()
    async with broker_at(port, tmp_path):
        server = gateway_for(port)
        async with server, client_of(server.url) as http:
            await http.post("/v1/topics", json={"name": "t"})
            await http.post("/v1/topics/t/records", json=ONE)
            backend = server.gateway.backend
            first = await backend.producer()

            await backend.drop(first)
            await backend.drop(first)

            answer = await http.post("/v1/topics/t/records", json=ONE)
            assert answer.json()["records"][0]["offset"] == 1
            assert await backend.producer() is not first
