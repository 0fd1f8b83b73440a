"""Redis Streams: redis-server, and redis-py's asynchronous client with pipelines.

Durable is `appendfsync always`: one sync for all commands of a turn of its loop, before they are
answered. Written is `everysec`, Redis's default with an append-only file. Redis holds the stream in
memory as well, whatever its size.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from itertools import cycle
from typing import Any, Final

import redis
import redis.asyncio

from scripts.peers.interface import (
    CHUNK,
    Amount,
    Client,
    Missing,
    OnValues,
    Server,
    in_chunks,
)

#: Pipelines under way at once, each on a connection of its own: one is packed while others wait.
PIPELINES: Final = 4
ITERATE_COUNT: Final = 1_000
BATCH_COUNT: Final = 10_000
BLOCK_MS: Final = 1_000
FIELD: Final = b"v"


class RedisServer(Server):
    @classmethod
    def missing(cls, *, is_durable: bool) -> Missing | None:
        if shutil.which("redis-server") is None:
            return Missing("redis-server is not installed", "apt-get install redis-server")
        return None

    @classmethod
    def version(cls) -> str:
        said = subprocess.run(
            ["redis-server", "--version"], capture_output=True, text=True, check=True
        ).stdout
        found = re.search(r"v=(\S+)", said)
        return found[1] if found else said.strip()

    @classmethod
    def settings(cls, *, is_durable: bool) -> list[str]:
        fsync = "always" if is_durable else "everysec"
        return ["appendonly yes", f"appendfsync {fsync}", 'save "" (no snapshots beside the log)']

    def prepare(self) -> list[str]:
        fsync = "always" if self.is_durable else "everysec"
        return [
            "redis-server", "--bind", "127.0.0.1", "--port", str(self.port),
            "--dir", str(self.folder), "--daemonize", "no", "--appendonly", "yes",
            "--appendfsync", fsync, "--save", "",
        ]  # fmt: skip


class RedisClient(Client):
    settings = (
        f"redis-py asyncio: {PIPELINES} pipelines of {CHUNK} XADD without MULTI at once; uvloop",
        "parser: " + ("hiredis" if importlib.util.find_spec("hiredis") else "redis-py's own"),
        "record by record and bulk are the same",
        f"reading one by one: XREAD COUNT {ITERATE_COUNT:,} and a loop over the records",
        f"reading in batches: XREAD COUNT {BATCH_COUNT:,}",
    )

    @classmethod
    def version(cls) -> str:
        return str(redis.__version__)

    async def open(self) -> None:
        host, port = self.address.split(":")
        self._redis = redis.asyncio.Redis(host=host, port=int(port))
        self._slots = asyncio.Semaphore(PIPELINES)
        self._under_way: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        await self._redis.ping()

    async def close(self) -> None:
        await self._redis.aclose()

    async def create(self, topic: str, *, is_durable: bool) -> None:
        """A stream is there with its first record."""

    async def delete(self, topic: str) -> None:
        await self._redis.unlink(topic)

    async def length(self, topic: str) -> int:
        return int(await self._redis.xlen(topic))

    async def produce(self, topic: str, values: Sequence[bytes], until: float) -> int:
        chunks = cycle(in_chunks(values, CHUNK))
        sent = 0

        async def run() -> None:
            nonlocal sent
            while time.monotonic() < until:
                await self._add(topic, next(chunks))
                sent += CHUNK

        await asyncio.gather(*(run() for _ in range(PIPELINES)))
        return sent

    async def _add(self, topic: str, values: Sequence[bytes]) -> None:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for value in values:
                pipeline.xadd(topic, {FIELD: value})
            await pipeline.execute()

    async def send_and_wait(self, topic: str, value: bytes) -> None:
        await self._redis.xadd(topic, {FIELD: value})

    async def hand_over(self, topic: str, values: Sequence[bytes]) -> None:
        await self._slots.acquire()
        task = asyncio.create_task(self._add(topic, values))
        self._under_way.add(task)
        task.add_done_callback(self._added)

    def _added(self, task: asyncio.Task[None]) -> None:
        self._slots.release()
        self._under_way.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()

    async def flush(self) -> None:
        while self._under_way:
            await asyncio.wait(self._under_way)
        if self._failure is not None:
            raise self._failure

    async def read_records(self, topic: str, count: int) -> Amount:
        seen = size = first = 0
        started = 0.0
        last: bytes | str = "0"
        while seen < count:
            entries = await self._read(topic, last, ITERATE_COUNT)
            for name, fields in entries:
                size += len(fields[FIELD])
                seen += 1
                last = name
            if not first:
                first, started = seen, time.monotonic()
        return Amount(seen, size, first, started, time.monotonic())

    async def read_batches(self, topic: str, count: int, on_values: OnValues) -> Amount:
        seen = size = first = 0
        started = 0.0
        last: bytes | str = "0"
        while seen < count:
            entries = await self._read(topic, last, BATCH_COUNT)
            if entries:
                values = [fields[FIELD] for _, fields in entries]
                on_values(values)
                seen += len(values)
                size += sum(map(len, values))
                last = entries[-1][0]
                if not first:
                    first, started = seen, time.monotonic()
        return Amount(seen, size, first, started, time.monotonic())

    async def _read(self, topic: str, after: bytes | str, count: int) -> list[Any]:
        """The next entries of the stream; none came within a second: an empty list."""
        answer: Any = await self._redis.xread({topic: after}, count=count, block=BLOCK_MS)
        if not answer:
            return []
        entries = answer[topic.encode()] if isinstance(answer, dict) else answer[0][1]
        return list(entries)
