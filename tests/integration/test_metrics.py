"""What /metrics says is what was really sent, read, refused and synced, number by number."""

import asyncio
import struct
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from seglog import Admin, Consumer, Producer
from seglog.prometheus import exposition
from seglog.protocol import api, messages
from seglog.protocol.batch import encode_batch
from seglog.protocol.errors import OffsetOutOfRange, SeglogError, UnknownTopic
from seglog.server.app import Broker
from seglog.server.metrics_table import METRICS
from seglog.server.storage.filesystem import File, FileSystem

from tests.brokers import NOON_US, RawClient, fetch_request, produce_request, running_broker
from tests.integration.test_transactions import commit, stage
from tests.metrics import Scrape


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running_broker(tmp_path) as running:
        yield running


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[RawClient]:
    async with await RawClient.open(broker.port) as opened:
        yield opened


def bootstrap(broker: Broker) -> str:
    return f"127.0.0.1:{broker.port}"


def changes(before: Scrape, after: Scrape, name: str, *labels: str) -> dict[Any, float]:
    """What a metric grew by, where it did."""
    was = before.series(name, *labels)
    return {
        place: value - was.get(place, 0)
        for place, value in after.series(name, *labels).items()
        if value != was.get(place, 0)
    }


# --- the exposition ------------------------------------------------------------------------------


async def test_every_metric_of_the_table_is_exposed_with_its_type_and_help(broker: Broker):
    scrape = await Scrape.of(broker)

    ours = {name for name in scrape.types if name.startswith("seglog_")}
    assert ours == {metric.name.removesuffix("_total") for metric in METRICS}
    for metric in METRICS:
        family = metric.name.removesuffix("_total")
        assert scrape.types[family] == metric.kind
        assert scrape.helps[family] == metric.help
    for process in ("process_cpu_seconds_total", "process_resident_memory_bytes",
                    "process_open_fds"):  # fmt: skip
        assert scrape[process] > 0
    assert scrape["seglog_threads"] >= 2  # the loop's, and the writer's
    assert scrape.series("python_gc_collections_total", "generation")


async def test_names_keep_to_the_conventions():
    for metric in METRICS:
        assert metric.name.startswith("seglog_")
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.help.endswith("."), metric.name
        assert not {"client", "client_id", "address", "member"} & set(metric.labels)


async def test_a_call_in_the_loop_itself_gives_the_same(broker: Broker):
    beside = await Scrape.of(broker)
    body, _ = exposition(broker)
    assert Scrape(body.decode()).types == beside.types


# --- what goes in and out ------------------------------------------------------------------------


async def test_records_and_bytes_of_each_topic_are_what_was_sent_and_read(broker: Broker):
    async with Admin(bootstrap(broker)) as admin:
        await admin.create_topic("one", 3)
        await admin.create_topic("two", 1)
        async with Producer(bootstrap(broker)) as producer:
            for number in range(1_000):
                await producer.send("one", b"%d" % number, key=b"%d" % (number % 7))
            await producer.flush()
            await producer.send_batch("two", [b"x" * 100] * 2_500)
            await producer.flush()
        read = 0
        async with Consumer("one", bootstrap=bootstrap(broker), start="earliest") as consumer:
            async for _ in consumer:
                read += 1
                if read == 1_000:
                    break
        stored = {
            name: sum(p.size_bytes for p in (await admin.describe_topic(name)).partitions)
            for name in ("one", "two")
        }

    scrape = await Scrape.of(broker)

    assert scrape.series("seglog_topic_records_in_total", "topic") == {"one": 1_000, "two": 2_500}
    assert scrape.series("seglog_topic_bytes_in_total", "topic") == stored
    assert scrape["seglog_records_in_total"] == 3_500
    assert scrape["seglog_bytes_in_total"] == sum(stored.values())
    batches = scrape.series("seglog_topic_batches_in_total", "topic")
    assert scrape["seglog_batches_in_total"] == sum(batches.values())
    assert scrape.series("seglog_topic_records_out_total", "topic") == {"one": 1_000, "two": 0}
    assert scrape.series("seglog_topic_bytes_out_total", "topic") == {"one": stored["one"],
                                                                      "two": 0}  # fmt: skip
    assert scrape["seglog_records_out_total"] == 1_000
    ends = scrape.series("seglog_log_durable_end_offset", "topic", "partition")
    assert sum(ends.values()) == 3_500
    sizes = scrape.series("seglog_log_size_bytes", "topic", "partition")
    assert sum(sizes.values()) == sum(stored.values())


@pytest.mark.parametrize("codec", ["none", "zstd", "lz4"])
async def test_compressed_batches_count_with_the_bytes_that_are_stored(broker: Broker, codec):
    async with Admin(bootstrap(broker)) as admin:
        await admin.create_topic("t", 1)
        async with Producer(bootstrap(broker), compression=codec) as producer:
            await producer.send_batch("t", [b"the same again"] * 5_000)
            await producer.flush()
        (partition,) = (await admin.describe_topic("t")).partitions
    scrape = await Scrape.of(broker)
    assert scrape["seglog_records_in_total"] == 5_000
    assert scrape["seglog_bytes_in_total"] == partition.size_bytes


async def test_records_out_are_those_of_the_batches_that_each_fetch_brings(client, broker: Broker):
    """Cut at every place where a fetch may end: within the log, and at a segment's end."""
    await client.create("t", 1, segment_bytes=2_000)
    sent = [[b"%d" % n * 20] * (1 + n % 4) for n in range(40)]
    for values in sent:
        await client.produce("t", 0, *values)
    offset = records = length = 0
    expected = sum(map(len, sent))
    for size in (1, 300, 700, 1_500, 1 << 20) * 20:
        result = await client.fetch("t", 0, offset, max_bytes=size)
        if not result.batches:
            break
        batches = result.batches
        length += len(batches)
        while batches:
            # offset, length, record_count
            base, of_batch, count = struct.unpack_from("<Q8xI16xI", batches)
            assert base == offset
            offset, records = base + count, records + count
            batches = batches[of_batch:]
        scrape = await Scrape.of(broker)
        assert scrape["seglog_records_out_total"] == records
        assert scrape["seglog_bytes_out_total"] == length
    assert records == expected


async def test_a_batch_that_is_sent_again_counts_as_a_duplicate_only(client, broker: Broker):
    await client.create("t", 1)
    options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    for _ in range(3):
        assert await client.produce("t", 0, b"a", b"b", **options) == 0
    scrape = await Scrape.of(broker)
    assert scrape["seglog_records_in_total"] == 2
    assert scrape["seglog_batches_in_total"] == 1
    assert scrape["seglog_duplicate_batches_in_total"] == 2
    assert scrape.value("seglog_requests_total", api="produce") == 3


async def test_network_bytes_are_those_of_the_frames(client, broker: Broker):
    await client.create("t", 1)
    before = await Scrape.of(broker)
    request = api.encode_request(api.PRODUCE, 99, produce_request("t", 0, b"x" * 5_000))
    client.write_frame(request)
    (length,) = struct.unpack(">I", await client.reader.readexactly(4))
    await client.reader.readexactly(length)
    after = await Scrape.of(broker)
    received = "seglog_network_receive_bytes_total"
    assert after[received] - before[received] == len(request) + 4
    sent = "seglog_network_transmit_bytes_total"
    assert after[sent] - before[sent] == length + 4


# --- requests and errors -------------------------------------------------------------------------


async def test_requests_are_counted_by_api(client, broker: Broker):
    await client.create("t", 1)
    before = await Scrape.of(broker)
    for _ in range(5):
        await client.produce("t", 0, b"x")
    for _ in range(3):
        await client.fetch("t", 0, 0)
    for _ in range(2):
        await client.call(api.METADATA, messages.MetadataRequest(["t"]))
    after = await Scrape.of(broker)

    expected = {"produce": 5, "fetch": 3, "metadata": 2}
    assert changes(before, after, "seglog_requests_total", "api") == expected
    assert changes(before, after, "seglog_request_duration_seconds_count", "api") == expected
    infinite = {(name, "+Inf"): count for name, count in expected.items()}
    grown = changes(before, after, "seglog_request_duration_seconds_bucket", "api", "le")
    assert {place: grown[place] for place in infinite} == infinite
    assert not changes(before, after, "seglog_errors_total", "api", "code")


async def test_errors_are_counted_by_their_name_and_api(client, broker: Broker):
    await client.create("t", 1)
    before = await Scrape.of(broker)

    for _ in range(2):
        with pytest.raises(UnknownTopic):
            await client.produce("missing", 0, b"x")
    with pytest.raises(OffsetOutOfRange):
        await client.fetch("t", 0, 77)
    with pytest.raises(SeglogError):
        await client.create("t", 1)
    places = [messages.ListOffsetsPartition(*place, -1) for place in (("t", 5), ("t", 0))]
    await client.call(api.LIST_OFFSETS, messages.ListOffsetsRequest(places))
    await client.call(api.METADATA, messages.MetadataRequest(["a", "t", "b"]))
    client.write_frame(b"\x94\xcd\x03\xe7\x00\x01\x90")  # api 999
    assert (await client.receive()).error is not None
    client.write_frame(b"\xc1")
    assert (await client.receive()).error is not None
    async with await RawClient.open(broker.port, hello=False) as stranger:
        with pytest.raises(SeglogError):
            await stranger.fetch("t", 0, 0)

    after = await Scrape.of(broker)
    assert changes(before, after, "seglog_errors_total", "api", "code") == {
        ("produce", "UNKNOWN_TOPIC"): 2,
        ("fetch", "OFFSET_OUT_OF_RANGE"): 1,
        ("fetch", "HELLO_REQUIRED"): 1,
        ("create_topic", "TOPIC_EXISTS"): 1,
        ("list_offsets", "UNKNOWN_PARTITION"): 1,
        ("metadata", "UNKNOWN_TOPIC"): 2,
        ("unknown", "UNSUPPORTED_API"): 1,
        ("unknown", "BAD_REQUEST"): 1,
    }
    assert changes(before, after, "seglog_requests_total", "api")["unknown"] == 2


async def until(broker: Broker, name: str, value: float, **labels: object) -> Scrape:
    """Scrape again and again until it is so; pytest's timeout is the end of patience."""
    while True:
        scrape = await Scrape.of(broker)
        if scrape.value(name, **labels) == value:
            return scrape


async def test_a_fetch_that_waits_is_shown_and_its_wait_is_told_apart(client, broker: Broker):
    await client.create("t", 1)
    async with await RawClient.open(broker.port) as reader:
        started = time.perf_counter()
        reader.send(api.FETCH, fetch_request(("t", 0, 0), max_wait_ms=30_000, min_bytes=1))
        waiting = await until(broker, "seglog_long_polls", 1, api="fetch")
        await client.produce("t", 0, b"x")
        await reader.answer(api.FETCH)
        seconds = time.perf_counter() - started

    after = await until(broker, "seglog_long_polls", 0, api="fetch")
    assert waiting["seglog_in_flight_requests"] == 1
    assert waiting["seglog_in_flight_bytes"] > 0
    assert after["seglog_in_flight_bytes"] == 0
    assert after["seglog_fetch_wait_seconds_count"] == 1
    # The parts are measured apart, and are together no more than the whole.
    waited = after["seglog_fetch_wait_seconds_sum"]
    worked = after.value("seglog_request_duration_seconds_sum", api="fetch")
    assert worked > 0
    assert waited + worked <= seconds


async def test_connections_are_counted_open_accepted_refused_and_closed(tmp_path: Path):
    async with running_broker(tmp_path, max_connections=2) as broker:
        first = await RawClient.open(broker.port)
        second = await RawClient.open(broker.port)
        for _ in range(3):
            refused = await RawClient.open(broker.port, hello=False)
            assert (await refused.receive()).error is not None
            refused.close()
        full = await Scrape.of(broker)
        second.write(struct.pack(">I", 0xFFFF_FFFF))  # a frame larger than any
        assert (await second.receive()).error is not None
        second.close()
        after = await until(broker, "seglog_connections", 1)
        first.close()

    assert full["seglog_connections"] == 2
    assert full["seglog_connections_accepted_total"] == 2
    refusals = {"max.connections": 3}
    assert full.series("seglog_connections_refused_total", "reason") == refusals
    assert not full.series("seglog_connections_closed_total", "reason")
    assert after.series("seglog_connections_closed_total", "reason") == {"unreadable": 1}
    assert after.value("seglog_errors_total", api="unknown", code="LIMIT_EXCEEDED") == 1


async def test_connections_refused_for_their_address_name_that_setting(tmp_path: Path):
    async with running_broker(tmp_path, max_connections_per_address=1) as broker:
        async with await RawClient.open(broker.port):
            refused = await RawClient.open(broker.port, hello=False)
            assert (await refused.receive()).error is not None
            refused.close()
        scrape = await Scrape.of(broker)
    assert scrape.value(
        "seglog_connections_refused_total", reason="max.connections.per.address"
    ) == 1  # fmt: skip


# --- the writer ----------------------------------------------------------------------------------


class CountedFile(File):
    disk: "CountingDisk"

    def sync(self) -> None:
        if not self.disk.gate.is_set():
            self.disk.held.set()
            assert self.disk.gate.wait(30)
        super().sync()
        kind = "journal" if "journal-" in self.path else "log"
        if kind == "journal" or self.path.endswith(".log"):
            self.disk.syncs[kind] += 1


class CountingDisk(FileSystem):
    """Counts the syncs of logs and of the journal, where they reach the disk; holds them up."""

    def __init__(self) -> None:
        self.syncs: Counter[str] = Counter()
        self.gate = threading.Event()
        self.gate.set()
        self.held = threading.Event()

    def create(self, path: str) -> File:
        return self._counted(super().create(path))

    def open(self, path: str, *, write: bool = False) -> File:
        return self._counted(super().open(path, write=write))

    def _counted(self, plain: File) -> File:
        file = CountedFile(plain.path, plain.descriptor)
        plain.descriptor = -1  # it is the other's now
        file.disk = self
        return file


def request_to(partitions: Iterable[int], *values: bytes) -> messages.ProduceRequest:
    batch = memoryview(encode_batch(values, timestamps=NOON_US))
    return messages.ProduceRequest([messages.ProduceBatch("t", n, batch) for n in partitions])


async def test_syncs_groups_and_the_journal_are_counted_as_they_happen(tmp_path: Path):
    disk = CountingDisk()
    async with (
        running_broker(tmp_path, disk) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t", 8, segment_bytes=4_000)
        disk.syncs.clear()
        before = await Scrape.of(broker)
        batches = 0
        for number in range(60):
            partitions = list(range(8)) if number % 3 == 0 else [number % 8]
            await client.call(api.PRODUCE, request_to(partitions, b"x" * 300))
            batches += len(partitions)
        after = await Scrape.of(broker)
        synced = dict(disk.syncs)

    assert changes(before, after, "seglog_fsync_duration_seconds_count", "file") == synced
    # One sync a group, and one for each of the two files when they were made.
    assert after["seglog_journal_groups_total"] == synced["journal"] - 2 > 0
    assert after["seglog_journal_used_bytes"] == after["seglog_journal_bytes_total"] > 0
    assert after["seglog_journal_size_bytes"] == broker.config.journal_bytes
    assert after["seglog_journal_broken"] == 0
    assert after["seglog_batches_in_total"] == batches
    assert after["seglog_group_commit_batches_sum"] == batches
    assert after["seglog_group_commit_bytes_sum"] == after["seglog_bytes_in_total"]
    assert after["seglog_group_commit_partitions_sum"] == batches  # none twice in one request
    groups = after["seglog_group_commit_batches_count"]
    assert 60 <= groups == after["seglog_group_commit_duration_seconds_count"]
    assert after["seglog_writer_queued_bytes"] == 0


async def test_batches_that_wait_for_a_sync_are_one_group_with_the_next(tmp_path: Path):
    disk = CountingDisk()
    async with running_broker(tmp_path, disk) as broker:
        clients = [await RawClient.open(broker.port) for _ in range(6)]
        await clients[0].create("t", 6)
        length = len(encode_batch([b"x"], timestamps=NOON_US))
        disk.gate.clear()
        clients[0].send_produce("t", 0, b"x")
        assert await asyncio.to_thread(disk.held.wait, 30)
        for number, client in enumerate(clients[1:], start=1):
            client.send_produce("t", number, b"x")
        waiting = await until(broker, "seglog_writer_queued_bytes", 6 * length)
        disk.gate.set()
        for client in clients:
            await client.answer(api.PRODUCE)
        after = await Scrape.of(broker)
        for client in clients:
            client.close()

    assert waiting["seglog_in_flight_requests"] == 6
    assert waiting["seglog_batches_in_total"] == 0
    for name in ("batches", "partitions"):
        assert after[f"seglog_group_commit_{name}_count"] == 2
        assert after[f"seglog_group_commit_{name}_sum"] == 6
        assert after.value(f"seglog_group_commit_{name}_bucket", le="1.0") == 1
        assert after.value(f"seglog_group_commit_{name}_bucket", le="4.0") == 1
    assert after["seglog_group_commit_bytes_sum"] == 6 * length
    assert after["seglog_journal_groups_total"] == 1
    assert after["seglog_batches_in_total"] == 6


class FailingFile(File):
    disk: "FailingDisk"

    def sync(self) -> None:
        if self.disk.fails_in and self.disk.fails_in in self.path:
            raise OSError(5, "Input/output error")
        super().sync()


class FailingDisk(FileSystem):
    fails_in = ""

    def create(self, path: str) -> File:
        plain = super().create(path)
        file = FailingFile(plain.path, plain.descriptor)
        plain.descriptor = -1
        file.disk = self
        return file


async def test_an_offline_partition_is_counted_and_named(tmp_path: Path):
    disk = FailingDisk()
    async with (
        running_broker(tmp_path, disk) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t", 2)
        sound = await Scrape.of(broker)
        disk.fails_in = "partition-1"
        with pytest.raises(SeglogError):
            await client.produce("t", 1, b"x")
        await client.produce("t", 0, b"y")
        scrape = await Scrape.of(broker)

    assert sound["seglog_offline_partitions"] == 0
    assert scrape["seglog_offline_partitions"] == 1
    offline = scrape.series("seglog_log_offline", "topic", "partition")
    assert offline == {("t", "0"): 0, ("t", "1"): 1}
    assert scrape.value("seglog_errors_total", api="produce", code="PARTITION_OFFLINE") == 1
    assert scrape["seglog_records_in_total"] == 1  # what was not acked does not count


async def test_a_journal_that_the_disk_refuses_is_told_and_nobody_fails(tmp_path: Path):
    disk = FailingDisk()
    disk.fails_in = "journal-"
    async with (
        running_broker(tmp_path, disk) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t", 8)
        scrape = await Scrape.of(broker)
        assert scrape["seglog_journal_broken"] == 0
        requests = 0
        while not scrape["seglog_journal_broken"]:  # a group of one partition needs no journal
            response = await client.call(api.PRODUCE, request_to(range(8), b"x"))
            assert all(result.error is None for result in response.results)
            requests += 1
            scrape = await Scrape.of(broker)
    assert scrape["seglog_journal_groups_total"] == 0
    assert scrape["seglog_batches_in_total"] == 8 * requests


async def test_a_topic_that_cannot_be_served_is_counted(tmp_path: Path):
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await client.create("sound", 1)
        await client.create("damaged", 1)
    (tmp_path / "topic-damaged" / "topic.json").write_text("?")
    async with running_broker(tmp_path) as broker:
        scrape = await Scrape.of(broker)
    assert (scrape["seglog_topics"], scrape["seglog_damaged_topics"]) == (1, 1)


# --- beside traffic ------------------------------------------------------------------------------


async def test_deleted_segments_are_counted_by_delete_records_and_retention(tmp_path: Path):
    async with (
        running_broker(tmp_path, housekeeping_interval_ms=10) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t", 1, segment_bytes=1_000, retention_bytes=-1, retention_ms=-1)
        for _ in range(20):
            await client.produce("t", 0, b"x" * 400)
        before = await Scrape.of(broker)
        segments = before.value("seglog_log_segments", topic="t", partition=0)
        asked = messages.DeleteRecordsPartition("t", 0, 9)
        await client.call(api.DELETE_RECORDS, messages.DeleteRecordsRequest([asked]))
        deleted = await Scrape.of(broker)
        left = deleted.value("seglog_log_segments", topic="t", partition=0)
        assert deleted.value("seglog_log_start_offset", topic="t", partition=0) == 9
        assert deleted["seglog_segments_deleted_total"] == segments - left > 0
        await client.call(
            api.ALTER_TOPIC, messages.AlterTopicRequest("t", None, {"retention.bytes": 0})
        )
        kept = await until(broker, "seglog_log_segments", 1, topic="t", partition=0)
        while kept["seglog_segments_deleted_total"] < segments - 1:
            kept = await Scrape.of(broker)
        assert kept["seglog_segments_deleted_total"] == segments - 1
        assert kept["seglog_housekeeping_failures_total"] == 0


async def test_compaction_counts_what_it_removes_and_reads_count_what_is_left(tmp_path: Path):
    async with (
        running_broker(tmp_path, compaction_interval_ms=5) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t", 1, segment_bytes=1_000, cleanup_policy="compact")
        for number in range(40):
            await client.produce("t", 0, b"x" * 100, keys=[b"%d" % (number % 3)])
        while True:  # what a pass removed is counted just after readers miss it
            before = await Scrape.of(broker)
            values = await client.values("t")
            after = await Scrape.of(broker)
            out = after["seglog_records_out_total"] - before["seglog_records_out_total"]
            assert out == len(values)
            removed = after["seglog_compaction_removed_records_total"]
            if removed and len(values) == 40 - removed:
                break
        assert after["seglog_compactions_total"] >= 1


async def test_transactions_are_counted_staged_and_committed(client, broker: Broker):
    await client.create("out", 1)
    positions = [await stage(client, 0, "out", 0, b"a", b"b") for _ in range(2)]
    staged = await Scrape.of(broker)
    assert await commit(client, 0, *positions)
    assert not await commit(client, 0, *positions)
    done = await Scrape.of(broker)

    assert staged["seglog_transactions_staged_batches_total"] == 2
    assert staged["seglog_transactions_committed_total"] == 0
    assert staged["seglog_records_in_total"] == 0
    assert done["seglog_transactions_committed_total"] == 1
    assert (done["seglog_transactions"], done["seglog_transactions_unfinished"]) == (1, 0)
    assert done["seglog_records_in_total"] == 4
    assert done.value("seglog_topic_records_in_total", topic="__staged") == 2
