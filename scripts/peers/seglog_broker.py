"""Seglog itself, through the same interface as everybody else."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Final, cast

from scripts.peers.interface import (
    BULK,
    FETCH_BYTES,
    Amount,
    Client,
    Missing,
    OnValues,
    Server,
    in_chunks,
)
from scripts.ports import kept_port
from seglog import Admin, Consumer, Producer, __version__

BULK_BATCH_BYTES: Final = 2_000_000


class SeglogServer(Server):
    def __init__(self, folder: Path, *, is_durable: bool) -> None:
        super().__init__(folder, is_durable=is_durable)
        self.port = kept_port()

    @classmethod
    def missing(cls, *, is_durable: bool) -> Missing | None:
        return None

    @classmethod
    def version(cls) -> str:
        return __version__

    @classmethod
    def settings(cls, *, is_durable: bool) -> list[str]:
        durability = "fsync" if is_durable else "os"
        return ["seglog serve, all defaults", f"topics with durability={durability}"]

    def prepare(self) -> list[str]:
        return [
            sys.executable, "-m", "seglog", "serve", "--data", str(self.folder / "data"),
            "--host", "127.0.0.1", "--port", str(self.port), "--log-level", "warning",
        ]  # fmt: skip


class SeglogClient(Client):
    settings = (
        "Producer: all defaults (idempotent, linger_ms=5, batch_bytes=256 KiB); uvloop",
        "record by record: `await producer.send`, `flush` at the end",
        f"bulk: `send_batch` of {BULK:,} with batch_bytes={BULK_BATCH_BYTES:,}",
        "latency: linger_ms=0",
        "Consumer: all defaults; `async for record`, and `consumer.batches()`",
    )

    @classmethod
    def version(cls) -> str:
        return __version__

    async def open(self) -> None:
        linger_ms = 0 if self.for_latency else 5
        self._producer = Producer(self.address, linger_ms=linger_ms)
        self._admin = Admin(self.address)
        await self._producer.start()
        await self._admin.start()

    async def close(self) -> None:
        await self._producer.close()
        await self._admin.close()

    async def create(self, topic: str, *, is_durable: bool) -> None:
        config = {"durability": "fsync" if is_durable else "os"}
        await self._admin.create_topic(topic, partitions=1, config=config)

    async def delete(self, topic: str) -> None:
        await self._admin.delete_topic(topic)

    async def length(self, topic: str) -> int:
        return (await self._admin.list_offsets(topic))[0].offset

    async def produce_bulk(self, topic: str, values: Sequence[bytes], until: float) -> int:
        sent = 0
        async with Producer(self.address, batch_bytes=BULK_BATCH_BYTES) as producer:
            for chunk in cycle(in_chunks(values, BULK)):
                if time.monotonic() >= until:
                    break
                await producer.send_batch(topic, chunk)
                sent += BULK
            await producer.flush()
        return sent

    async def send_and_wait(self, topic: str, value: bytes) -> None:
        await self._producer.send_and_wait(topic, value)

    async def hand_over(self, topic: str, values: Sequence[bytes]) -> None:
        send = self._producer.send
        for value in values:
            await send(topic, value)

    async def flush(self) -> None:
        await self._producer.flush()

    def _consumer(self, topic: str) -> Consumer:
        return Consumer(
            topic, bootstrap=self.address, start="earliest", partition_max_bytes=FETCH_BYTES
        )

    async def read_records(self, topic: str, count: int) -> Amount:
        async with self._consumer(topic) as consumer:
            first = await anext(consumer)
            started = time.monotonic()
            seen, size = 1, len(first.value or b"")
            async for record in consumer:
                size += len(record.value or b"")
                seen += 1
                if seen >= count:
                    break
            ended = time.monotonic()
        return Amount(seen, size, 1, started, ended)

    async def read_batches(self, topic: str, count: int, on_values: OnValues) -> Amount:
        seen = size = first = 0
        started = 0.0
        async with self._consumer(topic) as consumer:
            async for batch in consumer.batches():
                values = cast(Sequence[bytes], batch.values)  # none of ours is null
                on_values(values)
                seen += len(values)
                size += sum(map(len, values))
                if not first:
                    first, started = seen, time.monotonic()
                if seen >= count:
                    break
            ended = time.monotonic()
        return Amount(seen, size, first, started, ended)
