"""What the tests of a running broker share: a broker here or in a process of its own, and a client
that speaks the protocol frame by frame, so that it can also break it.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from seglog.protocol import api, messages
from seglog.protocol.batch import decode_batch, encode_batch
from seglog.protocol.errors import SeglogError
from seglog.protocol.header import split_batches
from seglog.protocol.records import Record
from seglog.server.app import Broker
from seglog.server.config import BrokerConfig
from seglog.server.storage.filesystem import FileSystem

#: A time to count from, in microseconds.
NOON_US = 1_700_000_000_000_000
EVERYTHING = 1 << 30


@asynccontextmanager
async def running_broker(
    data: Path, fs: FileSystem | None = None, **settings: Any
) -> AsyncIterator[Broker]:
    """A broker in this process on a free port; settings with underscores in place of their dots."""
    broker = Broker(BrokerConfig(**{"data": str(data), "port": 0, **settings}), fs)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


class BrokerMemory:
    """What a process holds in memory, without the pages of files that it has mapped."""

    def __init__(self, process_id: int) -> None:
        self._status = Path(f"/proc/{process_id}/statm")
        self.peak_bytes = 0

    @property
    def resident_bytes(self) -> int:
        words = self._status.read_text(encoding="ascii").split()
        return (int(words[1]) - int(words[2])) * os.sysconf("SC_PAGE_SIZE")

    def sample(self) -> int:
        """What it holds now, remembered as the peak if it is the most so far."""
        now = self.resident_bytes
        self.peak_bytes = max(self.peak_bytes, now)
        return now


class BrokerProcess(NamedTuple):
    """A broker in a process of its own."""

    process: asyncio.subprocess.Process
    port: int
    memory: BrokerMemory


@asynccontextmanager
async def broker_process(data: Path, *settings: str) -> AsyncIterator[BrokerProcess]:
    """`seglog serve` with `--set` for each of `settings`; SIGTERM must end it well."""
    flags = [word for setting in settings for word in ("--set", setting)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "seglog", "serve", "--data", str(data), "--port", "0", *flags,
        "--log-level", "error", stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        assert line.startswith("listening on "), line
        port = int(line.rpartition(":")[2])
        yield BrokerProcess(process, port, BrokerMemory(process.pid))
        if process.returncode is None:
            process.terminate()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Answer(NamedTuple):
    """A response frame, its body undecoded."""

    correlation_id: int
    error: SeglogError | None
    body: msgspec.Raw


class RawClient:
    """One connection. `send` and `receive` are apart, so that requests can be pipelined."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._last_id = 0

    @classmethod
    async def open(
        cls, port: int, *, hello: bool = True, host: str = "127.0.0.1", **options: Any
    ) -> Self:
        client = cls(*await asyncio.open_connection(host, port, **options))
        if hello:
            await client.call(api.HELLO, messages.HelloRequest("raw"))
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close at once: what was not written is not written."""
        self.writer.transport.abort()

    # --- bytes and frames ---

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def write_frame(self, content: bytes) -> None:
        self.writer.write(struct.pack(">I", len(content)) + content)

    async def receive(self) -> Answer:
        """The next answer; asyncio.IncompleteReadError where the broker closes instead."""
        (length,) = struct.unpack(">I", await self.reader.readexactly(4))
        envelope = api.decode_response_envelope(await self.reader.readexactly(length))
        error = None if envelope.error is None else envelope.error.to_exception()
        return Answer(envelope.correlation_id, error, envelope.body)

    async def closed(self) -> None:
        """Return once the broker has closed the connection; what it says before is dropped."""
        try:
            while await self.reader.read(1 << 20):
                pass
        except ConnectionError:
            pass

    # --- requests ---

    def send(self, which: api.Api, request: messages.Message) -> int:
        """Write a request; returns its correlation id."""
        self._last_id += 1
        self.write_frame(api.encode_request(which, self._last_id, request))
        return self._last_id

    async def answer(self, which: api.Api) -> Any:
        """The next answer as the response of `which`, or its error raised."""
        answer = await self.receive()
        if answer.error is not None:
            raise answer.error
        return api.decode_response(which, answer.body)

    async def call(self, which: api.Api, request: messages.Message) -> Any:
        self.send(which, request)
        return await self.answer(which)

    # --- what most tests do ---

    async def create(self, topic: str, partitions: int | None = None, **config: Any) -> Any:
        dotted = {name.replace("_", "."): value for name, value in config.items()}
        return await self.call(
            api.CREATE_TOPIC, messages.CreateTopicRequest(topic, partitions, dotted)
        )

    def send_produce(self, topic: str, partition: int, *values: bytes, **options: Any) -> int:
        return self.send(api.PRODUCE, produce_request(topic, partition, *values, **options))

    async def produce(self, topic: str, partition: int, *values: bytes, **options: Any) -> int:
        """Append the values as one batch; returns the base offset, or raises its error."""
        self.send_produce(topic, partition, *values, **options)
        result = (await self.answer(api.PRODUCE)).results[0]
        if result.error is not None:
            raise result.error.to_exception()
        offset: int = result.base_offset
        return offset

    async def fetch(self, topic: str, partition: int, offset: int = 0, **options: Any) -> Any:
        """The one result of a fetch of one partition, or its error raised."""
        response = await self.call(api.FETCH, fetch_request((topic, partition, offset), **options))
        result = response.results[0]
        if result.error is not None:
            raise result.error.to_exception()
        return result

    async def values(self, topic: str, partition: int = 0, offset: int = 0) -> list[bytes]:
        """The values of all records from `offset` to the durable end."""
        found: list[Record] = []
        while True:
            result = await self.fetch(topic, partition, offset)
            records = records_of(result)
            found += [record for record in records if record.offset >= offset]
            if not result.batches:
                return [record.value or b"" for record in found]
            offset = next_offset(result)


def produce_request(
    topic: str, partition: int, *values: bytes, timestamps: int | Sequence[int] = NOON_US, **o: Any
) -> messages.ProduceRequest:
    batch = memoryview(encode_batch(values, timestamps=timestamps, **o))
    return messages.ProduceRequest([messages.ProduceBatch(topic, partition, batch)])


def fetch_request(
    *places: tuple[str, int, int],
    max_wait_ms: int = 0,
    min_bytes: int = 0,
    max_bytes: int = EVERYTHING,
    partition_bytes: int = EVERYTHING,
    epoch: int = -1,
) -> messages.FetchRequest:
    """`places` are (topic, partition, offset)."""
    return messages.FetchRequest(
        max_wait_ms,
        min_bytes,
        max_bytes,
        [messages.FetchPartition(*place, partition_bytes, epoch) for place in places],
    )


def records_of(result: messages.FetchResult) -> list[Record]:
    return [record for batch in split_batches(result.batches) for record in decode_batch(batch)]


def values_of(result: messages.FetchResult) -> list[bytes]:
    return [record.value or b"" for record in records_of(result)]


def next_offset(result: messages.FetchResult) -> int:
    """Where to read on after a result that has batches."""
    *_, last = split_batches(result.batches)
    return decode_batch(last).next_offset
