"""A running broker on a disk that is full, refuses or is damaged: what its clients are told.

The error is named, nothing that was acked is lost, the other partitions go on, and so does the
broker.
"""

from __future__ import annotations

import asyncio
import errno
import shlex
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from seglog.protocol import api, messages
from seglog.protocol.batch import encode_batch
from seglog.protocol.constants import KIB
from seglog.protocol.errors import (
    DamagedLog,
    PartitionOffline,
    SeglogError,
    StorageError,
    StorageFull,
    UnknownTopic,
)
from seglog.server.app import Broker
from seglog.server.storage.filesystem import File, FileSystem

from tests.brokers import NOON_US, RawClient, records_of, running_broker
from tests.simulated_disk import SimulatedDisk, keep_nothing

PARTITIONS = 3
Acked = dict[int, list[bytes]]  # the values of each partition of topic "t", in order


@pytest.fixture
def disk(tmp_path):
    disk = SimulatedDisk(tmp_path / "disk")
    yield disk
    disk.close()


@asynccontextmanager
async def broker_on(disk: SimulatedDisk) -> AsyncIterator[tuple[Broker, RawClient]]:
    async with (
        running_broker(Path(disk.root) / "data", disk, journal_bytes=64 * KIB) as broker,
        await RawClient.open(broker.port) as client,
    ):
        yield broker, client


async def produce_group(client: RawClient, acked: Acked, value: bytes) -> list[SeglogError | None]:
    """One batch for each partition, in one request, so that they are one group."""
    batch = memoryview(encode_batch([value], timestamps=NOON_US))
    request = messages.ProduceRequest(
        [messages.ProduceBatch("t", number, batch) for number in range(PARTITIONS)]
    )
    results = (await client.call(api.PRODUCE, request)).results
    errors = [result.error and result.error.to_exception() for result in results]
    for number, error in enumerate(errors):
        if error is None:
            acked.setdefault(number, []).append(value)
    return errors


async def check_acked(client: RawClient, acked: Acked) -> None:
    for number, values in acked.items():
        assert await client.values("t", number) == values, f"partition {number}"


async def check_after_power_cut(disk: SimulatedDisk, target: Path, acked: Acked) -> None:
    left = SimulatedDisk(disk.power_cut(target, keep_nothing))
    async with broker_on(left) as (_, client):
        for number, values in acked.items():
            found = await client.values("t", number)
            assert found[: len(values)] == values, f"partition {number}"
    left.close()


# --- no space ------------------------------------------------------------------------------------


async def test_a_full_disk_refuses_what_has_no_room_and_takes_it_when_there_is(disk, tmp_path):
    acked: Acked = {}
    async with broker_on(disk) as (_, client):
        await client.create("t", PARTITIONS, segment_bytes=32 * KIB)
        assert await produce_group(client, acked, b"first") == [None] * PARTITIONS
        disk.capacity_bytes = disk.used_bytes

        refused = [
            error
            for round_ in range(60)
            for error in await produce_group(client, acked, b"%d" % round_ * KIB)
            if error is not None
        ]

        assert refused
        assert {type(error) for error in refused} == {StorageFull}
        assert refused[0].retriable
        await check_acked(client, acked)
        await check_after_power_cut(disk, tmp_path / "full", acked)

        disk.capacity_bytes = None
        assert await produce_group(client, acked, b"after") == [None] * PARTITIONS
        await check_acked(client, acked)
    await check_after_power_cut(disk, tmp_path / "after", acked)


def journal_files(broker: Broker) -> int:
    return len(list(Path(broker.folder.path).glob("journal-*")))


async def test_a_journal_that_has_no_room_is_made_when_there_is(disk, tmp_path):
    acked: Acked = {}
    async with broker_on(disk) as (broker, client):
        await client.create("t", PARTITIONS, segment_bytes=32 * KIB)
        for number in range(PARTITIONS):  # each takes its disk space, and none needs the journal
            await client.produce("t", number, b"first")
            acked[number] = [b"first"]
        disk.capacity_bytes = disk.used_bytes

        assert await produce_group(client, acked, b"without") == [None] * PARTITIONS
        assert journal_files(broker) == 0
        disk.capacity_bytes = None
        assert await produce_group(client, acked, b"with") == [None] * PARTITIONS

        assert journal_files(broker) == 2
        await check_after_power_cut(disk, tmp_path / "cut", acked)


async def test_what_needs_a_small_file_says_that_the_disk_is_full(disk):
    async with broker_on(disk) as (_, client):
        disk.fail("create", "data/producer-ids.tmp", error=errno.ENOSPC)
        with pytest.raises(StorageFull):
            await client.call(api.INIT_PRODUCER, messages.InitProducerRequest())
        await client.call(api.INIT_PRODUCER, messages.InitProducerRequest())


# --- a disk that refuses -------------------------------------------------------------------------


async def test_a_failed_sync_takes_one_partition_offline_and_a_restart_brings_it_back(
    disk, tmp_path
):
    acked: Acked = {}
    async with broker_on(disk) as (_, client):
        await client.create("t", PARTITIONS)
        await produce_group(client, acked, b"journaled")
        disk.fail("sync", "data/topic-t/partition-1/*", times=None)

        with pytest.raises(PartitionOffline) as refused:
            await client.produce("t", 1, b"not kept")
        assert "partition-1" not in str(refused.value)  # by its name, not by its folder
        assert "t/1" in str(refused.value)
        errors = await produce_group(client, acked, b"second")

        assert [type(error) for error in errors] == [type(None), PartitionOffline, type(None)]
        await check_acked(client, acked)
        disk.heal()
        errors = await produce_group(client, acked, b"third")
        assert isinstance(errors[1], PartitionOffline), "a failed fsync is never repeated"
    await check_after_power_cut(disk, tmp_path / "cut", acked)

    async with broker_on(disk) as (_, client):
        await client.produce("t", 1, b"again")
        assert (await client.values("t", 1))[-1] == b"again"


async def test_without_its_journal_a_broker_goes_on_and_loses_nothing(disk, tmp_path):
    acked: Acked = {}
    async with broker_on(disk) as (_, client):
        await client.create("t", PARTITIONS)
        await produce_group(client, acked, b"first")
        disk.fail("sync", "data/journal-*")
        for value in (b"second", b"third"):
            assert await produce_group(client, acked, value) == [None] * PARTITIONS
        await check_acked(client, acked)
        await check_after_power_cut(disk, tmp_path / "cut", acked)


async def test_a_topic_that_cannot_be_deleted_is_served_as_before(disk, tmp_path):
    acked: Acked = {}
    async with broker_on(disk) as (_, client):
        await client.create("t", PARTITIONS)
        await produce_group(client, acked, b"first")
        disk.fail("rename", "data/topic-t")

        with pytest.raises(StorageError):
            await client.call(api.DELETE_TOPIC, messages.DeleteTopicRequest("t"))

        assert await produce_group(client, acked, b"second") == [None] * PARTITIONS
        await check_acked(client, acked)
    await check_after_power_cut(disk, tmp_path / "cut", acked)


@pytest.mark.parametrize("operation", ["make_folder", "create", "rename", "sync_folder"])
async def test_a_topic_that_cannot_be_created_is_not_there_and_can_be_created_later(
    disk, operation
):
    async with broker_on(disk) as (_, client):
        disk.fail(operation, "data/*t*", after=1 if operation == "create" else 0)

        with pytest.raises((StorageError, PartitionOffline)):
            await client.create("t", PARTITIONS)

        disk.heal()
        listed = await client.call(api.METADATA, messages.MetadataRequest())
        assert listed.topics == []
        await client.create("t", PARTITIONS)
        await client.produce("t", 0, b"value")


@pytest.mark.parametrize("operation", ["read", "open", "size"])
async def test_a_failed_read_is_told_by_its_name(disk, operation):
    async with broker_on(disk) as (_, client):
        await client.create("t", 1, segment_bytes=200)
        for value in (b"one", b"two", b"three"):
            await client.produce("t", 0, value * 30)
    async with broker_on(disk) as (_, client):  # nothing is open, nor remembered
        disk.fail(operation, "data/topic-t/*", times=None)
        at_time = messages.ListOffsetsPartition("t", 0, NOON_US)
        for _ in range(2):
            with pytest.raises(StorageError):
                await client.fetch("t", 0)
            found = await client.call(api.LIST_OFFSETS, messages.ListOffsetsRequest([at_time]))
            assert isinstance(found.results[0].error.to_exception(), StorageError)
            asked = messages.DescribeTopicRequest("t")
            described = await client.call(api.DESCRIBE_TOPIC, asked)
            assert isinstance(described.partitions[0].error.to_exception(), StorageError)

        disk.heal()
        assert len(await client.values("t")) == 3


class HeldDisk(FileSystem):
    """Waits, where it is told to, before it opens a segment."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.holds = False
        self.is_held, self.go_on = asyncio.Event(), threading.Event()

    def open(self, path: str, *, write: bool = False) -> File:
        if self.holds and path.endswith(".log"):
            self.loop.call_soon_threadsafe(self.is_held.set)
            assert self.go_on.wait(10)
        return super().open(path, write=write)


async def test_a_look_at_a_topic_that_is_deleted_meanwhile_says_so(tmp_path):
    fs = HeldDisk()
    async with (
        running_broker(tmp_path, fs, open_segments=1) as broker,
        await RawClient.open(broker.port) as client,
        await RawClient.open(broker.port) as other,
    ):
        await client.create("t", 1, segment_bytes=200)
        for value in (b"one", b"two", b"three"):
            await client.produce("t", 0, value * 30)
        fs.holds = True
        at_time = messages.ListOffsetsPartition("t", 0, NOON_US)
        client.send(api.LIST_OFFSETS, messages.ListOffsetsRequest([at_time]))
        await fs.is_held.wait()
        await other.call(api.DELETE_TOPIC, messages.DeleteTopicRequest("t"))
        fs.go_on.set()

        answer = await client.answer(api.LIST_OFFSETS)

    assert isinstance(answer.results[0].error.to_exception(), UnknownTopic)


class DefectiveDisk(FileSystem):
    """Raises what no disk raises, until it is repaired; then tells of the next file it replaces."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.is_defective = False
        self.failed, self.replaced = asyncio.Event(), asyncio.Event()

    def rename(self, old: str, new: str) -> None:
        if self.is_defective and new.endswith(".index"):
            self.loop.call_soon_threadsafe(self.failed.set)
            raise ValueError("a defect")
        super().rename(old, new)
        if new.endswith(".index"):
            self.loop.call_soon_threadsafe(self.replaced.set)


async def test_a_defect_does_not_end_housekeeping(tmp_path, caplog):
    fs = DefectiveDisk()
    async with (
        running_broker(tmp_path, fs, checkpoint_interval_ms=10) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t", 1)
        fs.is_defective = True
        await client.produce("t", 0, b"value")
        await fs.failed.wait()
        fs.is_defective = False

        await asyncio.wait_for(fs.replaced.wait(), 10)

    assert "housekeeping failed" in caplog.text
    assert broker.metrics.housekeeping_failures >= 1


# --- a start that cannot be ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "operation",
    ["lock", "list_folder", "write", "sync", "sync_folder", "remove", "open", "read", "size"],
)
async def test_a_data_folder_that_refuses_is_named_and_nothing_in_it_is_lost(
    disk, tmp_path, operation
):
    """On a crashed broker's folder, so that there is a journal to replay and logs to recover."""
    acked: Acked = {}
    async with broker_on(disk) as (_, client):
        await client.create("t", PARTITIONS)
        await produce_group(client, acked, b"first")
        left = SimulatedDisk(disk.power_cut(tmp_path / "left", keep_nothing))
    left.fail(operation, error=errno.EROFS, times=None)

    with pytest.raises(SeglogError) as refused:
        async with broker_on(left):
            pass

    assert left.root in str(refused.value)
    left.heal()
    async with broker_on(left) as (_, client):
        await check_acked(client, acked)
    left.close()


@pytest.mark.parametrize("operation", ["make_folder", "lock", "create", "write", "rename"])
async def test_a_data_folder_that_cannot_be_made_is_named_and_made_later(disk, operation):
    disk.fail(operation, "data*", error=errno.EROFS, times=None)

    with pytest.raises(StorageError) as refused:
        async with broker_on(disk):
            pass

    assert disk.root in str(refused.value)
    disk.heal()
    async with broker_on(disk) as (_, client):
        await client.create("t", PARTITIONS)


async def test_a_full_disk_at_the_replay_is_named_and_nothing_is_lost(disk, tmp_path):
    acked: Acked = {}
    async with broker_on(disk) as (_, client):
        await client.create("t", PARTITIONS)
        await produce_group(client, acked, b"first")
        left = SimulatedDisk(disk.power_cut(tmp_path / "left", keep_nothing))
    left.capacity_bytes = left.used_bytes

    with pytest.raises(StorageFull):
        async with broker_on(left):
            pass

    left.capacity_bytes = None
    async with broker_on(left) as (_, client):
        await check_acked(client, acked)
    left.close()


async def test_a_log_that_cannot_be_opened_fails_alone_and_says_why(disk):
    async with broker_on(disk) as (_, client):
        await client.create("t", PARTITIONS)
        for number in range(PARTITIONS):
            await client.produce("t", number, b"value")
    disk.fail("open", "data/topic-t/partition-1/*", error=errno.EMFILE, times=None)

    async with broker_on(disk) as (_, client):
        with pytest.raises(SeglogError, match="Too many open files") as refused:
            await client.produce("t", 1, b"more")
        assert not isinstance(refused.value, DamagedLog)
        assert await client.values("t", 0) == await client.values("t", 2) == [b"value"]


# --- damage --------------------------------------------------------------------------------------


async def test_a_damaged_segment_is_told_with_where_to_go_on_and_the_rest_is_served(disk):
    async with broker_on(disk) as (broker, client):
        await client.create("t", 2, segment_bytes=4 * KIB)
        for round_ in range(9):
            for number in range(2):
                await client.produce("t", number, b"%d" % round_ * KIB)
        folder = Path(broker.folder.path) / "topic-t" / "partition-0"
    first = min(folder.glob("*.log"))
    with first.open("r+b") as file:
        file.seek(first.stat().st_size // 3)  # the second of three batches
        file.write(bytes(100))

    async with broker_on(disk) as (_, client):
        with pytest.raises(DamagedLog) as told:
            await client.values("t", 0, 1)
        resume = told.value.resume_offset

        assert await client.values("t", 0, resume) == [
            b"%d" % round_ * KIB for round_ in range(resume, 9)
        ]
        assert records_of(await client.fetch("t", 0, 0, partition_bytes=1))[0].value == b"0" * KIB
        assert len(await client.values("t", 1)) == 9
        assert await client.produce("t", 0, b"more") == 9


# --- too many open files -------------------------------------------------------------------------

OPEN_FILES = 60


@asynccontextmanager
async def broker_with_few_files(
    data: Path, kind: str = "-n"
) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    serve = shlex.join(
        [sys.executable, "-m", "seglog", "serve", "--port", "0", "--data", str(data)]
    )
    process = await asyncio.create_subprocess_exec(
        "sh",
        "-c",
        f"ulimit {kind} {OPEN_FILES}; exec {serve}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        assert line.startswith("listening on "), line
        yield process, int(line.rpartition(":")[2])
        process.terminate()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_broker_takes_as_many_descriptors_as_the_system_allows(tmp_path):
    async with (
        broker_with_few_files(tmp_path, "-S -n") as (_, port),
        await RawClient.open(port) as client,
    ):
        await client.create("many", OPEN_FILES)
        await client.produce("many", OPEN_FILES - 1, b"value")
        assert await client.values("many", OPEN_FILES - 1) == [b"value"]


async def test_without_a_free_descriptor_a_broker_refuses_by_name_and_goes_on_when_it_has_one(
    tmp_path,
):
    acked: list[bytes] = []
    async with broker_with_few_files(tmp_path) as (process, port):
        client = await RawClient.open(port)
        await client.create("t", 2, segment_bytes=300)
        await client.produce("t", 1, b"first")
        with pytest.raises(SeglogError, match="Too many open files"):
            await client.create("many", OPEN_FILES)
        listed = await client.call(api.METADATA, messages.MetadataRequest())
        assert [topic.name for topic in listed.topics] == ["t"]

        async with AsyncExitStack() as crowd:
            for _ in range(OPEN_FILES):
                one = await crowd.enter_async_context(await RawClient.open(port, hello=False))
                try:
                    await one.call(api.HELLO, messages.HelloRequest("one of many"))
                except (OSError, EOFError):
                    break  # nobody more gets in
            refused: list[SeglogError] = []
            for number in range(10):  # each of these needs a segment of its own
                try:
                    await client.produce("t", 0, b"%d" % number * 200)
                    acked.append(b"%d" % number * 200)
                except SeglogError as error:
                    refused.append(error)
            assert refused, "there were descriptors left"
            assert all(error.retriable for error in refused)
            assert "Too many open files" in str(refused[0])
            await client.produce("t", 1, b"needs none")
        assert process.returncode is None

        while True:  # the crowd is gone, and the broker may have seen that or not
            try:
                await client.produce("t", 0, b"after")
                acked.append(b"after")
                break
            except StorageFull:
                continue
        assert await client.values("t") == acked
        assert await client.values("t", 1) == [b"first", b"needs none"]
        client.close()
