"""The loop writes by itself what waits for nothing; what may wait for the disk is the thread's."""

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from seglog.protocol import api, messages
from seglog.protocol.constants import KIB
from seglog.protocol.header import Buffer
from seglog.server import writer
from seglog.server.storage.filesystem import File, FileSystem

from tests.brokers import RawClient, running_broker

LOOP, THREAD = True, False
METADATA = messages.MetadataRequest()


@pytest.fixture(autouse=True)
def _no_write_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is."""
    monkeypatch.setattr(writer, "SLOW_WRITE_S", math.inf)


class WatchedFile(File):
    """Tells the disk what is done with it, and by which thread."""

    disk: "WatchedDisk"

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        self.disk.saw("write", self.path)
        return super().write(buffers, position)

    def allocate(self, position: int, length: int) -> None:
        self.disk.saw("allocate", self.path)
        super().allocate(position, length)

    def truncate(self, size: int) -> None:
        self.disk.saw("truncate", self.path)
        super().truncate(size)

    def sync(self) -> None:
        self.disk.saw("sync", self.path)
        self.disk.syncing.set()
        self.disk.gate.wait()
        super().sync()


class WatchedDisk(FileSystem):
    def __init__(self) -> None:
        self.seen: Counter[tuple[str, bool]] = Counter()  # what was done to logs; by the loop?
        self.loop_thread = threading.current_thread()
        self.syncing, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def saw(self, what: str, path: str) -> None:
        if path.endswith(".log"):
            self.seen[what, threading.current_thread() is self.loop_thread] += 1

    def create(self, path: str) -> File:
        self.saw("create", path)
        return self._watched(super().create(path))

    def open(self, path: str, *, write: bool = False) -> File:
        return self._watched(super().open(path, write=write))

    def _watched(self, plain: File) -> File:
        file = WatchedFile(plain.path, plain.descriptor)
        plain.descriptor = -1  # it is the other's now
        file.disk = self
        return file


async def test_the_loop_writes_and_does_nothing_else_to_a_log(tmp_path: Path):
    disk = WatchedDisk()
    sent = [bytes([number % 256]) * (37 * number % 3000) for number in range(300)]
    async with (
        running_broker(tmp_path, disk) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t", 1, durability="os", segment_bytes=20 * KIB)
        disk.seen.clear()

        offsets = [await client.produce("t", 0, value) for value in sent]

        assert offsets == list(range(300))
        assert await client.values("t") == sent
        assert disk.seen["create", THREAD] > 10, "segments were rolled"
        assert disk.seen["write", LOOP] > 100
        assert disk.seen["write", THREAD] > 0, "into space that was not reserved yet"
        for what in ("create", "allocate", "truncate", "sync"):
            assert disk.seen[what, LOOP] == 0, what


async def test_segments_that_are_to_be_smaller_from_now_on_are_begun_by_the_thread(tmp_path: Path):
    disk = WatchedDisk()
    async with (
        running_broker(tmp_path, disk) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t", 1, durability="os")
        await client.produce("t", 0, bytes(10 * KIB))  # far more is reserved than is used
        smaller = messages.AlterTopicRequest("t", config={"segment.bytes": 20 * KIB})
        await client.call(api.ALTER_TOPIC, smaller)
        disk.seen.clear()

        offsets = [await client.produce("t", 0, bytes(KIB)) for _ in range(50)]

        assert offsets == list(range(1, 51))
        assert disk.seen["create", THREAD] > 1, "segments were rolled"
        assert disk.seen["write", LOOP] > 0
        for what in ("create", "allocate", "truncate", "sync"):
            assert disk.seen[what, LOOP] == 0, what


async def test_what_is_synced_before_its_answer_is_written_by_the_thread(tmp_path: Path):
    disk = WatchedDisk()
    async with (
        running_broker(tmp_path, disk) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t", 1)
        for _ in range(20):
            await client.produce("t", 0, b"x")
    assert disk.seen["write", LOOP] == 0
    assert disk.seen["sync", THREAD] >= 20


async def test_nothing_is_written_beside_the_thread(tmp_path: Path):
    disk = WatchedDisk()
    async with (
        running_broker(tmp_path, disk) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("synced", 1)
        await client.create("written", 1, durability="os")
        for _ in range(2):
            await client.produce("written", 0, b"by the loop")
        before = disk.seen["write", LOOP]
        assert before > 0
        disk.syncing.clear()
        disk.gate.clear()
        try:
            first = client.send_produce("synced", 0, b"held")
            await asyncio.to_thread(disk.syncing.wait)
            second = client.send_produce("written", 0, b"behind it")
            alive = client.send(api.METADATA, METADATA)
            assert (await client.receive()).correlation_id == alive
        finally:
            disk.gate.set()

        answered = [(await client.receive()).correlation_id for _ in range(2)]

        assert answered == [first, second]
        assert disk.seen["write", LOOP] == before
        await client.produce("written", 0, b"by the loop again")
        assert disk.seen["write", LOOP] == before + 1
        assert len(await client.values("written")) == 4


async def test_a_write_that_waits_for_the_disk_is_the_threads_from_then_on(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SLOW_WRITE_S", -1.0)
    monkeypatch.setattr(writer, "AVOID_SLOW_WRITES_S", 3600.0)
    disk = WatchedDisk()
    async with (
        running_broker(tmp_path, disk) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t", 1, durability="os")
        for _ in range(10):
            await client.produce("t", 0, b"x")
        assert len(await client.values("t")) == 10
    assert disk.seen["write", LOOP] == 1


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_appends_of_every_size_keep_their_order(tmp_path: Path, durability: str):
    sizes = [1, 70 * KIB, 10, 60 * KIB, 20 * KIB, 1000] * 10

    async def produce(port: int, name: str) -> list[bytes]:
        values = [f"{name} {number} ".encode() + bytes(size) for number, size in enumerate(sizes)]
        async with await RawClient.open(port) as client:
            asked = [client.send_produce("t", 0, value) for value in values]
            answered = [(await client.receive()).correlation_id for _ in values]
        assert answered == asked
        return values

    async with (
        running_broker(tmp_path) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t", 1, durability=durability, segment_bytes=500 * KIB)
        everybodys = await asyncio.gather(*(produce(broker.port, name) for name in "abc"))
        found = await client.values("t")
    assert len(found) == 3 * len(sizes)
    for values in everybodys:
        mine = set(values)
        assert [value for value in found if value in mine] == values
