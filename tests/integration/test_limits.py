"""Every limit of a broker from both sides: at the limit all is well; beyond it comes a named error,
and the connection lives on unless its stream cannot be read any more.
"""

import asyncio
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from seglog.protocol import api, messages
from seglog.protocol.batch import encode_batch
from seglog.protocol.constants import KIB, MIB
from seglog.protocol.errors import (
    BadRequest,
    BadTopicName,
    BatchTooLarge,
    LimitExceeded,
    SeglogError,
    TooManyConnections,
    TopicExists,
    UnknownTopic,
)
from seglog.server.app import Broker
from seglog.server.connection import NO_REQUEST
from seglog.server.settings_table import settings_table
from seglog.server.storage.filesystem import File, FileSystem

from tests.brokers import (
    NOON_US,
    RawClient,
    fetch_request,
    produce_request,
    running_broker,
    values_of,
)

METADATA = messages.MetadataRequest()


def test_every_limit_is_a_setting():
    limits = {
        "max.frame.bytes", "max.array.length", "max.fetch.bytes", "max.connections",
        "max.connections.per.address", "max.in.flight.requests", "max.in.flight.bytes",
        "max.queued.bytes", "idle.timeout.ms", "slow.reader.timeout.ms", "max.topics",
        "max.partitions", "topic.max.batch.bytes",
    }  # fmt: skip
    assert limits <= settings_table().keys()


async def lives_on(client: RawClient) -> None:
    """The connection answers as if nothing had happened."""
    assert isinstance(await client.call(api.METADATA, METADATA), messages.MetadataResponse)


async def refusal(client: RawClient) -> SeglogError:
    """What the broker says before it closes a connection that it cannot go on with."""
    answer = await client.receive()
    assert answer.correlation_id == NO_REQUEST
    assert answer.error is not None
    await client.closed()
    return answer.error


# --- one request ---------------------------------------------------------------------------------


def hello_of(length: int) -> bytes:
    """A hello of exactly `length` bytes: what a newer client adds at the end is passed over."""
    for padding in range(length, 0, -1):
        body = ["raw", "", bytes(padding)]
        content = msgspec.msgpack.encode([api.HELLO.key, 0, 1, body])
        if len(content) == length:
            return content
    raise AssertionError(f"no hello has {length} bytes")


async def test_max_frame_bytes(tmp_path: Path):
    async with running_broker(tmp_path, max_frame_bytes=2 * KIB) as broker:
        async with await RawClient.open(broker.port, hello=False) as client:
            client.write_frame(hello_of(2 * KIB))
            assert (await client.receive()).error is None

            client.write_frame(hello_of(2 * KIB + 1))
            error = await refusal(client)
            assert isinstance(error, LimitExceeded)
            assert "max.frame.bytes allows 2048" in error.what
        async with await RawClient.open(broker.port) as other:
            await lives_on(other)


async def test_a_client_in_the_middle_of_a_huge_frame_still_reads_why_it_is_refused(tmp_path: Path):
    async with (
        running_broker(tmp_path) as broker,
        await RawClient.open(broker.port) as client,
    ):
        client.write(b"\xff\xff\xff\xff" + bytes(20 * MIB))
        await client.writer.drain()
        assert isinstance(await refusal(client), LimitExceeded)


async def test_a_frame_of_no_bytes_is_refused(tmp_path: Path):
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        client.write(bytes(4))
        assert isinstance(await refusal(client), BadRequest)


PLACE = messages.FetchPartition("t", 0, 0, 1000)
BATCH = produce_request("t", 0, b"x").batches[0]


@pytest.mark.parametrize(
    ("which", "request_of"),
    [
        (api.METADATA, lambda count: messages.MetadataRequest(["t"] * count)),
        (api.PRODUCE, lambda count: messages.ProduceRequest([BATCH] * count)),
        (api.FETCH, lambda count: messages.FetchRequest(0, 0, 1000, [PLACE] * count)),
        (
            api.LIST_OFFSETS,
            lambda count: messages.ListOffsetsRequest(
                [messages.ListOffsetsPartition("t", 0, -1)] * count
            ),
        ),
        (
            api.DELETE_RECORDS,
            lambda count: messages.DeleteRecordsRequest(
                [messages.DeleteRecordsPartition("t", 0, 0)] * count
            ),
        ),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
async def test_max_array_length(tmp_path: Path, which, request_of):
    async with (
        running_broker(tmp_path, max_array_length=3) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t")
        await client.call(which, request_of(3))
        with pytest.raises(LimitExceeded, match=r"4 entries, max\.array\.length allows 3"):
            await client.call(which, request_of(4))
        await lives_on(client)


async def test_an_array_beyond_what_any_broker_takes_is_refused_before_it_is_read(tmp_path: Path):
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        # It claims four thousand million partitions, and brings none.
        client.write_frame(b"\x94\x08\x00\x05\x94\x00\x00\x00\xdd\xff\xff\xff\xff")
        answer = await client.receive()
        assert isinstance(answer.error, BadRequest)
        await lives_on(client)


async def test_max_fetch_bytes_bounds_an_answer_but_never_hides_a_batch(tmp_path: Path):
    async with (
        running_broker(tmp_path, max_fetch_bytes=2 * KIB) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t", 2)
        for _ in range(10):
            await client.produce("t", 0, bytes(500))
        found = await client.fetch("t", 0)
        assert KIB < len(found.batches) <= 2 * KIB
        assert len(await client.values("t")) == 10, "the rest comes with the next fetch"

        await client.produce("t", 1, bytes(5000))
        assert values_of(await client.fetch("t", 1)) == [bytes(5000)]
        both = await client.call(api.FETCH, fetch_request(("t", 0, 0), ("t", 1, 0)))
        assert not both.results[1].batches, "only the first of an answer may pass the limit"


async def test_max_fetch_wait_and_client_name_length(tmp_path: Path):
    async with (
        running_broker(tmp_path) as broker,
        await RawClient.open(broker.port, hello=False) as client,
    ):
        await client.call(api.HELLO, messages.HelloRequest("n" * 200))
        with pytest.raises(BadRequest, match="`client_name`"):
            await client.call(api.HELLO, messages.HelloRequest("n" * 201))
        await client.create("t")
        await client.produce("t", 0, b"x")
        await client.fetch("t", 0, max_wait_ms=60_000, min_bytes=1)
        with pytest.raises(BadRequest, match="`max_wait_ms`"):
            await client.fetch("t", 0, max_wait_ms=60_001)
        await lives_on(client)


def batch_of(length: int) -> memoryview:
    """A batch of exactly `length` bytes."""
    overhead = len(encode_batch([b""], timestamps=NOON_US))
    batch = encode_batch([bytes(length - overhead)], timestamps=NOON_US)
    assert len(batch) == length
    return memoryview(batch)


async def test_max_batch_bytes(tmp_path: Path):
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        await client.create("t", 1, max_batch_bytes=1000)
        request = messages.ProduceRequest(
            [messages.ProduceBatch("t", 0, batch_of(length)) for length in (1000, 1001, 999)]
        )
        first, second, third = (await client.call(api.PRODUCE, request)).results
        assert (first.error, first.base_offset) == (None, 0)
        assert isinstance(second.error.to_exception(), BatchTooLarge)
        assert "1001 bytes, 1000 are allowed" in second.error.message
        assert (third.error, third.base_offset) == (None, 1)
        await lives_on(client)


# --- connections ---------------------------------------------------------------------------------


async def open_until_taken(port: int) -> RawClient:
    """A connection once there is room: the broker may not have noticed yet that one has gone."""
    while True:
        client = await RawClient.open(port, hello=False)
        client.send(api.HELLO, messages.HelloRequest("raw"))
        answer = await client.receive()
        if answer.error is None:
            return client
        assert isinstance(answer.error, TooManyConnections)
        client.close()


async def test_max_connections(tmp_path: Path):
    async with running_broker(tmp_path, max_connections=3) as broker:
        clients = [await RawClient.open(broker.port) for _ in range(3)]
        async with await RawClient.open(broker.port, hello=False) as fourth:
            fourth.send(api.HELLO, messages.HelloRequest("raw"))
            error = await refusal(fourth)
            assert isinstance(error, TooManyConnections)
            assert "max.connections allows 3" in error.what
            assert error.retriable
        for client in clients:
            await lives_on(client)
        clients.pop().close()
        clients.append(await open_until_taken(broker.port))
        for client in clients:
            await lives_on(client)
            client.close()


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is up on Linux only")
async def test_max_connections_per_address(tmp_path: Path):
    async with running_broker(tmp_path, max_connections_per_address=2) as broker:
        here = [await RawClient.open(broker.port) for _ in range(2)]
        async with await RawClient.open(broker.port, hello=False) as third:
            error = await refusal(third)
            assert isinstance(error, TooManyConnections)
            assert "max.connections.per.address allows 2" in error.what
        elsewhere = await RawClient.open(broker.port, local_addr=("127.0.0.2", 0))
        for client in (*here, elsewhere):
            await lives_on(client)
            client.close()


async def test_a_flood_of_connections_that_are_refused_leaves_nothing_behind(tmp_path: Path):
    async with (
        running_broker(tmp_path, max_connections=1) as broker,
        await RawClient.open(broker.port) as taken,
    ):
        flood = [await RawClient.open(broker.port, hello=False) for _ in range(250)]
        for client in flood:
            assert isinstance(await refusal(client), TooManyConnections)
            client.close()
        await lives_on(taken)
        assert len(broker.listener.connections) == 1


# --- requests that wait --------------------------------------------------------------------------


def waiting_fetch(topic: str) -> messages.FetchRequest:
    return fetch_request((topic, 0, 0), max_wait_ms=60_000, min_bytes=1)


@pytest.fixture
async def other(broker: Broker) -> AsyncIterator[RawClient]:
    """A second client, with two empty topics."""
    async with await RawClient.open(broker.port) as client:
        await client.create("a")
        await client.create("b")
        yield client


@pytest.fixture
def settings(request) -> dict[str, int]:
    return dict(getattr(request, "param", {}))


@pytest.fixture
async def broker(tmp_path: Path, settings) -> AsyncIterator[Broker]:
    async with running_broker(tmp_path, **settings) as running:
        yield running


@pytest.mark.parametrize("settings", [{"max_in_flight_requests": 3}], indirect=True)
async def test_max_in_flight_requests(broker: Broker, other: RawClient):
    async with await RawClient.open(broker.port) as client:
        first = client.send(api.FETCH, waiting_fetch("a"))
        within = client.send(api.METADATA, METADATA)
        assert (await client.receive()).correlation_id == within, "at the limit nothing is held"

        second = client.send(api.FETCH, waiting_fetch("b"))
        third = client.send(api.FETCH, waiting_fetch("b"))
        beyond = client.send(api.METADATA, METADATA)
        await lives_on(other)
        await other.produce("a", 0, b"x")
        order = [(await client.receive()).correlation_id for _ in range(2)]
        assert order == [first, beyond], "the one beyond the limit is read when another is answered"
        await other.produce("b", 0, b"x")
        assert {(await client.receive()).correlation_id for _ in range(2)} == {second, third}
        await lives_on(client)


@pytest.mark.parametrize("settings", [{"max_in_flight_requests": 2}], indirect=True)
async def test_any_number_of_requests_behind_the_limit_is_answered(
    broker: Broker, other: RawClient
):
    async with await RawClient.open(broker.port) as client:
        for _ in range(2):
            client.send(api.FETCH, waiting_fetch("a"))
        for _ in range(5000):
            client.write_frame(b"\xc0")  # refused at once, which lets the next one in
        await client.writer.drain()
        await other.produce("a", 0, b"x")
        answers = [await client.receive() for _ in range(5002)]
        assert sum(isinstance(answer.error, BadRequest) for answer in answers) == 5000
        await lives_on(client)


@pytest.mark.parametrize("settings", [{"max_in_flight_bytes": 3 * KIB}], indirect=True)
async def test_max_in_flight_bytes(broker: Broker, other: RawClient):
    places = [("a", 0, 0)] * 150  # about 1.5 kB
    fetch = fetch_request(*places, max_wait_ms=60_000, min_bytes=1)
    assert KIB < len(api.encode_request(api.FETCH, 1, fetch)) < 2 * KIB
    async with await RawClient.open(broker.port) as client:
        first = client.send(api.FETCH, fetch)
        within = client.send(api.METADATA, METADATA)
        assert (await client.receive()).correlation_id == within

        second = client.send(api.FETCH, fetch)
        third = client.send(api.FETCH, fetch)  # the one that passes the limit
        beyond = client.send(api.METADATA, METADATA)
        await other.produce("a", 0, b"x")
        order = [(await client.receive()).correlation_id for _ in range(4)]
        assert set(order) == {first, second, third, beyond}
        assert order.index(beyond) > order.index(first)
        await lives_on(client)


@pytest.mark.parametrize("settings", [{"max_in_flight_bytes": KIB}], indirect=True)
async def test_a_request_larger_than_max_in_flight_bytes_goes_alone(
    broker: Broker, other: RawClient
):
    async with await RawClient.open(broker.port) as client:
        for number in range(10):
            client.send_produce("a", 0, bytes(5 * KIB) + bytes([number]))
        results = [(await client.answer(api.PRODUCE)).results[0] for _ in range(10)]
        assert [result.base_offset for result in results] == list(range(10))


class GatedFile(File):
    """A file whose sync waits until the test opens the gate."""

    gate: threading.Event

    def sync(self) -> None:
        self.gate.wait()
        super().sync()


class GatedDisk(FileSystem):
    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def create(self, path: str) -> File:
        return self._gated(super().create(path))

    def open(self, path: str, *, write: bool = False) -> File:
        return self._gated(super().open(path, write=write))

    def _gated(self, plain: File) -> File:
        file = GatedFile(plain.path, plain.descriptor)
        plain.descriptor = -1  # it is the other's now
        file.gate = self.gate
        return file


async def test_max_queued_bytes(tmp_path: Path):
    disk = GatedDisk()
    async with (
        running_broker(tmp_path, disk, max_queued_bytes=10 * KIB) as broker,
        await RawClient.open(broker.port) as client,
        await RawClient.open(broker.port) as other,
    ):
        await client.create("t")
        disk.gate.clear()
        try:
            small = client.send_produce("t", 0, bytes(100))
            within = client.send(api.METADATA, METADATA)
            assert (await client.receive()).correlation_id == within

            large = client.send_produce("t", 0, bytes(12 * KIB))
            beyond = client.send(api.METADATA, METADATA)
            await lives_on(other)  # who writes nothing waits for nobody
        finally:
            disk.gate.set()
        order = [(await client.receive()).correlation_id for _ in range(3)]
        assert order == [small, large, beyond]
        await lives_on(client)


async def test_a_small_queue_slows_producers_and_loses_nothing(tmp_path: Path):
    async with (
        running_broker(tmp_path, max_queued_bytes=KIB) as broker,
        await RawClient.open(broker.port) as first,
        await RawClient.open(broker.port) as second,
    ):
        await first.create("t", 2)
        for number in range(100):
            first.send_produce("t", 0, bytes(900) + bytes([number]))
            second.send_produce("t", 1, bytes(900) + bytes([number]))
        for client in (first, second):
            results = [(await client.answer(api.PRODUCE)).results[0] for _ in range(100)]
            assert [result.base_offset for result in results] == list(range(100))
        assert [value[-1:] for value in await first.values("t", 1)] == [
            bytes([number]) for number in range(100)
        ]


# --- connections that do nothing, or take nothing ------------------------------------------------


@pytest.mark.parametrize("settings", [{"idle_timeout_ms": 100}], indirect=True)
async def test_idle_timeout_closes_who_does_nothing_and_nobody_else(broker: Broker):
    async with await RawClient.open(broker.port) as maker:
        await maker.create("a")
    async with await RawClient.open(broker.port) as waiting:
        waiting.send(api.FETCH, waiting_fetch("a"))
        # These come later than the fetch: when they are closed for idleness, it would be too.
        for hello in (True, False):
            async with await RawClient.open(broker.port, hello=hello) as idle:
                await idle.closed()
        async with await RawClient.open(broker.port, hello=False) as halfway:
            halfway.write(b"\x00\x00")
            await halfway.closed()
        async with await RawClient.open(broker.port) as writer:
            await writer.produce("a", 0, b"x")
        (result,) = (await waiting.answer(api.FETCH)).results
        assert values_of(result) == [b"x"]
        await waiting.closed()
    assert broker.metrics.connections_closed == {"idle": 4}


@pytest.mark.parametrize("settings", [{"idle_timeout_ms": 1000}], indirect=True)
async def test_a_broker_that_stood_still_takes_nobody_for_idle(broker: Broker):
    async with await RawClient.open(broker.port) as client:
        time.sleep(1.4)  # noqa: ASYNC251 - the broker's loop is ours: it is stopped
        for _ in range(3):
            await asyncio.sleep(0)  # it looks at its connections, and then reads what came
        await lives_on(client)
    assert broker.metrics.connections_closed == {}


async def choke(client: RawClient, topic: str, fetches: int) -> None:
    """Ask for far more than the sockets hold, and read none of it."""
    for _ in range(fetches):
        client.send(api.FETCH, fetch_request((topic, 0, 0)))
    await client.writer.drain()


async def filled(broker: Broker) -> RawClient:
    """A client, and a topic `large` with 8 MiB in it."""
    client = await RawClient.open(broker.port)
    await client.create("large")
    for _ in range(8):
        await client.produce("large", 0, bytes(MIB))
    return client


@pytest.mark.parametrize("settings", [{"slow_reader_timeout_ms": 300}], indirect=True)
async def test_slow_reader_timeout_closes_who_takes_no_answers(broker: Broker):
    async with await filled(broker) as client, await RawClient.open(broker.port) as slow:
        await choke(slow, "large", 100)
        # Nothing is read from it any more, until it is closed: then writing fails.
        with pytest.raises(ConnectionError):  # noqa: PT012 - one of many writes meets it
            while True:
                slow.send(api.FETCH, fetch_request(("large", 0, 0)))
                await slow.writer.drain()
        await lives_on(client)
    assert broker.metrics.connections_closed == {"slow_reader": 1}


@pytest.mark.parametrize("settings", [{"slow_reader_timeout_ms": 1000}], indirect=True)
async def test_a_broker_that_stood_still_takes_nobody_for_slow(broker: Broker):
    async with await filled(broker), await RawClient.open(broker.port) as reader:
        await choke(reader, "large", 10)
        await until_held_back(broker)
        time.sleep(1.4)  # noqa: ASYNC251 - the broker's loop is ours: it is stopped
        for _ in range(3):
            await asyncio.sleep(0)  # it looks at its connections before anything is read
        for _ in range(10):
            (result,) = (await reader.answer(api.FETCH)).results
            assert len(result.batches) > 8 * MIB
    assert broker.metrics.connections_closed == {}


async def until_held_back(broker: Broker) -> None:
    """Until an answer waits in the broker for its reader."""
    while not any(connection.unsent_bytes for connection in broker.listener.connections):  # noqa: ASYNC110 - nobody tells it
        await asyncio.sleep(0)


async def test_a_slow_reader_is_bounded_and_slows_nobody(broker: Broker):
    async with await filled(broker) as client, await RawClient.open(broker.port) as slow:
        await client.create("t")
        await choke(slow, "large", 100)
        for number in range(50):
            await client.produce("t", 0, str(number).encode())
            assert len((await client.fetch("t", 0, number)).batches) > 0
            held = max(connection.unsent_bytes for connection in broker.listener.connections)
            assert held <= 4 * MIB + 9 * MIB, "the high-water mark, and one answer beyond it"
        assert held > 0, "it was slow"
        for _ in range(100):  # and when it reads again, all is there
            (result,) = (await slow.answer(api.FETCH)).results
            assert len(result.batches) > 8 * MIB


async def test_fetches_that_wait_do_not_pile_up_answers_for_a_slow_reader(broker: Broker):
    async with await filled(broker) as client, await RawClient.open(broker.port) as slow:
        # Each waits for one byte more than there is; then all of them are due at once.
        there = len((await client.fetch("large", 0)).batches)
        for _ in range(100):
            slow.send(
                api.FETCH,
                fetch_request(("large", 0, 0), max_wait_ms=60_000, min_bytes=there + 1),
            )
        await client.create("behind")
        slow.send(api.FETCH, fetch_request(("behind", 0, 0)))
        await slow.receive()  # it was sent last: the others wait now
        await client.produce("large", 0, b"x")
        await lives_on(client)
        held = max(connection.unsent_bytes for connection in broker.listener.connections)
        assert held <= 4 * MIB + 9 * MIB
        for _ in range(100):
            (result,) = (await slow.answer(api.FETCH)).results
            assert len(result.batches) > there


@pytest.mark.parametrize("settings", [{"slow_reader_timeout_ms": 1000}], indirect=True)
async def test_a_reader_that_is_slow_but_goes_on_is_not_closed(broker: Broker):
    async with await filled(broker) as client:
        await client.create("clock")
        pipe = socket.socket()
        pipe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB)
        pipe.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(pipe, ("127.0.0.1", broker.port))
        with pipe:
            requests: list[tuple[api.Api, messages.Message]] = [
                (api.HELLO, messages.HelloRequest("slow"))
            ]
            requests += [(api.FETCH, fetch_request(("large", 0, 0)))] * 3
            taken = 0
            for number, (which, request) in enumerate(requests):
                content = api.encode_request(which, number, request)
                await loop.sock_sendall(pipe, len(content).to_bytes(4, "big") + content)
                if not number:
                    await loop.sock_recv(pipe, 64 * KIB)
            while taken < 3 * 8 * MIB:
                part = await loop.sock_recv(pipe, 512 * KIB)
                assert part, f"closed after {taken} bytes"
                taken += len(part)
                if taken < 12 * MIB:  # a pause, as long as a fetch waits in vain
                    await client.fetch("clock", 0, max_wait_ms=20, min_bytes=1)


# --- topics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"max_topics": 2, "auto_create_topics": True}], indirect=True)
async def test_max_topics(broker: Broker):
    async with await RawClient.open(broker.port) as client:
        await client.create("a")
        await client.create("b")
        with pytest.raises(LimitExceeded, match=r"max\.topics allows 2"):
            await client.create("c")
        with pytest.raises(TopicExists):
            await client.create("a")
        metadata = await client.call(api.METADATA, messages.MetadataRequest(["c", "b"], True))
        assert [topic.error and topic.error.code for topic in metadata.topics] == [
            LimitExceeded.code,
            None,
        ]
        await client.call(api.DELETE_TOPIC, messages.DeleteTopicRequest("a"))
        await client.create("c")


@pytest.mark.parametrize(
    "settings", [{"max_partitions": 5, "default_partitions": 2}], indirect=True
)
async def test_max_partitions(broker: Broker):
    async with await RawClient.open(broker.port) as client:
        await client.create("a", 3)
        with pytest.raises(LimitExceeded, match=r"max\.partitions allows 5, 3 are in use"):
            await client.create("b", 3)
        assert (await client.create("b")).partitions == 2
        for name, count in (("a", 4), ("b", 3)):
            with pytest.raises(LimitExceeded, match=r"max\.partitions allows 5, 5 are in use"):
                await client.call(api.ALTER_TOPIC, messages.AlterTopicRequest(name, count))
        await client.call(api.DELETE_TOPIC, messages.DeleteTopicRequest("b"))
        await client.call(api.ALTER_TOPIC, messages.AlterTopicRequest("a", 5))


async def test_partitions_of_one_topic(broker: Broker):
    async with await RawClient.open(broker.port) as client:
        for count in (0, 10_001):
            with pytest.raises(BadRequest, match="`partitions`"):
                await client.create("t", count)
        with pytest.raises(BadRequest, match=r"`batches\[0\]\.partition`"):
            await client.produce("t", 10_000, b"x")
        await lives_on(client)


@pytest.mark.parametrize("name", ["a", "Z", "0", "_x", "a.b_c-D9", "x..y", "t" * 200])
async def test_a_name_within_length_and_alphabet_is_taken(broker: Broker, name):
    async with await RawClient.open(broker.port) as client:
        await client.create(name)
        await client.produce(name, 0, b"x")
        assert await client.values(name) == [b"x"]


@pytest.mark.parametrize(
    "name",
    [
        "", "t" * 201, ".", "..", "../x", "/x", "a/b", "a\\b", "a b", "a\0b", "a\n", "-a", ".a",
        "ä", "a:b", "%2e%2e", "\u202ea", "Ａ",
    ],
)  # fmt: skip
async def test_a_name_beyond_length_or_alphabet_is_refused_everywhere(
    broker: Broker, tmp_path: Path, name
):
    before = sorted(tmp_path.parent.rglob("*"))
    async with await RawClient.open(broker.port) as client:
        for which, request in [
            (api.CREATE_TOPIC, messages.CreateTopicRequest(name)),
            (api.ALTER_TOPIC, messages.AlterTopicRequest(name)),
            (api.DELETE_TOPIC, messages.DeleteTopicRequest(name)),
        ]:
            with pytest.raises((BadTopicName, BadRequest)):
                await client.call(which, request)
        with pytest.raises((UnknownTopic, BadRequest)):
            await client.call(api.DESCRIBE_TOPIC, messages.DescribeTopicRequest(name))
        with pytest.raises((BadTopicName, BadRequest)):
            await client.produce(name, 0, b"x")
        with pytest.raises((BadTopicName, BadRequest)):
            await client.fetch(name, 0)
        await lives_on(client)
    assert sorted(tmp_path.parent.rglob("*")) == before


async def test_a_topic_takes_no_more_settings_than_a_request_may_carry(broker: Broker):
    async with await RawClient.open(broker.port) as client:
        with pytest.raises(BadRequest, match="`config`"):
            await client.create("t", 1, **{f"setting_{number}": 1 for number in range(101)})
        await lives_on(client)
