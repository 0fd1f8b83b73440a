"""Members that come, go and lose their connections at random, while records are sent: each record
is handled, none before all that precede it in its partition, and no partition has two owners."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from seglog import Admin, Consumer, Producer, Record, TopicPartition
from seglog.client.embedded import embedded

from tests.groups import PATIENCE_S, SESSION_MS
from tests.proxy import Proxy, running_proxy

PARTITIONS = 5
BATCHES = 60
STEPS = 25
MOST_MEMBERS = 4


class Oracle:
    """Knows who owns what, and what was handled."""

    def __init__(self) -> None:
        self.owners: dict[TopicPartition, str] = {}
        self.frontier = dict.fromkeys(range(PARTITIONS), 0)
        self.handled = 0

    def callbacks(self, name: str) -> dict[str, Any]:
        def on_assigned(names: list[TopicPartition]) -> None:
            for place in names:
                assert place not in self.owners, f"{place}: {self.owners[place]} and {name}"
                self.owners[place] = name

        def on_revoked(names: list[TopicPartition]) -> None:
            for place in names:
                assert self.owners.pop(place) == name

        return {"on_assigned": on_assigned, "on_revoked": on_revoked, "on_lost": on_revoked}

    def handle(self, name: str, partition: int, first: int, next_offset: int) -> None:
        assert self.owners[TopicPartition("t", partition)] == name
        assert first <= self.frontier[partition], f"{partition}: {first} was handled too early"
        self.frontier[partition] = max(self.frontier[partition], next_offset)
        self.handled += next_offset - first


class Member:
    """A consumer and the task that reads, each time in another way."""

    def __init__(self, name: str, proxy: Proxy, oracle: Oracle, rng: random.Random) -> None:
        self.name = name
        self._oracle = oracle
        self._rng = rng
        self.consumer = Consumer(
            "t",
            bootstrap=proxy.bootstrap,
            group="g",
            start="earliest",
            session_timeout_ms=SESSION_MS,
            auto_commit_interval_ms=5,
            max_wait_ms=20,
            **oracle.callbacks(name),
        )
        self.reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.consumer.start()
        self.reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        assert self.reading is not None
        self.reading.cancel()
        await asyncio.gather(self.reading, return_exceptions=True)
        if not self.reading.cancelled() and (error := self.reading.exception()):
            raise error
        await self.consumer.close()

    async def _read(self) -> None:
        consumer = self.consumer
        while True:
            way = self._rng.randrange(3)
            if way == 0:
                self._take([await anext(consumer)])
            elif way == 1:
                self._take(await consumer.getmany(self._rng.randrange(1, 40), timeout=0.02))
            else:
                batch = await consumer.next_batch()
                place = (batch.partition, batch.offsets[0], batch.next_offset)
                self._oracle.handle(self.name, *place)
            if self._rng.random() < 0.3:
                await asyncio.sleep(self._rng.random() * 0.01)  # work, with the records in hand

    def _take(self, records: list[Record]) -> None:
        for record in records:
            self._oracle.handle(self.name, record.partition, record.offset, record.offset + 1)


async def send(bootstrap: str, rng: random.Random) -> dict[int, int]:
    counts = dict.fromkeys(range(PARTITIONS), 0)
    async with Producer(bootstrap) as producer:
        for _ in range(BATCHES):
            number, size = rng.randrange(PARTITIONS), rng.randrange(1, 50)
            await producer.send_batch("t", [b"x"] * size, partition=number)
            counts[number] += size
            await producer.flush()
            await asyncio.sleep(rng.random() * 0.02)
    return counts


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_skipped_and_nothing_has_two_owners(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    oracle = Oracle()
    members: list[Member] = []
    async with embedded(tmp_path) as broker, running_proxy(broker.bootstrap) as proxy:
        async with Admin(broker.bootstrap) as admin:
            await admin.create_topic("t", PARTITIONS)
        sending = asyncio.create_task(send(broker.bootstrap, rng))
        for step in range(STEPS):
            action = rng.random()
            if not members or (action < 0.45 and len(members) < MOST_MEMBERS):
                members.append(Member(f"{seed}.{step}", proxy, oracle, rng))
                await members[-1].start()
            elif action < 0.75:
                await members.pop(rng.randrange(len(members))).close()
            elif action < 0.85:
                proxy.cut_all()
            else:
                await asyncio.sleep(rng.random() * 0.1)
        if not members:
            members.append(Member(f"{seed}.last", proxy, oracle, rng))
            await members[-1].start()
        counts = await sending
        async with asyncio.timeout(PATIENCE_S):
            while oracle.frontier != counts:
                assert not any(m.reading is not None and m.reading.done() for m in members)
                await asyncio.sleep(0.01)
        for member in members:
            await member.close()
        async with Admin(broker.bootstrap) as admin:
            marks = await admin.fetch_offsets("g")
    assert not oracle.owners
    for place, mark in marks.items():
        assert mark.offset <= counts[place.partition]
