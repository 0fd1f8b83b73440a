"""A thousand connections at once: each is served, and an idle one costs little."""

import asyncio
import sys
from pathlib import Path

import pytest

from seglog.protocol.constants import KIB

from tests.brokers import RawClient, broker_process, values_of

COUNT = 1000
MAX_IDLE_BYTES = 30 * KIB

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads memory from /proc")


async def open_all(port: int) -> list[RawClient]:
    clients: list[RawClient] = []
    for _ in range(
        COUNT // 100
    ):  # a hundred at a time, so that the backlog of the socket is enough
        clients += await asyncio.gather(*(RawClient.open(port) for _ in range(100)))
    return clients


async def test_a_thousand_connections_produce_and_fetch_at_once(tmp_path: Path):
    async with broker_process(tmp_path) as broker:
        clients = await open_all(broker.port)
        await clients[0].create("t", 10)

        async def produce_and_fetch(number: int, client: RawClient) -> int:
            partition, value = number % 10, str(number).encode()
            offset = await client.produce("t", partition, value)
            found = await client.fetch("t", partition, offset, partition_bytes=0)
            assert values_of(found) == [value]
            return offset

        offsets = await asyncio.gather(
            *(produce_and_fetch(number, client) for number, client in enumerate(clients))
        )
        for partition in range(10):
            assert sorted(offsets[partition::10]) == list(range(COUNT // 10))
            values = await clients[0].values("t", partition)
            assert sorted(map(int, values)) == list(range(partition, COUNT, 10))
        for client in clients:
            client.close()


async def test_an_idle_connection_costs_less_than_30_kb(tmp_path: Path):
    async with broker_process(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await client.create("t")
        await client.produce("t", 0, b"x")  # what the first requests load is nobody's own
        before = broker.memory.resident_bytes
        clients = await open_all(broker.port)
        await client.produce("t", 0, b"x")
        grown = broker.memory.resident_bytes - before
        assert grown / COUNT < MAX_IDLE_BYTES
        for each in clients:
            each.close()


async def test_a_thousand_fetches_that_wait_are_woken_by_one_append(tmp_path: Path):
    async with broker_process(tmp_path) as broker:
        clients = await open_all(broker.port)
        await clients[0].create("t")
        waiting = [
            asyncio.ensure_future(client.fetch("t", 0, max_wait_ms=60_000, min_bytes=1))
            for client in clients[1:]
        ]
        await clients[0].produce("t", 0, b"x")
        for found in await asyncio.gather(*waiting):
            assert values_of(found) == [b"x"]
        for client in clients:
            client.close()
