"""A range is read whole and in order, ahead of the reader, whatever happens to the broker."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from seglog import SyncAdmin, SyncProducer, TopicPartition, errors
from seglog.client.fetch_socket import FetchSocket
from seglog.client.loop_thread import LoopThread
from seglog.client.metadata import Address
from seglog.client.range_reader import Chunk, Gap, RangeReader, open_cluster
from seglog.protocol import api
from seglog.protocol.batch import decode_batch
from seglog.protocol.header import hop, split_batches
from seglog.protocol.messages import HelloResponse, WireError

from tests.broker_server import BrokerServer
from tests.brokers import RawClient, running_broker
from tests.proxy import PASS, Plan, Proxy, running_proxy

NAME = TopicPartition("t", 0)
COUNT = 2_000
PER_BATCH = 20
OTHER_ANSWERS = 3_000  # hello, metadata, and the envelopes


@pytest.fixture
def broker(tmp_path) -> Iterator[BrokerServer]:
    with BrokerServer(tmp_path / "data") as server:
        with SyncAdmin(server.bootstrap) as admin, SyncProducer(server.bootstrap) as producer:
            admin.create_topic("t", 1)
            for first in range(0, COUNT, PER_BATCH):
                values = [b"%05d" % number * 20 for number in range(first, first + PER_BATCH)]
                producer.send_batch("t", values).result()
        yield server


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    shared = LoopThread.share()
    yield shared
    shared.release()


@pytest.fixture
def cluster(broker, thread):
    opened = open_cluster(thread, broker.bootstrap, patience_s=100)
    yield opened
    thread.call(opened.close())


@pytest.fixture
def reader(thread, cluster) -> RangeReader:
    return RangeReader(thread, cluster, patience_s=100, fetch_bytes=10_000)


def starts(chunk: Chunk | Gap) -> list[int]:
    """The base offsets of a chunk's batches."""
    assert isinstance(chunk, Chunk)
    found, position = [], 0
    while position < len(chunk.batches):
        step = hop(chunk.batches, position)
        found.append(step.base_offset)
        position += step.length
    return found


@pytest.mark.parametrize(
    ("start", "end"), [(0, COUNT), (0, 1), (19, 21), (990, 1_011), (COUNT - 1, COUNT), (5, 5)]
)
def test_a_range_is_all_batches_that_hold_a_part_of_it(reader, start, end):
    found = [base for chunk in reader.read(NAME, start, end) for base in starts(chunk)]
    assert found == [
        base
        for base in range(0, COUNT, PER_BATCH)
        if start < end and base < end and start < base + PER_BATCH
    ]


def test_a_broker_that_is_killed_within_a_range_is_waited_for(reader, broker):
    chunks = reader.read(NAME, 0, COUNT)
    found = starts(next(chunks))
    with broker.away(1):
        found += [base for chunk in chunks for base in starts(chunk)]
    assert found == list(range(0, COUNT, PER_BATCH))


def test_a_broker_that_stays_away_is_given_up_after_a_while(thread, cluster, broker):
    impatient = RangeReader(thread, cluster, patience_s=2)
    assert list(impatient.read(NAME, 0, 1))
    broker.kill()
    with pytest.raises(errors.SeglogError) as failure:
        list(impatient.read(NAME, 0, COUNT))
    assert failure.value.retriable


def test_what_is_deleted_is_told_before_what_follows(reader, broker):
    with SyncAdmin(broker.bootstrap) as admin:
        admin.delete_records("t", 0, 105)
    first, *others = reader.read(NAME, 0, COUNT)
    assert (first.first_offset, first.end_offset) == (0, 105)
    assert isinstance(first.reason, errors.OffsetOutOfRange)
    assert [base for chunk in others for base in starts(chunk)] == list(
        range(100, COUNT, PER_BATCH)
    )
    assert [tuple(each)[:2] for each in reader.read(NAME, 3, 9)] == [(3, 9)]  # all of it


def test_what_was_never_there_is_a_gap_and_no_endless_wait(reader):
    *_, last = reader.read(NAME, COUNT - 1, COUNT + 50)
    assert last == Gap(COUNT, COUNT + 50, None)
    assert [type(each) for each in reader.read(NAME, COUNT + 10, COUNT + 50)] == [Gap]


@pytest.fixture
def proxied(broker, thread):
    """Opens a reader behind a proxy that does with its connections what a plan says."""
    beside = LoopThread("proxy")
    opened = []

    def through(plan=lambda _: PASS, **options: Any) -> tuple[RangeReader, Proxy]:
        running = running_proxy(broker.bootstrap, plan)
        proxy = beside.call(running.__aenter__())
        cluster = open_cluster(thread, proxy.bootstrap, patience_s=30)
        opened.append((running, cluster))
        return RangeReader(thread, cluster, patience_s=30, fetch_bytes=10_000, **options), proxy

    yield through
    for running, cluster in opened:
        thread.call(cluster.close())
        beside.call(running.__aexit__(None, None, None))
    beside.close()


def test_one_answer_is_asked_for_ahead_of_the_caller_and_no_more(proxied):
    reader, proxy = proxied()
    chunks = reader.read(NAME, 0, COUNT)
    held = 0
    for _ in range(6):
        held += len(next(chunks).batches)
    chunks.close()
    assert proxy.connections == 2, "a long range has a socket of its own"
    assert proxy.bytes_to_client < held + 10_000 + OTHER_ANSWERS


def test_nothing_is_asked_for_ahead_of_a_caller_that_takes_his_time(proxied):
    reader, proxy = proxied(ahead_within_s=0)
    chunks = reader.read(NAME, 0, COUNT)
    held = sum(len(next(chunks).batches) for _ in range(6))
    assert proxy.bytes_to_client < held + OTHER_ANSWERS
    rest = [base for chunk in chunks for base in starts(chunk)]
    assert rest[-1] == COUNT - PER_BATCH


def test_a_short_range_needs_no_socket_of_its_own(proxied):
    reader, proxy = proxied()
    assert [starts(chunk) for chunk in reader.read(NAME, 0, 25)] == [[0, 20]]
    assert proxy.connections == 1


@pytest.mark.parametrize("to_client", [0, 3, 60, 4_000, 9_999, 21_000, 35_000])
def test_a_socket_that_is_cut_at_any_byte_loses_and_doubles_nothing(proxied, to_client):
    # The first is the cluster's. Of those after it every other one is cut.
    reader, proxy = proxied(lambda number: Plan(to_client=to_client) if number % 2 else PASS)
    found = [base for chunk in reader.read(NAME, 0, COUNT) for base in starts(chunk)]
    assert found == list(range(0, COUNT, PER_BATCH))
    assert proxy.connections > 2


def test_an_answer_that_comes_in_pieces_is_whole(proxied):
    reader, _ = proxied(lambda number: Plan(piece_bytes=501) if number else PASS)
    found = [base for chunk in reader.read(NAME, 0, COUNT) for base in starts(chunk)]
    assert found == list(range(0, COUNT, PER_BATCH))


async def test_a_broker_without_room_for_a_socket_is_asked_for_it_once(tmp_path, thread):
    def read_all(port: int) -> list[int]:
        cluster = open_cluster(thread, f"127.0.0.1:{port}", patience_s=30)
        reader = RangeReader(thread, cluster, patience_s=30, fetch_bytes=1_000)
        try:
            return [base for chunk in reader.read(NAME, 0, 20) for base in starts(chunk)]
        finally:
            thread.call(cluster.close())

    async with (
        running_broker(tmp_path, max_connections=2) as running,
        await RawClient.open(running.port) as client,
    ):
        await client.create("t", 1)
        for _ in range(20):
            await client.produce("t", 0, bytes(1_000))
        assert await asyncio.to_thread(read_all, running.port) == list(range(20))
        assert running.metrics.connections_refused["max.connections"] == 1


def test_what_is_deleted_under_a_reader_is_told(reader, broker):
    chunks = reader.read(NAME, 0, COUNT)
    found = [next(chunks) for _ in range(4)]
    with SyncAdmin(broker.bootstrap) as admin:
        admin.delete_records("t", 0, 1_005)
    found += chunks
    gaps = [each for each in found if isinstance(each, Gap)]
    assert [(gap.end_offset, type(gap.reason)) for gap in gaps] == [
        (1_005, errors.OffsetOutOfRange)
    ]
    bases = [base for each in found if isinstance(each, Chunk) for base in starts(each)]
    assert bases == [
        base for base in range(0, COUNT, PER_BATCH) if not gaps[0].first_offset <= base < 1_000
    ]


def test_chunks_stay_as_they_are_while_others_come_in_whatever_their_memory(thread, cluster):
    reader = RangeReader(thread, cluster, patience_s=30, fetch_bytes=10_000, allocate=dirty_memory)
    chunks = [chunk for chunk in reader.read(NAME, 0, COUNT) if isinstance(chunk, Chunk)]
    values = [
        value
        for chunk in chunks
        for batch in split_batches(chunk.batches)
        for value in decode_batch(batch).values
    ]
    assert values == [b"%05d" % number * 20 for number in range(COUNT)]


def dirty_memory(size: int) -> bytearray:
    return bytearray(b"\xff") * size


# --- the socket alone ----------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def opened(address: tuple[str, int], broker_id: int = 0, timeout_s: float = 30) -> FetchSocket:
    return FetchSocket.open(
        Address(*address),
        broker_id,
        client_name="test",
        connect_timeout_s=30,
        timeout_s=timeout_s,
    )


def test_a_broker_that_does_not_answer_is_given_up_in_time(listener):
    with pytest.raises(errors.RequestTimeout, match="did not answer in time"):
        opened(listener.getsockname(), timeout_s=0.05)


def test_nobody_at_the_address_is_a_lost_connection(listener):
    address = listener.getsockname()
    listener.close()
    with pytest.raises(errors.ConnectionLost):
        opened(address)


def test_a_broker_that_drops_it_at_once_is_a_lost_connection(listener):
    def drop() -> None:
        dropped, _ = listener.accept()
        dropped.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        dropped.close()

    server = threading.Thread(target=drop)
    server.start()
    with pytest.raises(errors.ConnectionLost):
        opened(listener.getsockname())
    server.join()


def test_another_broker_at_the_address_is_refused(broker):
    host, _, port = broker.bootstrap.rpartition(":")
    opened((host, int(port))).close()
    with pytest.raises(errors.ConnectionLost, match="is broker 0, not 7"):
        opened((host, int(port)), 7)


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


HELLO = HelloResponse("scripted", 0, "c", [], {})
NO_ANSWERS = {
    "nothing": b"",
    "half a length": b"\0\0",
    "no length": bytes(4),
    "too long": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "half an answer": framed(api.encode_response(1, HELLO))[:-1],
    "no msgpack": framed(b"\xc1"),
    "of another shape": framed(b"\x93\x01\xc0\x90"),
    "to another request": framed(api.encode_response(2, HELLO)),
}


@contextmanager
def answering(listener: socket.socket, answer: bytes) -> Iterator[None]:
    """One client's request is answered with these bytes, and nothing after them."""

    def reply() -> None:
        with listener.accept()[0] as client, suppress(ConnectionResetError):
            client.recv(1000)
            client.sendall(answer)
            client.shutdown(socket.SHUT_WR)
            client.recv(1000)  # until it is closed, or reset by one that did not read everything

    server = threading.Thread(target=reply)
    server.start()
    try:
        yield
    finally:
        server.join()


@pytest.mark.parametrize("answer", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_what_is_no_answer_ends_the_socket(listener, answer):
    with answering(listener, answer), pytest.raises(errors.ConnectionLost):
        opened(listener.getsockname())


def test_the_error_of_an_answer_is_raised(listener):
    refusal = WireError.of(errors.LimitExceeded("too many connections"))
    with (
        answering(listener, framed(api.encode_error(-1, refusal))),
        pytest.raises(errors.LimitExceeded, match="too many connections"),
    ):
        opened(listener.getsockname())
