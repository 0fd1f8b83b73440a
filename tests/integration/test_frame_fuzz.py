"""Whatever comes over a socket, the broker answers or closes, keeps its memory, and serves others.

A real broker in a process of its own. Beside every attack a healthy client produces and fetches,
and must notice nothing; at the end the broker's log must be free of tracebacks: it meets a bad
request with an error, never with a defect.
"""

import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seglog.protocol import api, messages
from seglog.protocol.constants import KIB, MIB

from tests.brokers import BrokerMemory, fetch_request, produce_request, values_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads memory from /proc")

#: Far more than any attack here needs, far less than what one of them claims.
MAX_GROWTH_BYTES = 64 * MIB
PATIENCE_S = 20.0


class Client:
    """A blocking connection that can be used well or badly."""

    def __init__(self, port: int, *, hello: bool = True) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        if hello:
            self.call(api.HELLO, messages.HelloRequest("fuzz"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def receive(self) -> api.ResponseEnvelope | None:
        """The next answer; None where the broker has closed."""
        (length,) = struct.unpack(">I", self._exactly(4) or bytes(4))
        content = self._exactly(length) if length else b""
        return api.decode_response_envelope(content) if content else None

    def _exactly(self, count: int) -> bytes:
        data = b""
        try:
            while len(data) < count and (part := self.socket.recv(count - len(data))):
                data += part
        except ConnectionError:
            return b""
        return data if len(data) == count else b""

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except ConnectionError:
            pass  # closed already: the rest need not be sent

    def call(self, which: api.Api, request: messages.Message) -> object:
        self.send(framed(api.encode_request(which, 1, request)))
        answer = self.receive()
        assert answer is not None
        assert answer.error is None, answer.error
        return api.decode_response(which, answer.body)

    def is_closed_by_the_broker(self) -> bool:
        """Say that nothing more comes, and read to the end: it must come."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            return True  # reset
        while self.receive() is not None:
            pass
        return True


def framed(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


class Healthy(threading.Thread):
    """Produces and fetches, one after the other, until it is told to stop."""

    def __init__(self, port: int) -> None:
        super().__init__(name="healthy", daemon=True)
        self._port = port
        self._stop_asked = threading.Event()
        self.rounds = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with Client(self._port) as client:
                client.call(api.CREATE_TOPIC, messages.CreateTopicRequest("undisturbed"))
                while not self._stop_asked.is_set():
                    self._round(client)
                    self.rounds += 1
        except BaseException as failure:
            self.failure = failure

    def _round(self, client: Client) -> None:
        value = str(self.rounds).encode()
        produced = client.call(api.PRODUCE, produce_request("undisturbed", 0, value))
        assert isinstance(produced, messages.ProduceResponse)
        assert produced.results[0].base_offset == self.rounds
        fetched = client.call(api.FETCH, fetch_request(("undisturbed", 0, self.rounds)))
        assert isinstance(fetched, messages.FetchResponse)
        assert values_of(fetched.results[0]) == [value]

    def end(self) -> None:
        self._stop_asked.set()
        self.join(PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        assert self.rounds > 0


class Target:
    """The broker that is attacked."""

    def __init__(self, port: int, memory: BrokerMemory) -> None:
        self.port = port
        self.memory = memory
        self.healthy = Healthy(port)


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Iterator[Target]:
    folder: Path = tmp_path_factory.mktemp("fuzz")
    errors = folder / "stderr"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "seglog", "serve", "--data", str(folder / "data"),
                "--port", "0", "--log-level", "error", "--log-format", "text",
                "--set", "max.topics=50", "--set", "max.partitions=200",
            ],
            stdout=subprocess.PIPE, stderr=stderr,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            line = process.stdout.readline().decode()
            found = re.fullmatch(r"listening on .*:(\d+)\n", line)
            assert found, errors.read_text(encoding="utf-8")
            attacked = Target(int(found[1]), BrokerMemory(process.pid))
            with Client(attacked.port) as client:
                client.call(api.CREATE_TOPIC, messages.CreateTopicRequest("fuzzed", 2))
                client.call(api.PRODUCE, produce_request("fuzzed", 0, b"x" * 1000))
                client.call(api.CREATE_TOPIC, messages.CreateTopicRequest("pristine"))
            attacked.healthy.start()
            before = attacked.memory.resident_bytes
            yield attacked
            attacked.healthy.end()
            growth = attacked.memory.peak_bytes - before
            assert growth < MAX_GROWTH_BYTES, f"{growth} bytes more than at the start, at the peak"
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    log = errors.read_text(encoding="utf-8")
    assert "Traceback" not in log, log


def is_well(target: Target) -> None:
    """The broker takes new clients, and the one beside the attack has not noticed it."""
    target.memory.sample()
    with Client(target.port) as client:
        client.call(api.METADATA, messages.MetadataRequest(["fuzzed"]))
    assert target.healthy.failure is None, target.healthy.failure


def attack(target: Target, data: bytes, *, hello: bool = True) -> None:
    with Client(target.port, hello=hello) as client:
        client.send(data)
        assert client.is_closed_by_the_broker()
    is_well(target)


# --- what is sent --------------------------------------------------------------------------------

PLACE = messages.FetchPartition("fuzzed", 0, 0, 1000)
REQUESTS: list[tuple[api.Api, messages.Message]] = [
    (api.HELLO, messages.HelloRequest("again", "1")),
    (api.METADATA, messages.MetadataRequest(["fuzzed", "fuzz"], True)),
    (api.CREATE_TOPIC, messages.CreateTopicRequest("fuzz", 1, {"segment.bytes": 1000})),
    (api.ALTER_TOPIC, messages.AlterTopicRequest("fuzz", 2, {"retention.ms": "5"})),
    (api.DESCRIBE_TOPIC, messages.DescribeTopicRequest("fuzzed")),
    (api.DELETE_TOPIC, messages.DeleteTopicRequest("fuzz")),
    (api.PRODUCE, produce_request("fuzzed", 0, b"one", b"two", producer_id=5)),
    (api.FETCH, messages.FetchRequest(0, 0, 10_000, [PLACE, PLACE])),
    (
        api.LIST_OFFSETS,
        messages.ListOffsetsRequest([messages.ListOffsetsPartition("fuzzed", 0, 7)]),
    ),
    (
        api.DELETE_RECORDS,
        messages.DeleteRecordsRequest([messages.DeleteRecordsPartition("fuzzed", 1, 0)]),
    ),
    (api.INIT_PRODUCER, messages.InitProducerRequest(5, 1)),
]
CONTENTS = [api.encode_request(which, 9, request) for which, request in REQUESTS]

valid = st.sampled_from(CONTENTS)
#: msgpack heads that claim far more than follows, or that nothing should hold.
heads = st.sampled_from(
    [
        b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x00", b"\xdc\xff\xff", b"\xde\xff\xff",
        b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7), b"\xcb\x7f\xf8" + bytes(6), b"\xc1", b"\xc0",
        b"\xd9\xff", b"\x9f", b"\x8f", b"\xa4\xff\xfe\xfd\xfc",
    ]
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A request with a few of its bytes changed, dropped, doubled or replaced by a wild claim."""
    content = bytearray(draw(valid))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        match draw(st.integers(0, 4)):
            case 0 if content:
                content[at] = draw(st.integers(0, 255))
            case 1:
                del content[at : at + draw(st.integers(1, 20))]
            case 2:
                content[at:at] = draw(st.binary(max_size=20))
            case 3:
                content[at : at + 1] = draw(heads)
            case _:
                content[at:at] = content[at : at + 20]
    return bytes(content) or b"\xc0"


@st.composite
def nested(draw: st.DrawFn) -> bytes:
    """Arrays in arrays, or maps in maps, at some place of a request."""
    deep = draw(st.sampled_from([b"\x91", b"\x81\xa1k", b"\x81", b"\xdc\x00\x01"]))
    deep *= draw(st.sampled_from([10, 500, 1000, 5000, 100_000]))
    before = draw(
        st.sampled_from([b"", b"\x94", b"\x94\x08\x00\x05", b"\x94\x03\x00\x05\x93\xa1t\x01"])
    )
    return before + deep + draw(st.sampled_from([b"", b"\xc0"]))


# --- and what must hold --------------------------------------------------------------------------


@given(st.binary(max_size=3000), st.booleans())
def test_random_bytes(target, data, hello):
    attack(target, data, hello=hello)


@given(st.lists(mutated() | nested() | st.binary(min_size=1, max_size=200), max_size=8))
@example([b"\x91" * 1_000_000])
@example([b"\x94\x08\x00\x05" + b"\x91" * 1_000_000])
def test_every_frame_is_answered_once_whatever_is_in_it(target, contents):
    with Client(target.port) as client:
        client.send(b"".join(map(framed, contents)))
        for _ in contents:
            assert client.receive() is not None
        client.call(api.METADATA, messages.MetadataRequest(["fuzzed"]))
    is_well(target)


@given(
    st.integers(0, 2**32 - 1) | st.sampled_from([0, 32 * MIB, 32 * MIB + 1, 2**31, 2**32 - 1]),
    st.binary(max_size=500),
)
def test_any_length_with_little_behind_it(target, length, data):
    attack(target, struct.pack(">I", length) + data)


@given(valid, st.data())
def test_a_frame_that_is_cut_short(target, content, data):
    frame = framed(content)
    attack(target, frame[: data.draw(st.integers(0, len(frame) - 1))])


@given(st.lists(valid | mutated(), min_size=1, max_size=5), st.binary(min_size=1, max_size=50))
def test_garbage_between_frames_ends_the_stream_but_nothing_else(target, contents, garbage):
    attack(target, b"".join(framed(content) + garbage for content in contents))


@given(st.lists(valid | mutated() | nested(), min_size=1, max_size=4), st.data())
def test_frames_in_pieces_are_answered_like_whole_ones(target, contents, data):
    stream = b"".join(map(framed, contents))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    with Client(target.port) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            client.send(stream[start:end])
        for _ in contents:
            assert client.receive() is not None
    is_well(target)


@given(st.binary(max_size=400), st.sampled_from([0, 28, 80]))
def test_a_batch_of_anything_is_refused_and_nothing_of_it_is_kept(target, data, keep):
    batch = bytes(produce_request("pristine", 0, b"sound").batches[0].batch)[:keep] + data
    request = messages.ProduceRequest([messages.ProduceBatch("pristine", 0, memoryview(batch))])
    with Client(target.port) as client:
        response = client.call(api.PRODUCE, request)
        assert isinstance(response, messages.ProduceResponse)
        (result,) = response.results
        assert result.error is not None
        fetched = client.call(api.FETCH, fetch_request(("pristine", 0, 0)))
        assert isinstance(fetched, messages.FetchResponse)
        assert fetched.results[0].durable_end == 0


def test_hundreds_of_connections_that_claim_the_most_and_send_little(target):
    before = target.memory.resident_bytes
    clients = [Client(target.port) for _ in range(300)]
    for client in clients:
        client.send(struct.pack(">I", 32 * MIB) + bytes(KIB))
    is_well(target)
    assert target.memory.sample() - before < MAX_GROWTH_BYTES  # they claim 9.6 GB
    for client in clients:
        client.socket.close()
    is_well(target)


def test_a_client_that_sends_requests_for_ever_and_reads_nothing(target):
    content = framed(api.encode_request(api.FETCH, 1, fetch_request(("fuzzed", 0, 0))))
    with Client(target.port) as client:
        client.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):  # noqa: PT012 - once the broker reads no more of it
            for _ in range(10_000):
                client.socket.sendall(content * 100)
                target.memory.sample()
        is_well(target)


def test_the_request_encodings_used_here_are_right(target):
    with Client(target.port) as client:
        for content in CONTENTS:
            client.send(framed(content))
            answer = client.receive()
            assert answer is not None
            assert answer.correlation_id == 9
            assert answer.error is None or answer.error.code != 10, answer.error
    assert msgspec.msgpack.decode(CONTENTS[0])[0] == api.HELLO.key
