"""A TCP proxy between a client and a broker that holds, splits and cuts at any byte, either way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

CHUNK = 1 << 16


class Plan(NamedTuple):
    """What becomes of one connection: how many bytes get through each way before it is cut (None:
    all), and in pieces of which size they are passed on."""

    to_broker: int | None = None
    to_client: int | None = None
    piece_bytes: int = CHUNK


PASS = Plan()


class Proxy:
    """Counts what passes; `plan` says what becomes of connection number 0, 1, …"""

    def __init__(self, target: str, plan: Callable[[int], Plan] = lambda _: PASS) -> None:
        self.retarget(target)
        self.plan = plan
        self.bootstrap = ""
        self.connections = 0
        self.bytes_to_broker = 0
        self.bytes_to_client = 0
        #: Clear one to hold all bytes of that direction until it is set.
        self.open_to_broker = asyncio.Event()
        self.open_to_client = asyncio.Event()
        self.open_to_broker.set()
        self.open_to_client.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    def retarget(self, target: str) -> None:
        """Send new connections to another broker."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))

    def cut_all(self) -> None:
        """Cut every connection there is now."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        number = self.connections
        self.connections += 1
        plan = self.plan(number)
        others: list[asyncio.StreamWriter] = [writer]
        self._writers.add(writer)
        try:
            from_broker, to_broker = await asyncio.open_connection(*self._target)
            others.append(to_broker)
            self._writers.add(to_broker)
            pumps = [
                asyncio.ensure_future(
                    self._pump(reader, to_broker, plan.to_broker, plan.piece_bytes, "broker")
                ),
                asyncio.ensure_future(
                    self._pump(from_broker, writer, plan.to_client, plan.piece_bytes, "client")
                ),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for each in others:
                self._writers.discard(each)
                each.close()  # sends what was let through, then ends
            self._tasks.discard(task)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limit: int | None,
        piece_bytes: int,
        to: str,
    ) -> None:
        gate = self.open_to_broker if to == "broker" else self.open_to_client
        left = limit
        while left is None or left > 0:
            data = await reader.read(CHUNK)
            await gate.wait()
            if left is not None:
                data = data[:left]
                left -= len(data)
            if not data:
                return
            if to == "broker":
                self.bytes_to_broker += len(data)
            else:
                self.bytes_to_client += len(data)
            for start in range(0, len(data), piece_bytes):
                writer.write(data[start : start + piece_bytes])
                await writer.drain()
                if piece_bytes < CHUNK:
                    await asyncio.sleep(0)  # so that pieces are received as pieces


@asynccontextmanager
async def running_proxy(target: str, plan: Callable[[int], Plan] = lambda _: PASS):
    """A proxy in front of `target`, at `proxy.bootstrap`."""
    proxy = Proxy(target, plan)
    server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
    proxy.bootstrap = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        for task in list(proxy._tasks):
            task.cancel()
        await asyncio.gather(*proxy._tasks, return_exceptions=True)
        await server.wait_closed()
