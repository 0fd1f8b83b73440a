"""Every limit of the gateway from both sides: what fits is done, what does not is refused, and a
client that sends or takes nothing costs little and not for long.
"""

import asyncio
import os
import socket
import time
from contextlib import aclosing
from typing import Any

import pytest

from seglog.client.producer import Producer
from seglog.gateway.limits import Slots
from seglog.gateway.problems import Refused

from tests.brokers import BrokerMemory
from tests.gateways import Running, assert_problem, events_of, running_gateway
from tests.groups import eventually

KIB = 1024
MIB = 1024 * KIB
RAW = {"Content-Type": "application/octet-stream"}


class Plain:
    """A connection that speaks HTTP byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, gateway: Running, receive_bytes: int | None = None) -> "Plain":
        connected = socket.socket()
        if receive_bytes is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connected.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connected, ("127.0.0.1", gateway.server.port))
        return cls(*await asyncio.open_connection(sock=connected, limit=4 * KIB))

    def say(self, text: str) -> None:
        self.writer.write(text.encode())

    async def everything(self) -> bytes:
        """Until the gateway closes."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""
        finally:
            await self.close()

    async def close(self) -> None:
        self.writer.transport.abort()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass


def count_of(gateway: Running) -> Any:
    async def count() -> int:
        return gateway.server.gateway.streams.taken

    return count


# --- a request -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_declared", [True, False], ids=["declared", "chunked"])
async def test_a_body_may_have_max_body_bytes_and_no_more(tmp_path, is_declared):
    async with running_gateway(tmp_path, max_body_bytes=64 * KIB, max_requests=1) as gateway:
        await gateway.create("t")

        async def post(size: int) -> Any:
            async def parts():
                for at in range(0, size, 10_000):
                    yield b"x" * min(10_000, size - at)

            body: Any = b"x" * size if is_declared else parts()
            return await gateway.http.post("/v1/topics/t/records/raw", content=body, headers=RAW)

        assert (await post(64 * KIB)).status_code == 200
        problem = assert_problem(await post(64 * KIB + 1), 413, "LIMIT_EXCEEDED")
        assert "http.max.body.bytes" in problem["detail"]
        assert (await post(1)).status_code == 200  # and the connection goes on


async def test_a_request_may_have_max_records_and_no_more(tmp_path):
    async with running_gateway(tmp_path, max_records=5) as gateway:
        await gateway.create("t")
        await gateway.produce("t", *({"value": "x"} for _ in range(5)))
        await gateway.produce("t", {"value": "x"})

        six = {"records": [{"value": "x"}] * 6}
        answer = await gateway.http.post("/v1/topics/t/records", json=six)

        assert "http.max.records" in assert_problem(answer, 413, "LIMIT_EXCEEDED")["detail"]
        assert len((await gateway.read("t", max_records=1000))["records"]) == 5


async def test_an_answer_has_at_most_max_answer_bytes(tmp_path):
    async with running_gateway(tmp_path, max_answer_bytes=10 * KIB) as gateway:
        await gateway.create("t")
        await gateway.produce("t", *({"value": "x" * KIB} for _ in range(20)))

        assert len((await gateway.read("t", max_bytes=MIB))["records"]) == 10


async def test_a_wait_is_at_most_max_wait_ms(tmp_path):
    async with running_gateway(tmp_path, max_wait_ms=10) as gateway:
        await gateway.create("t")

        assert (await gateway.read("t", wait_ms=2_000_000_000))["records"] == []


async def test_headers_may_have_max_header_bytes_and_no_more(tmp_path):
    async with running_gateway(tmp_path, max_header_bytes=4 * KIB) as gateway:
        path = "/v1/topics"
        assert (await gateway.http.get(path, headers={"X": "y" * 3000})).status_code == 200
        refused = await gateway.http.get(path, headers={"X": "y" * 5000})
        assert_problem(refused, 431, "LIMIT_EXCEEDED")
        endless = await Plain.open(gateway)
        endless.say("GET / HTTP/1.1\r\nX: ")
        for _ in range(100):
            endless.say("y" * 10_000)
        await endless.everything()  # it is closed, though there would be more


async def test_a_body_that_does_not_come_is_given_up(tmp_path):
    async with running_gateway(tmp_path, body_timeout_ms=1_000) as gateway:
        await gateway.create("t")
        plain = await Plain.open(gateway)
        plain.say(
            "POST /v1/topics/t/records/raw HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n"
            "Content-Type: application/octet-stream\r\n\r\nhalf"
        )

        assert (await plain.reader.readline()).startswith(b"HTTP/1.1 408")
        await plain.close()


# --- all requests --------------------------------------------------------------------------------


async def test_requests_beyond_max_requests_are_refused_and_health_is_not(tmp_path):
    async with running_gateway(tmp_path, max_requests=2) as gateway:
        await gateway.create("t")
        waiting = [
            asyncio.create_task(gateway.read("t", wait_ms=30_000, **{"from": 0})) for _ in range(2)
        ]

        async def third() -> int:
            return (await gateway.http.get("/v1/topics")).status_code

        await eventually(gateway.parked, 2)  # earlier, it might take the place of one of them
        answer = await gateway.http.get("/v1/topics")
        assert "http.max.requests" in assert_problem(answer, 429, "TOO_MANY_CONNECTIONS")["detail"]
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await gateway.http.get(path)).status_code == 200
        async with Producer(gateway.bootstrap) as producer:
            await producer.send_and_wait("t", b"x")
        assert [len((await each)["records"]) for each in waiting] == [1, 1]
        await eventually(third, 200)


async def test_streams_beyond_max_streams_are_refused(tmp_path):
    async with running_gateway(tmp_path, max_streams=1, max_requests=1) as gateway:
        await gateway.create("t")
        await gateway.produce("t", {"value": "x"})
        path = "/v1/topics/t/events?from=earliest"
        async with (
            gateway.http.stream("GET", path) as answer,
            aclosing(events_of(answer)) as events,
        ):
            await anext(events)
            # A stream takes no slot of the requests.
            assert (await gateway.http.get("/v1/topics")).status_code == 200
            second = await gateway.http.get(path)
            refused = assert_problem(second, 429, "TOO_MANY_CONNECTIONS")
            assert "http.max.streams" in refused["detail"]
        await eventually(count_of(gateway), 0)
        async with gateway.http.stream("GET", path) as answer:
            assert answer.status_code == 200


async def test_a_stream_of_too_many_partitions_must_name_one(tmp_path):
    async with running_gateway(tmp_path, max_stream_partitions=2) as gateway:
        await gateway.create("two", 2)
        await gateway.create("three", 3)

        assert (await gateway.http.get("/v1/topics/two/stream")).status_code == 200
        refused = assert_problem(
            await gateway.http.get("/v1/topics/three/stream"), 422, "LIMIT_EXCEEDED"
        )
        assert "http.max.stream.partitions" in refused["detail"]
        one = await gateway.http.get("/v1/topics/three/stream?partition=2")
        assert one.status_code == 200


async def test_bodies_beyond_max_bodies_bytes_are_refused_together(tmp_path):
    limits: dict[str, Any] = {"max_bodies_bytes": 100 * KIB, "max_body_bytes": 64 * KIB}
    async with running_gateway(tmp_path, **limits) as gateway:
        await gateway.create("t")
        plain = await Plain.open(gateway)
        plain.say(
            f"POST /v1/topics/t/records/raw HTTP/1.1\r\nHost: x\r\nContent-Length: {60 * KIB}\r\n"
            f"Content-Type: application/octet-stream\r\n\r\n{'x' * 59 * KIB}"
        )

        async def second() -> int:
            body = b"x" * 60 * KIB
            return (
                await gateway.http.post("/v1/topics/t/records/raw", content=body, headers=RAW)
            ).status_code

        await eventually(gateway.bodies_bytes, 59 * KIB)  # earlier, it might be refused for ours
        assert await second() == 429
        await plain.close()
        await eventually(second, 200)


async def test_connections_beyond_max_connections_are_closed(tmp_path):
    async with running_gateway(tmp_path, max_connections=3) as gateway:
        kept = [await Plain.open(gateway) for _ in range(3)]
        beyond = await Plain.open(gateway)

        assert await beyond.everything() == b""
        kept[0].say("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await kept[0].reader.readline()).startswith(b"HTTP/1.1 200")
        for plain in kept:
            await plain.close()


@pytest.mark.parametrize(
    "begun", ["", "GET /healthz HTTP/1.1\r\nHost: x\r\n"], ids=["silent", "half"]
)
async def test_a_connection_that_does_not_ask_is_closed(tmp_path, begun):
    async with running_gateway(tmp_path, idle_timeout_ms=500) as gateway:
        plain = await Plain.open(gateway)
        plain.say(begun)

        assert await plain.everything() == b""


async def test_headers_that_come_byte_by_byte_have_no_longer(tmp_path):
    async with running_gateway(tmp_path, idle_timeout_ms=500) as gateway:
        plain = await Plain.open(gateway)
        ended = asyncio.create_task(plain.everything())
        plain.say("GET /healthz HTTP/1.1\r\nX: ")
        while not ended.done():
            plain.say("y")
            await asyncio.wait({ended}, timeout=0.02)

        assert await ended == b""


# --- readers that stall --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["events", "stream"])
async def test_a_client_that_takes_nothing_costs_a_buffer_and_is_cut_off(tmp_path, kind):
    limits: dict[str, Any] = {"slow_reader_timeout_ms": 500, "stream_buffer_bytes": 256 * KIB}
    async with running_gateway(tmp_path, **limits) as gateway:
        await gateway.create("t")
        async with Producer(gateway.bootstrap) as producer:
            for _ in range(64):
                await producer.send_batch("t", [b"x" * 10_000] * 100)  # 64 MB in all
        memory = BrokerMemory(os.getpid())
        before = memory.sample()
        stalled = [await Plain.open(gateway, receive_bytes=4 * KIB) for _ in range(10)]
        for plain in stalled:
            plain.say(f"GET /v1/topics/t/{kind}?from=earliest HTTP/1.1\r\nHost: x\r\n\r\n")

        async def begun_and_left() -> tuple[bool, int]:
            memory.sample()
            figures = gateway.server.gateway.figures.expose()[0].decode()
            begun = f'route="/v1/topics/{{topic}}/{kind}",status="200"}} 10.0' in figures
            return begun, gateway.server.gateway.streams.taken

        await eventually(begun_and_left, (True, 0))  # all of them were cut off: nobody closed one

        # 640 MB were asked for; each may hold a fetch, a decoded batch and what is being sent.
        assert memory.peak_bytes - before < 100 * MIB
        for plain in stalled:
            await plain.close()


async def test_a_client_that_is_slow_but_takes_something_is_not_cut_off(tmp_path):
    async with running_gateway(tmp_path, slow_reader_timeout_ms=4_000) as gateway:
        await gateway.create("t")
        async with Producer(gateway.bootstrap) as producer:
            await producer.send_batch("t", [b"x" * 10_000] * 1500)
        plain = await Plain.open(gateway, receive_bytes=64 * KIB)
        plain.say("GET /v1/topics/t/stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = 0
        loop = asyncio.get_running_loop()
        is_slow_until = loop.time() + 4.5  # longer than the timeout, in all
        while part := await plain.reader.read(MIB):
            received += len(part)
            if loop.time() < is_slow_until:
                await asyncio.sleep(0.02)

        assert received > 1500 * 10_000
        await plain.close()


async def test_a_gateway_that_stood_still_takes_nobody_for_slow(tmp_path):
    async with running_gateway(tmp_path, slow_reader_timeout_ms=1_000) as gateway:
        await gateway.create("t")
        async with Producer(gateway.bootstrap) as producer:
            await producer.send_batch("t", [b"x" * 10_000] * 1500)
        plain = await Plain.open(gateway, receive_bytes=4 * KIB)
        plain.say("GET /v1/topics/t/stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

        async def is_watched() -> bool:
            assert gateway.server._server is not None
            connections: set[Any] = gateway.server._server.server_state.connections
            return any(each._stalled for each in connections)

        await eventually(is_watched, True)
        time.sleep(1.4)  # noqa: ASYNC251 - the gateway's loop is ours: it is stopped

        assert len(await plain.everything()) > 1500 * 10_000
        await plain.close()


def test_a_slot_is_given_back_once():
    slots = Slots(1, "some.limit")
    slot = slots.take()
    with pytest.raises(Refused):
        slots.take()
    slot.release()
    slot.release()
    assert slots.taken == 0
