"""The APIs end to end: a real broker, real files, a real socket."""

import asyncio
import gc
import os
import shutil
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seglog.protocol import api, messages
from seglog.protocol.batch import encode_batch
from seglog.protocol.constants import EARLIEST, KIB, LATEST, MIB
from seglog.protocol.errors import (
    BadBatch,
    BadConfig,
    DamagedBatch,
    HelloRequired,
    LogTruncated,
    OffsetOutOfRange,
    ProducerFenced,
    ProtectedTopic,
    SequenceGap,
    TopicExists,
    UnknownPartition,
    UnknownProducer,
    UnknownTopic,
    UnsupportedApi,
    UnsupportedVersion,
)
from seglog.protocol.header import split_batches, unpack_header
from seglog.server.app import Broker
from seglog.server.storage.filesystem import File, FileSystem

from tests.brokers import (
    NOON_US,
    RawClient,
    fetch_request,
    next_offset,
    records_of,
    running_broker,
    values_of,
)

METADATA = messages.MetadataRequest()
WAITING = {"max_wait_ms": 60_000, "min_bytes": 1}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running_broker(tmp_path / "data") as running:
        yield running


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[RawClient]:
    async with await RawClient.open(broker.port) as opened:
        yield opened


@pytest.fixture
async def other(broker: Broker) -> AsyncIterator[RawClient]:
    async with await RawClient.open(broker.port) as opened:
        yield opened


class WatchedFile(File):
    """A file that tells of its syncs and reads, and whose sync can be held back."""

    disk: "WatchedDisk"

    def sync(self) -> None:
        self.disk.syncing.set()
        self.disk.gate.wait()
        super().sync()
        self.disk.synced.add(Path(self.path).name)
        self.disk.any_sync.set()

    def read(self, length: int, position: int) -> bytes:
        self.disk.reads.append((Path(self.path).name, threading.current_thread().name))
        return super().read(length, position)


class WatchedDisk(FileSystem):
    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.syncing = threading.Event()
        self.any_sync = threading.Event()
        self.synced: set[str] = set()
        self.reads: list[tuple[str, str]] = []

    def create(self, path: str) -> File:
        return self._watched(super().create(path))

    def open(self, path: str, *, write: bool = False) -> File:
        return self._watched(super().open(path, write=write))

    def _watched(self, plain: File) -> File:
        file = WatchedFile(plain.path, plain.descriptor)
        plain.descriptor = -1  # it is the other's now
        file.disk = self
        return file


async def holds(check: Callable[[], Awaitable[bool]]) -> None:
    """Ask the broker again and again until it is so; pytest's timeout is the end of patience."""
    while not await check():
        pass


async def describe(client: RawClient, topic: str) -> messages.DescribeTopicResponse:
    described: messages.DescribeTopicResponse = await client.call(
        api.DESCRIBE_TOPIC, messages.DescribeTopicRequest(topic)
    )
    return described


async def delete(client: RawClient, topic: str) -> None:
    await client.call(api.DELETE_TOPIC, messages.DeleteTopicRequest(topic))


async def offset_at(client: RawClient, topic: str, timestamp_us: int, partition: int = 0) -> Any:
    asked = messages.ListOffsetsPartition(topic, partition, timestamp_us)
    response = await client.call(api.LIST_OFFSETS, messages.ListOffsetsRequest([asked]))
    return response.results[0]


async def topic_names(client: RawClient) -> list[str]:
    return [topic.name for topic in (await client.call(api.METADATA, METADATA)).topics]


# --- connections ---------------------------------------------------------------------------------


async def test_hello_tells_what_the_broker_can_do(broker: Broker):
    async with await RawClient.open(broker.port, hello=False) as client:
        hello = await client.call(api.HELLO, messages.HelloRequest("a client", "1.0"))
    assert {each.key for each in hello.apis} == api.APIS.keys()
    assert hello.cluster_id == broker.cluster_id != ""
    assert hello.limits["max.frame.bytes"] == broker.config.max_frame_bytes


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="Linux has this option")
async def test_answers_to_a_client_on_the_same_machine_are_not_paced(broker: Broker):
    async with await RawClient.open(broker.port):
        (connection,) = broker.listener.connections
        assert connection._transport is not None
        sending = connection._transport.get_extra_info("socket")
        found = sending.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        assert found.split(b"\0")[0] == b"reno"


async def test_nothing_is_answered_before_hello(broker: Broker):
    async with await RawClient.open(broker.port, hello=False) as client:
        with pytest.raises(HelloRequired):
            await client.call(api.METADATA, METADATA)
        await client.call(api.HELLO, messages.HelloRequest("late"))
        assert await topic_names(client) == []


async def test_what_the_broker_does_not_know_is_refused_and_the_connection_lives_on(
    client: RawClient,
):
    for key, version, error in (
        (999, 0, UnsupportedApi),
        (api.METADATA.key, 99, UnsupportedVersion),
    ):
        client.write_frame(msgspec.msgpack.encode([key, version, 77, []]))
        answer = await client.receive()
        assert answer.correlation_id == 77
        assert isinstance(answer.error, error)
    assert await topic_names(client) == []


async def test_metadata_names_this_broker_and_the_leader_of_each_partition(
    broker: Broker, client: RawClient
):
    await client.create("b", 3)
    await client.create("a")
    metadata = await client.call(api.METADATA, METADATA)
    (address,) = metadata.brokers
    assert (address.host, address.port) == ("127.0.0.1", broker.port)
    assert [(t.name, t.leaders) for t in metadata.topics] == [
        ("a", [address.broker_id]),
        ("b", [address.broker_id] * 3),
    ]
    named = await client.call(api.METADATA, messages.MetadataRequest(["b", "missing"]))
    assert named.topics[0].error is None
    assert isinstance(named.topics[1].error.to_exception(), UnknownTopic)


async def test_clients_are_told_the_advertised_host(tmp_path: Path):
    async with (
        running_broker(tmp_path, advertised_host="log.example") as broker,
        await RawClient.open(broker.port) as client,
    ):
        (address,) = (await client.call(api.METADATA, METADATA)).brokers
        assert (address.host, address.port) == ("log.example", broker.port)


# --- topics --------------------------------------------------------------------------------------


async def test_a_change_that_fails_after_its_client_has_gone_is_no_defect(broker, caplog):
    await broker.topics.create("t")
    async with broker.topics._changing:
        asked = asyncio.create_task(broker.topics.create("t"))
        await asyncio.sleep(0)
        assert broker.topics._changes, "it waits for its turn"
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    async with broker.topics._changing:  # behind it
        await asyncio.sleep(0)
    assert not broker.topics._changes
    del asked
    gc.collect()

    assert "never retrieved" not in caplog.text


async def test_a_topic_is_created_described_altered_and_deleted(client: RawClient):
    created = await client.create("t", 2, segment_bytes=1000)
    await client.produce("t", 1, b"x", b"y")

    described = await describe(client, "t")
    assert (described.name, described.id) == ("t", created.id)
    assert described.config["segment.bytes"] == 1000
    empty, full = described.partitions
    assert (empty.log_start, empty.durable_end, empty.log_end) == (0, 0, 0)
    assert (full.partition, full.durable_end, full.log_end, full.error) == (1, 2, 2, None)
    (segment,) = full.segments
    assert (segment.file, segment.start_offset, segment.end_offset) == ("00000000.log", 0, 2)
    assert segment.size_bytes == full.size_bytes > 0
    assert not segment.is_sealed

    await client.call(api.ALTER_TOPIC, messages.AlterTopicRequest("t", 3, {"retention.ms": "5000"}))
    altered = await describe(client, "t")
    assert altered.config["retention.ms"] == 5000
    assert altered.config["segment.bytes"] == 1000
    assert len(altered.partitions) == 3
    await client.produce("t", 2, b"in the new one")

    await delete(client, "t")
    assert await topic_names(client) == []
    for gone in (describe(client, "t"), client.produce("t", 0, b"x"), client.fetch("t", 0)):
        with pytest.raises(UnknownTopic):
            await gone
    await client.create("t")
    assert await client.values("t") == []


async def test_what_cannot_be_is_refused(client: RawClient):
    await client.create("t", 2)
    with pytest.raises(TopicExists):
        await client.create("t")
    with pytest.raises(BadConfig, match="cannot have fewer"):
        await client.call(api.ALTER_TOPIC, messages.AlterTopicRequest("t", 1))
    with pytest.raises(BadConfig, match="no such setting"):
        await client.create("u", 1, retention="1")
    with pytest.raises(BadConfig, match="durability"):
        await client.call(
            api.ALTER_TOPIC, messages.AlterTopicRequest("t", None, {"durability": "perhaps"})
        )
    with pytest.raises(UnknownTopic):
        await delete(client, "missing")
    with pytest.raises(UnknownPartition, match="t has 2 partitions, there is no 2"):
        await client.produce("t", 2, b"x")
    with pytest.raises(UnknownPartition):
        await client.fetch("t", 2)
    assert await topic_names(client) == ["t"]


async def test_settings_of_the_broker_are_the_defaults_of_its_topics(tmp_path: Path):
    from seglog.server.storage.config import make_config

    async with (
        running_broker(
            tmp_path, default_partitions=3, topic=make_config({"segment.bytes": 5000})
        ) as broker,
        await RawClient.open(broker.port) as client,
    ):
        assert (await client.create("t")).partitions == 3
        assert (await describe(client, "t")).config["segment.bytes"] == 5000


@pytest.mark.parametrize("may_create", [True, False])
@pytest.mark.parametrize("auto_create", [True, False])
async def test_a_missing_topic_is_made_where_both_sides_want_it(
    tmp_path: Path, may_create, auto_create
):
    async with (
        running_broker(tmp_path, auto_create_topics=auto_create) as broker,
        await RawClient.open(broker.port) as client,
    ):
        request = messages.MetadataRequest(["t"], may_create)
        for _ in range(2):
            (topic,) = (await client.call(api.METADATA, request)).topics
            assert (topic.error is None) == (may_create and auto_create)
        assert await topic_names(client) == (["t"] if may_create and auto_create else [])


async def test_no_topic_with_a_bad_or_a_protected_name_is_made_by_the_way(tmp_path: Path):
    async with (
        running_broker(tmp_path, auto_create_topics=True) as broker,
        await RawClient.open(broker.port) as client,
    ):
        request = messages.MetadataRequest(["../x", "__groups"], True)
        bad, protected = (await client.call(api.METADATA, request)).topics
        assert bad.error.code == 22
        assert isinstance(protected.error.to_exception(), ProtectedTopic)
        assert len(broker.topics) == 0


async def test_internal_topics_are_hidden_and_protected(broker: Broker, client: RawClient):
    await broker.topics.create("__inner")
    assert await topic_names(client) == []
    (named,) = (await client.call(api.METADATA, messages.MetadataRequest(["__inner"]))).topics
    assert named.error is None
    assert (await describe(client, "__inner")).name == "__inner"

    for refused in (
        client.create("__other"),
        delete(client, "__inner"),
        client.call(api.ALTER_TOPIC, messages.AlterTopicRequest("__inner", 2)),
        client.produce("__inner", 0, b"x"),
        client.fetch("__inner", 0),
    ):
        with pytest.raises(ProtectedTopic):
            await refused
    asked = messages.DeleteRecordsPartition("__inner", 0, -1)
    response = await client.call(api.DELETE_RECORDS, messages.DeleteRecordsRequest([asked]))
    assert isinstance(response.results[0].error.to_exception(), ProtectedTopic)


async def test_a_fetch_that_waits_is_told_when_its_topic_is_deleted(
    client: RawClient, other: RawClient
):
    await client.create("t")
    client.send(api.FETCH, fetch_request(("t", 0, 0), **WAITING))
    await delete(other, "t")
    (result,) = (await client.answer(api.FETCH)).results
    assert isinstance(result.error.to_exception(), UnknownTopic)
    assert await topic_names(client) == []


async def test_a_reader_in_flight_finishes_when_its_topic_is_deleted(
    client: RawClient, other: RawClient
):
    await client.create("t", 1, segment_bytes=MIB)
    for number in range(8):
        await client.produce("t", 0, bytes([number]) * MIB)
    for number in range(8):  # much more than the sockets hold: most of it stays in the broker
        client.send(api.FETCH, fetch_request(("t", 0, number)))
    await client.writer.drain()
    first = await client.answer(api.FETCH)
    await delete(other, "t")
    found = [values_of(first.results[0])[0]]
    for _ in range(7):
        (result,) = (await client.answer(api.FETCH)).results
        if result.error is not None:  # not begun when the topic went
            assert isinstance(result.error.to_exception(), UnknownTopic)
        else:
            found += values_of(result)
    assert found == [bytes([number]) * MIB for number in range(len(found))]


def files_held_below(folder: Path) -> list[str]:
    """The segments of the topic `t`, deleted or not, that this process has mapped or open."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    links = [each.path for each in os.scandir("/proc/self/fd")]
    files = [os.readlink(link) for link in links if os.path.lexists(link)]  # noqa: PTH115
    return [
        name
        for name in maps + files
        if str(folder) in name and ("/topic-t/" in name or "/deleted-t-" in name)
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_a_deleted_topic_gives_its_disk_space_back(
    tmp_path: Path, client: RawClient, broker: Broker
):
    await client.create("t", 2, segment_bytes=200, durability="os", flush_interval_ms=1)
    for number in range(20):
        await client.produce("t", number % 2, bytes(100))
    await client.values("t")

    async def is_flushed() -> bool:
        await describe(client, "t")
        log = broker.topics.partition("t", 0).log
        return log.synced_end == log.log_end

    await holds(is_flushed)
    await delete(client, "t")

    async def nothing_is_held() -> bool:
        await topic_names(client)
        gc.collect()
        return not files_held_below(tmp_path)

    await holds(nothing_is_held)


async def test_a_client_that_goes_away_leaves_no_topic_half_made(broker: Broker, other: RawClient):
    for number in range(20):
        name = f"t{number}"
        gone = await RawClient.open(broker.port)
        gone.send(api.CREATE_TOPIC, messages.CreateTopicRequest(name, 5))
        await gone.writer.drain()
        gone.close()
        try:
            await other.create(name)
        except TopicExists:
            pass
        assert await other.produce(name, 0, b"x") == 0
        gone = await RawClient.open(broker.port)
        gone.send(api.DELETE_TOPIC, messages.DeleteTopicRequest(name))
        await gone.writer.drain()
        gone.close()
        try:
            await delete(other, name)
        except UnknownTopic:
            pass
        await other.create(name)
        assert await other.values(name) == []


# --- producing -----------------------------------------------------------------------------------


async def test_pipelined_produces_are_appended_and_answered_in_order(client: RawClient):
    await client.create("t", 3, segment_bytes=2000)
    sent = [client.send_produce("t", number % 3, str(number).encode()) for number in range(300)]
    answers = [await client.receive() for _ in sent]
    for partition in range(3):
        mine = set(sent[partition::3])
        assert [a.correlation_id for a in answers if a.correlation_id in mine] == sorted(mine)
        assert await client.values("t", partition) == [
            str(number).encode() for number in range(partition, 300, 3)
        ]


async def test_a_produce_of_many_partitions_answers_each(client: RawClient):
    await client.create("t", 2)
    good = memoryview(encode_batch([b"x", b"y"], timestamps=NOON_US))
    damaged = bytearray(good)
    damaged[-1] ^= 1
    request = messages.ProduceRequest(
        [
            messages.ProduceBatch("t", 0, good),
            messages.ProduceBatch("t", 0, memoryview(damaged)),
            messages.ProduceBatch("t", 9, good),
            messages.ProduceBatch("missing", 0, good),
            messages.ProduceBatch("t", 0, memoryview(b"short")),
            messages.ProduceBatch("t", 1, good),
            messages.ProduceBatch("t", 0, good),
        ]
    )
    results = (await client.call(api.PRODUCE, request)).results
    kinds = [result.error and type(result.error.to_exception()) for result in results]
    assert kinds == [
        None, DamagedBatch, UnknownPartition, UnknownTopic, DamagedBatch, None, None,
    ]  # fmt: skip
    assert [result.base_offset for result in results] == [0, -1, -1, -1, -1, 0, 2]
    assert results[0].append_time_us > 0
    assert await client.values("t") == [b"x", b"y"] * 2


async def test_an_idempotent_producer_is_appended_once_and_in_order(client: RawClient):
    await client.create("t")
    init = await client.call(api.INIT_PRODUCER, messages.InitProducerRequest())
    me: dict[str, Any] = {"producer_id": init.producer_id, "producer_epoch": init.producer_epoch}
    assert await client.produce("t", 0, b"a", b"b", **me) == 0
    assert await client.produce("t", 0, b"a", b"b", **me) == 0, "its first answer again"
    with pytest.raises(SequenceGap):
        await client.produce("t", 0, b"d", base_sequence=3, **me)
    assert await client.produce("t", 0, b"c", base_sequence=2, **me) == 2

    again = await client.call(
        api.INIT_PRODUCER, messages.InitProducerRequest(init.producer_id, init.producer_epoch)
    )
    assert again.producer_id == init.producer_id
    assert again.producer_epoch == init.producer_epoch + 1
    newer = {**me, "producer_epoch": again.producer_epoch}
    assert await client.produce("t", 0, b"d", **newer) == 3
    with pytest.raises(ProducerFenced):
        await client.produce("t", 0, b"e", base_sequence=3, **me)
    with pytest.raises(UnknownProducer):
        await client.produce("t", 0, b"x", producer_id=init.producer_id + 1, base_sequence=5)
    assert await client.values("t") == [b"a", b"b", b"c", b"d"]
    second = await client.call(api.INIT_PRODUCER, messages.InitProducerRequest())
    assert second.producer_id != init.producer_id


async def test_a_batch_that_claims_to_be_compacted_is_refused(client: RawClient):
    from seglog.protocol.header import pack_body

    await client.create("t")
    batch = encode_batch([b"x"], timestamps=NOON_US)
    header = unpack_header(batch)
    fields = header._asdict()
    for name in ("base_offset", "append_time_us", "length", "log_epoch", "prefix_crc32c", "crc32c",
                 "format"):  # fmt: skip
        del fields[name]
    batch[28:80] = pack_body(bytes(batch[80:]), **{**fields, "flags": 1})
    request = messages.ProduceRequest([messages.ProduceBatch("t", 0, memoryview(batch))])
    (result,) = (await client.call(api.PRODUCE, request)).results
    assert type(result.error.to_exception()) is BadBatch


# --- fetching ------------------------------------------------------------------------------------


async def test_a_fetch_that_waits_is_woken_by_an_append(client: RawClient, other: RawClient):
    await client.create("t", 2)
    waiting = client.send(api.FETCH, fetch_request(("t", 0, 0), ("t", 1, 0), **WAITING))
    asked = client.send(api.METADATA, METADATA)
    assert (await client.receive()).correlation_id == asked, "others are answered meanwhile"
    await other.produce("t", 1, b"x")
    answer = await client.receive()
    assert answer.correlation_id == waiting
    first, second = api.decode_response(api.FETCH, answer.body).results
    assert not first.batches
    assert values_of(second) == [b"x"]


async def test_a_fetch_that_waits_in_vain_is_answered_at_its_deadline(client: RawClient):
    await client.create("t")
    await client.produce("t", 0, b"x")
    result = await client.fetch("t", 0, 1, max_wait_ms=30, min_bytes=1)
    assert (result.error, len(result.batches), result.durable_end) == (None, 0, 1)
    short = await client.fetch("t", 0, 0, max_wait_ms=30, min_bytes=10_000)
    assert values_of(short) == [b"x"], "what is there, though it is less than was asked for"


async def test_a_fetch_waits_for_min_bytes(client: RawClient, other: RawClient):
    await client.create("t")
    await other.produce("t", 0, bytes(500))
    waiting = client.send(api.FETCH, fetch_request(("t", 0, 0), max_wait_ms=60_000, min_bytes=1500))
    await other.produce("t", 0, bytes(500))
    asked = client.send(api.METADATA, METADATA)
    assert (await client.receive()).correlation_id == asked
    await other.produce("t", 0, bytes(500))
    answer = await client.receive()
    assert answer.correlation_id == waiting
    (result,) = api.decode_response(api.FETCH, answer.body).results
    assert len(records_of(result)) == 3


async def test_a_fetch_with_an_error_does_not_wait(client: RawClient):
    await client.create("t")
    request = fetch_request(("t", 0, 0), ("missing", 0, 0), ("t", 0, 5), **WAITING)
    fine, missing, beyond = (await client.call(api.FETCH, request)).results
    assert fine.error is None
    assert isinstance(missing.error.to_exception(), UnknownTopic)
    error = beyond.error.to_exception()
    assert isinstance(error, OffsetOutOfRange)
    assert (error.log_start, error.durable_end) == (0, 0)


async def test_max_bytes_cuts_between_batches_and_one_batch_always_fits(client: RawClient):
    await client.create("t", 3)
    for partition in range(3):
        for _ in range(4):
            await client.produce("t", partition, bytes(1000))
    size = len(next(split_batches((await client.fetch("t", 0)).batches)))

    for asked, batches in ((0, 1), (1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (9**9, 4)):
        result = await client.fetch("t", 0, partition_bytes=asked)
        assert len(result.batches) == batches * size, asked

    places = [("t", partition, 0) for partition in range(3)]
    for asked, shares in ((1, [1, 0, 0]), (5 * size, [4, 1, 0]), (6 * size, [4, 2, 0])):
        results = (await client.call(api.FETCH, fetch_request(*places, max_bytes=asked))).results
        assert [len(result.batches) // size for result in results] == shares, asked
    fair = fetch_request(*places, max_bytes=9 * size, partition_bytes=2 * size)
    results = (await client.call(api.FETCH, fair)).results
    assert [len(result.batches) // size for result in results] == [2, 2, 2]


async def test_a_fetch_over_many_partitions_answers_in_the_order_that_was_asked(client: RawClient):
    await client.create("many", 200)
    await client.create("few", 2)
    for number in range(0, 200, 7):
        await client.produce("many", number, str(number).encode())
    places = [("many", number, 0) for number in reversed(range(200))]
    places.insert(100, ("few", 1, 0))
    results = (await client.call(api.FETCH, fetch_request(*places))).results
    assert len(results) == len(places)
    for (topic, number, _), result in zip(places, results, strict=True):
        expected = [str(number).encode()] if topic == "many" and number % 7 == 0 else []
        assert values_of(result) == expected


async def test_reading_begins_with_the_batch_that_holds_the_offset(client: RawClient):
    await client.create("t")
    await client.produce("t", 0, b"a", b"b", b"c")
    result = await client.fetch("t", 0, 2)
    assert [record.offset for record in records_of(result)] == [0, 1, 2]
    assert next_offset(result) == 3
    header = unpack_header(result.batches)
    assert header.append_time_us > NOON_US
    assert header.log_epoch == (await describe(client, "t")).partitions[0].epoch


@pytest.mark.parametrize("offset", [2, 2**31, 2**32, 2**63 - 1, 2**64 - 1])
async def test_an_offset_beyond_the_end_is_out_of_range(client: RawClient, offset):
    await client.create("t")
    await client.produce("t", 0, b"x")
    with pytest.raises(OffsetOutOfRange):
        await client.fetch("t", 0, offset)


async def test_readers_never_see_beyond_the_durable_end(tmp_path: Path):
    disk = WatchedDisk()
    async with (
        running_broker(tmp_path, disk) as broker,
        await RawClient.open(broker.port) as producer,
        await RawClient.open(broker.port) as reader,
    ):
        await producer.create("t")
        await producer.produce("t", 0, b"durable")
        disk.syncing.clear()
        disk.gate.clear()
        try:
            producer.send_produce("t", 0, b"written")
            await asyncio.to_thread(disk.syncing.wait)
            assert await reader.values("t") == [b"durable"]
            assert (await offset_at(reader, "t", LATEST)).offset == 1
            with pytest.raises(OffsetOutOfRange):
                await reader.fetch("t", 0, 2)
            reader.send(api.FETCH, fetch_request(("t", 0, 1), **WAITING))
        finally:
            disk.gate.set()
        assert (await producer.answer(api.PRODUCE)).results[0].base_offset == 1
        assert values_of((await reader.answer(api.FETCH)).results[0]) == [b"written"]


async def test_a_topic_with_durability_os_is_acked_before_it_is_synced_and_synced_soon(
    tmp_path: Path,
):
    disk = WatchedDisk()
    async with (
        running_broker(tmp_path, disk) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t", 1, durability="os", flush_interval_ms=86_400_000)
        await client.produce("t", 0, b"first")  # allocates, which is synced
        disk.any_sync.clear()
        disk.gate.clear()
        try:
            assert await client.produce("t", 0, b"second") == 1
            assert await client.values("t") == [b"first", b"second"]
        finally:
            disk.gate.set()
        await client.call(
            api.ALTER_TOPIC, messages.AlterTopicRequest("t", None, {"flush.interval.ms": 1})
        )
        log = broker.topics.partition("t", 0).log
        disk.any_sync.clear()
        await client.produce("t", 0, b"third")

        async def synced() -> bool:
            await asyncio.to_thread(disk.any_sync.wait)
            disk.any_sync.clear()
            return log.synced_end == 3

        await holds(synced)


def drop_from_memory(folder: Path) -> None:
    for path in folder.glob("*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


@pytest.mark.skipif(sys.platform != "linux", reason="needs posix_fadvise and RWF_NOWAIT")
async def test_cold_data_is_warmed_by_a_reader_and_answered(tmp_path: Path):
    async with (
        running_broker(tmp_path) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t", 1, segment_bytes=2 * MIB)
        for number in range(10):
            await client.produce("t", 0, bytes([number]) * MIB)
    disk = WatchedDisk()
    async with (
        running_broker(tmp_path, disk) as broker,
        await RawClient.open(broker.port) as client,
        await RawClient.open(broker.port) as other,
    ):
        drop_from_memory(tmp_path / "topic-t" / "partition-0")
        disk.reads.clear()
        assert [len(value) for value in await client.values("t")] == [MIB] * 10
        log_reads = {thread for name, thread in disk.reads if name.endswith(".log")}
        assert log_reads, "segments that are not open are never taken for warm"
        assert all(thread.startswith("seglog-reader") for thread in log_reads)
        disk.reads.clear()
        assert len(await other.values("t")) == 10
        assert not [name for name, _ in disk.reads if name.endswith(".log")], "now it is warm"


async def test_a_cold_fetch_behind_the_end_of_the_data_waits_like_any_other(tmp_path: Path):
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await client.create("t", 1, segment_bytes=1000)
        for _ in range(5):
            await client.produce("t", 0, bytes(900))
    async with (
        running_broker(tmp_path) as broker,
        await RawClient.open(broker.port) as client,
        await RawClient.open(broker.port) as other,
    ):
        client.send(
            api.FETCH,
            fetch_request(("t", 0, 0), ("t", 0, 5), max_wait_ms=60_000, min_bytes=1500),
        )
        await other.produce("t", 0, bytes(2000))
        first, second = (await client.answer(api.FETCH)).results
        assert [len(value) for value in values_of(first)] == [900]
        assert [len(value) for value in values_of(second)] == [2000]


# --- offsets -------------------------------------------------------------------------------------


async def test_offsets_are_found_by_time(client: RawClient):
    await client.create("t", 1, segment_bytes=500)
    for number in range(20):
        first = NOON_US + 10 * number
        await client.produce("t", 0, b"a", b"b", timestamps=[first, first + 5])
    assert (await offset_at(client, "t", EARLIEST)).offset == 0
    assert (await offset_at(client, "t", LATEST)).offset == 40
    for wanted, offset, found in (
        (0, 0, NOON_US),
        (NOON_US, 0, NOON_US),
        (NOON_US + 1, 1, NOON_US + 5),
        (NOON_US + 5, 1, NOON_US + 5),
        (NOON_US + 101, 21, NOON_US + 105),
        (NOON_US + 195, 39, NOON_US + 195),
    ):
        result = await offset_at(client, "t", wanted)
        assert (result.offset, result.timestamp_us) == (offset, found), wanted
    for wanted in (NOON_US + 196, 2**63, 2**64 - 1):
        result = await offset_at(client, "t", wanted)
        assert (result.error, result.offset, result.timestamp_us) == (None, -1, -1)
    assert (await offset_at(client, "t", -(2**63))).offset == 0
    assert isinstance((await offset_at(client, "x", LATEST)).error.to_exception(), UnknownTopic)


async def delete_records(client: RawClient, topic: str, before: int) -> int:
    asked = messages.DeleteRecordsPartition(topic, 0, before)
    response = await client.call(api.DELETE_RECORDS, messages.DeleteRecordsRequest([asked]))
    (result,) = response.results
    if result.error is not None:
        raise result.error.to_exception()
    log_start: int = result.log_start
    return log_start


async def test_records_are_deleted_up_to_an_offset(client: RawClient):
    await client.create("t", 1, segment_bytes=300)
    for number in range(10):
        await client.produce("t", 0, bytes([number]) * 100)
    assert await delete_records(client, "t", 4) == 4
    assert await delete_records(client, "t", 2) == 4, "never back"
    assert (await offset_at(client, "t", EARLIEST)).offset == 4
    assert (await offset_at(client, "t", 0)).offset == 4
    with pytest.raises(OffsetOutOfRange) as raised:
        await client.fetch("t", 0, 3)
    assert (raised.value.log_start, raised.value.durable_end) == (4, 10)
    assert [value[:1] for value in await client.values("t", 0, 4)] == [
        bytes([number]) for number in range(4, 10)
    ]
    described = (await describe(client, "t")).partitions[0]
    assert described.log_start == 4
    assert described.segments[0].start_offset <= 4 < described.segments[0].end_offset
    with pytest.raises(OffsetOutOfRange):
        await delete_records(client, "t", 11)
    assert await delete_records(client, "t", -1) == 10
    assert await client.values("t", 0, 10) == []
    assert await client.produce("t", 0, b"x") == 10


# --- stopping and starting -----------------------------------------------------------------------


async def test_a_stop_finishes_what_was_accepted(tmp_path: Path):
    disk = WatchedDisk()
    async with (
        running_broker(tmp_path, disk) as broker,
        await RawClient.open(broker.port) as producer,
        await RawClient.open(broker.port) as waiting,
    ):
        await producer.create("t")
        waiting.send(api.FETCH, fetch_request(("t", 0, 0), max_wait_ms=60_000, min_bytes=MIB))
        disk.syncing.clear()
        disk.gate.clear()
        try:
            producer.send_produce("t", 0, b"accepted")
            await asyncio.to_thread(disk.syncing.wait)
            stopping = asyncio.create_task(broker.stop())
            (nothing,) = (await waiting.answer(api.FETCH)).results
            assert (nothing.error, len(nothing.batches)) == (None, 0), "no poll outlives the broker"
        finally:
            disk.gate.set()
        assert (await producer.answer(api.PRODUCE)).results[0].base_offset == 0
        await producer.closed()
        await waiting.closed()
        await stopping
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        assert await client.values("t") == [b"accepted"]


async def test_a_client_that_takes_no_answers_cannot_keep_a_broker_from_stopping(tmp_path: Path):
    async with (
        running_broker(tmp_path, shutdown_timeout_ms=100) as broker,
        await RawClient.open(broker.port) as client,
        await RawClient.open(broker.port) as slow,
    ):
        await client.create("t")
        for _ in range(8):
            await client.produce("t", 0, bytes(MIB))
        for _ in range(20):
            slow.send(api.FETCH, fetch_request(("t", 0, 0)))
        await client.call(api.METADATA, METADATA)
        await broker.stop()
        await slow.closed()
        assert not broker.listener.connections


async def test_a_stop_may_be_asked_for_twice_and_at_once(broker: Broker):
    await asyncio.gather(broker.stop(), broker.stop())
    await broker.stop()
    with pytest.raises(OSError):
        await RawClient.open(broker.port)


async def test_a_restart_keeps_everything(tmp_path: Path):
    me: dict[str, Any] = {"producer_id": 0, "producer_epoch": 0}
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        cluster_id = broker.cluster_id
        created = await client.create("t", 2, segment_bytes=500, durability="os")
        await client.create("gone")
        await delete(client, "gone")
        assert (
            await client.call(api.INIT_PRODUCER, messages.InitProducerRequest())
        ).producer_id == 0
        for number in range(10):
            await client.produce("t", 0, bytes([number]) * 100)
        await client.produce("t", 1, b"once", **me)
        await delete_records(client, "t", 5)
        before = await describe(client, "t")
    for _ in range(2):
        async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
            assert broker.cluster_id == cluster_id
            assert await topic_names(client) == ["t"]
            after = await describe(client, "t")
            assert (after.id, after.config) == (created.id, before.config)
            for old, new in zip(before.partitions, after.partitions, strict=True):
                assert (new.log_start, new.durable_end, new.epoch) == (
                    old.log_start,
                    old.durable_end,
                    old.epoch,
                )
            assert [value[0] for value in await client.values("t", 0, 5)] == [5, 6, 7, 8, 9]
            assert await client.produce("t", 1, b"once", **me) == 0, "known across the restart"
            assert await client.values("t", 1) == [b"once"]
            with pytest.raises(OffsetOutOfRange):
                await client.fetch("t", 0, 4)
            init = await client.call(api.INIT_PRODUCER, messages.InitProducerRequest())
            assert init.producer_id > 0, "an id is given out once"


async def test_a_broker_that_is_killed_keeps_what_was_acked(tmp_path: Path):
    copies = tmp_path / "copies"
    async with running_broker(tmp_path / "data") as broker:
        async with await RawClient.open(broker.port) as client:
            await client.create("t", 3, segment_bytes=1000)
            for number in range(30):
                await client.produce("t", number % 3, str(number).encode() * 50)
        shutil.copytree(tmp_path / "data", copies)  # as a kill at this moment leaves it
    async with running_broker(copies) as broker, await RawClient.open(broker.port) as client:
        for partition in range(3):
            assert await client.values("t", partition) == [
                str(number).encode() * 50 for number in range(partition, 30, 3)
            ]


async def test_a_reader_is_told_that_the_log_was_cut_below_it(tmp_path: Path):
    cut = tmp_path / "cut"
    async with (
        running_broker(tmp_path / "data") as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t", 1, durability="os", flush_interval_ms=86_400_000)
        for number in range(5):
            await client.produce("t", 0, bytes([number]) * 100)
        result = await client.fetch("t", 0)
        epoch = unpack_header(result.batches).log_epoch
        lengths = [len(batch) for batch in split_batches(result.batches)]
        shutil.copytree(tmp_path / "data", cut)
    # As a power cut may leave it: what was not synced is zeros.
    with (cut / "topic-t" / "partition-0" / "00000000.log").open("r+b") as log:
        log.seek(sum(lengths[:3]))
        log.write(bytes(sum(lengths[3:])))
    async with running_broker(cut) as broker, await RawClient.open(broker.port) as client:
        with pytest.raises(LogTruncated) as raised:
            await client.fetch("t", 0, 5, epoch=epoch)
        assert raised.value.cut_offset == 3
        assert await client.produce("t", 0, b"another record 3") == 3
        result = await client.fetch("t", 0, 3)
        assert unpack_header(result.batches).log_epoch > epoch
        with pytest.raises(LogTruncated):
            await client.fetch("t", 0, 4, epoch=epoch)
        for offset in (2, 3):  # who has not read so far misses nothing
            await client.fetch("t", 0, offset, epoch=epoch)


# --- housekeeping --------------------------------------------------------------------------------


async def test_retention_by_size_and_by_age(tmp_path: Path):
    async with (
        running_broker(tmp_path, housekeeping_interval_ms=5) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("by-size", 1, segment_bytes=500, retention_bytes=2000)
        await client.create("by-age", 1, segment_bytes=500, retention_ms=1, segment_ms=1)
        for number in range(20):
            await client.produce("by-size", 0, bytes([number]) * 300)
            await client.produce("by-age", 0, bytes([number]) * 300)

        async def size_is_kept() -> bool:
            (described,) = (await describe(client, "by-size")).partitions
            return described.size_bytes <= 2500

        async def all_is_gone() -> bool:
            return bool((await offset_at(client, "by-age", EARLIEST)).offset == 20)

        await holds(size_is_kept)
        await holds(all_is_gone)
        start = (await offset_at(client, "by-size", EARLIEST)).offset
        assert 10 < start < 20
        assert [value[0] for value in await client.values("by-size", 0, start)] == list(
            range(start, 20)
        )
        with pytest.raises(OffsetOutOfRange):
            await client.fetch("by-age", 0, 19)
        assert await client.produce("by-age", 0, b"x") == 20


async def test_compaction_keeps_the_last_record_of_each_key(tmp_path: Path):
    async with (
        running_broker(tmp_path, compaction_interval_ms=5) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t", 1, segment_bytes=1000, cleanup_policy="compact")
        for number in range(50):
            await client.produce("t", 0, b"%d" % number, keys=[b"key %d" % (number % 3)])

        async def is_compacted() -> bool:
            records = records_of(await client.fetch("t", 0))
            (described,) = (await describe(client, "t")).partitions
            active = described.segments[-1].start_offset
            below = [record for record in records if record.offset < active]
            return len(below) <= 3

        await holds(is_compacted)
        records: list[Any] = []
        offset = 0
        while offset < 50:
            result = await client.fetch("t", 0, offset)
            records += records_of(result)
            offset = next_offset(result)
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets)), "in order, with gaps where records went"
        assert all(record.value == b"%d" % record.offset for record in records)
        last = {record.key: record.value for record in records}
        assert last == {b"key 0": b"48", b"key 1": b"49", b"key 2": b"47"}


async def test_traffic_goes_on_beside_housekeeping(tmp_path: Path):
    tiny: dict[str, Any] = {
        "housekeeping_interval_ms": 1,
        "checkpoint_interval_ms": 1,
        "compaction_interval_ms": 1,
    }
    async with (
        running_broker(tmp_path, **tiny) as broker,
        await RawClient.open(broker.port) as client,
        await RawClient.open(broker.port) as reader,
    ):
        await client.create(
            "t", 1, segment_bytes=2 * KIB, retention_bytes=20 * KIB,
            cleanup_policy="compact,delete", delete_retention_ms=0,
        )  # fmt: skip
        offset, seen = 0, []
        for number in range(200):
            assert await client.produce("t", 0, bytes(100), keys=[b"%d" % number]) == number
            try:
                result = await reader.fetch("t", 0, offset, max_wait_ms=1000, min_bytes=1)
            except OffsetOutOfRange as gone:
                offset = gone.log_start
                continue
            seen += [record.offset for record in records_of(result) if record.offset >= offset]
            offset = next_offset(result)
        assert seen == sorted(set(seen))
        assert seen[-1] == 199
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        assert (await offset_at(client, "t", LATEST)).offset == 200


async def test_a_producer_that_asks_for_the_impossible_gets_an_answer_for_everything(
    client: RawClient,
):
    """Each request is answered once, whatever it is: none is lost, none is answered twice."""
    await client.create("t")
    sent = set()
    for number in range(100):
        sent.add(client.send_produce("t", number % 2, b"x"))
        sent.add(client.send(api.FETCH, fetch_request(("t", number % 2, 0))))
        sent.add(client.send(api.CREATE_TOPIC, messages.CreateTopicRequest("t")))
        sent.add(client.send(api.METADATA, METADATA))
    answered = [(await client.receive()).correlation_id for _ in sent]
    assert sorted(answered) == sorted(sent)


async def test_errors_say_what_to_do_next(client: RawClient):
    with pytest.raises(UnknownTopic, match=r"no topic missing\. Create it, or check the spelling"):
        await describe(client, "missing")
