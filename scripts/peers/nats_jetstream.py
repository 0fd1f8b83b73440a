"""NATS JetStream: nats-server with file storage, and nats-py.

Durable is `sync_interval: always`, which nats-server knows since 2.10; an older one has no setting
that syncs before it acknowledges, and is then missing from the durable rows. Written is its
default: a sync every two minutes.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Sequence
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any, Final

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType, StreamConfig
from nats.js.errors import NotFoundError

from scripts.peers.cache import CACHE
from scripts.peers.interface import (
    Amount,
    Client,
    Missing,
    NotStarted,
    OnValues,
    Server,
)

FIRST_WITH_SYNC: Final = (2, 10)
BUILT: Final = CACHE / "bin" / "nats-server"
MODULE: Final = "github.com/nats-io/nats-server/v2@v2.10.29"
MAX_PENDING: Final = 4_000
FETCH_COUNT: Final = 1_000
READ_TIMEOUT_S: Final = 30.0


class NatsServer(Server):
    @classmethod
    def missing(cls, *, is_durable: bool) -> Missing | None:
        found = _find()
        if found is None:
            return Missing("nats-server is not installed", "apt-get install nats-server")
        if is_durable and found[0] < FIRST_WITH_SYNC:
            return Missing(
                f"nats-server {_dotted(found[0])} cannot sync before it acknowledges; 2.10 can",
                f"GOBIN={BUILT.parent} go install {MODULE}",
            )
        return None

    @classmethod
    def version(cls) -> str:
        found = _find()
        return "" if found is None else _dotted(found[0])

    @classmethod
    def settings(cls, *, is_durable: bool) -> list[str]:
        sync = "always" if is_durable else "default (every two minutes)"
        return ["JetStream, one replica, file storage", f"sync_interval: {sync}"]

    def prepare(self) -> list[str]:
        found = _find()
        if found is None:
            raise NotStarted("nats-server is not installed")
        sync = "sync_interval: always" if self.is_durable else ""
        config = self.folder / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{\n  store_dir: "{self.folder / "data"}"\n  {sync}\n}}\n'
        )
        return [str(found[1]), "-c", str(config)]


def _find() -> tuple[tuple[int, ...], Path] | None:
    """The newest there is: of the system's, and one that --install built."""
    found = []
    for path in (shutil.which("nats-server"), str(BUILT)):
        if path is not None and os.access(path, os.X_OK):
            said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
            number = re.search(r"v(\d+)\.(\d+)\.(\d+)", said.stdout + said.stderr)
            if number is not None:
                found.append((tuple(map(int, number.groups())), Path(path)))
    return max(found) if found else None


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


class NatsClient(Client):
    settings = (
        f"nats-py: `js.publish_async` with up to {MAX_PENDING:,} not acknowledged; uvloop",
        "record by record and bulk are the same",
        "reading one by one, and for latency: an ordered consumer and `async for`",
        f"reading in batches: a pull consumer without acks and `fetch({FETCH_COUNT:,})`",
    )

    @classmethod
    def version(cls) -> str:
        return installed_version("nats-py")

    async def open(self) -> None:
        self._nats = await nats.connect(f"nats://{self.address}", allow_reconnect=False)
        self._jetstream = self._nats.jetstream(publish_async_max_pending=MAX_PENDING, timeout=30)
        self._acks: deque[asyncio.Future[Any]] = deque()

    async def close(self) -> None:
        await self._nats.close()

    async def create(self, topic: str, *, is_durable: bool) -> None:
        config = StreamConfig(
            name=topic, subjects=[topic], storage=StorageType.FILE, num_replicas=1
        )
        await self._jetstream.add_stream(config)

    async def delete(self, topic: str) -> None:
        try:
            await self._jetstream.delete_stream(topic)
        except NotFoundError:
            pass

    async def length(self, topic: str) -> int:
        return int((await self._jetstream.stream_info(topic)).state.messages)

    async def send_and_wait(self, topic: str, value: bytes) -> None:
        await self._jetstream.publish(topic, value)

    async def hand_over(self, topic: str, values: Sequence[bytes]) -> None:
        acks, publish = self._acks, self._jetstream.publish_async
        for value in values:
            acks.append(await publish(topic, value))
        while acks and acks[0].done():
            acks.popleft().result()  # raises what was not acknowledged

    async def flush(self) -> None:
        while self._acks:
            await self._acks.popleft()

    async def read_records(self, topic: str, count: int) -> Amount:
        subscription = await self._jetstream.subscribe(topic, ordered_consumer=True)
        messages = subscription.messages
        first = await anext(messages)
        started = time.monotonic()
        seen, size = 1, len(first.data)
        async for message in messages:
            size += len(message.data)
            seen += 1
            if seen >= count:
                break
        ended = time.monotonic()
        await subscription.unsubscribe()
        return Amount(seen, size, 1, started, ended)

    async def follow(self, topic: str, count: int, on_values: OnValues) -> Amount:
        """Pushed by the server: a `fetch` of many returns when they are all there."""
        seen = size = 0
        started = 0.0
        subscription = await self._jetstream.subscribe(topic, ordered_consumer=True)
        async for message in subscription.messages:
            on_values((message.data,))
            size += len(message.data)
            seen += 1
            started = started or time.monotonic()
            if seen >= count:
                break
        ended = time.monotonic()
        await subscription.unsubscribe()
        return Amount(seen, size, 1, started, ended)

    async def read_batches(self, topic: str, count: int, on_values: OnValues) -> Amount:
        seen = size = first = 0
        started = 0.0
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL, mem_storage=True
        )
        subscription = await self._jetstream.pull_subscribe(topic, config=config)
        while seen < count:
            messages = await subscription.fetch(
                min(FETCH_COUNT, count - seen), timeout=READ_TIMEOUT_S
            )
            values = [message.data for message in messages]
            on_values(values)
            seen += len(values)
            size += sum(map(len, values))
            if not first:
                first, started = seen, time.monotonic()
        ended = time.monotonic()
        await subscription.unsubscribe()
        return Amount(seen, size, first, started, ended)
