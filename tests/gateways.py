"""What the tests of the HTTP gateway share: a real gateway on a free port, with a real broker."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from seglog.client.embedded import embedded_blocking
from seglog.client.loop_thread import LoopThread
from seglog.gateway.limits import Limits
from seglog.gateway.server import GatewayServer
from seglog.gateway.settings import GatewaySettings
from seglog.server.app import Broker

from tests.brokers import running_broker

#: Bounds a hang, and nothing else.
PATIENCE_S = 120


class Running(NamedTuple):
    """A gateway, a client of it, and the broker behind."""

    http: httpx.AsyncClient
    server: GatewayServer
    broker: Broker

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.broker.port}"

    async def create(self, topic: str, partitions: int = 1, **config: Any) -> None:
        body = {"name": topic, "partitions": partitions, "config": config}
        answer = await self.http.post("/v1/topics", json=body)
        assert answer.status_code == 201, answer.text

    async def produce(self, topic: str, *records: dict[str, Any]) -> list[dict[str, Any]]:
        answer = await self.http.post(f"/v1/topics/{topic}/records", json={"records": records})
        assert answer.status_code == 200, answer.text
        placed: list[dict[str, Any]] = answer.json()["records"]
        return placed

    async def read(self, topic: str, partition: int = 0, **query: Any) -> dict[str, Any]:
        path = f"/v1/topics/{topic}/partitions/{partition}/records"
        answer = await self.http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def parked(self, topic: str = "t", partition: int = 0) -> int:
        """How many fetches of a partition wait in the broker: of reads and of streams."""
        return len(self.broker.topics.partition(topic, partition).waiters)

    async def bodies_bytes(self) -> int:
        """How much of the bodies of requests has come that are not answered yet."""
        layer: Any = self.server.app.middleware_stack
        while not isinstance(layer, Limits):
            layer = getattr(layer, "app", None) or layer._app
        return layer._bodies_bytes


def client_of(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=PATIENCE_S)


@asynccontextmanager
async def running_gateway(
    data: Path, broker_settings: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Running]:
    """Both in this loop; the gateway's settings with underscores in place of their dots."""
    async with running_broker(data, **(broker_settings or {})) as broker:
        configured = GatewaySettings(port=0, **settings)
        server = GatewayServer(f"127.0.0.1:{broker.port}", settings=configured)
        async with server, client_of(server.url) as http:
            yield Running(http, server, broker)


@contextmanager
def gateway_in_a_thread(
    broker_settings: dict[str, Any] | None = None, **settings: Any
) -> Iterator[tuple[str, str]]:
    """The addresses of a gateway and its broker, for tests that have no loop."""
    with embedded_blocking(**(broker_settings or {})) as broker:
        thread = LoopThread("test-gateway")
        server = GatewayServer(broker.bootstrap, settings=GatewaySettings(port=0, **settings))
        try:
            thread.call(server.start())
            try:
                yield server.url, broker.bootstrap
            finally:
                thread.call(server.stop())
        finally:
            thread.close()


def assert_problem(answer: httpx.Response, status: int, name: str) -> dict[str, Any]:
    """A problem of this status and name that says what to do; its body."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert (body["status"], body["name"]) == (status, name), body
    assert body["detail"], body
    assert body["advice"], body
    assert ("retry-after" in answer.headers) == body["retriable"], body
    return body


class Event(NamedTuple):
    """A server-sent event as a client sees it; `record` is its data."""

    kind: str
    id: str
    record: dict[str, Any]


async def events_of(answer: httpx.Response) -> AsyncGenerator[Event, None]:
    """As the specification of server-sent events says: the id stays until another comes."""
    kind, last_id, data = "message", "", ""
    async for line in answer.aiter_lines():
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            kind = value
        elif name == "id":
            last_id = value
        elif name == "data":
            data += value
        elif not line and data:
            yield Event(kind, last_id, json.loads(data))
            kind, data = "message", ""
