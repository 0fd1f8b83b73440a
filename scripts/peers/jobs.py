"""What a client process does in one cell. Every job opens its client before it says it is ready.

first_ack   from a server that may not listen yet to the first acknowledged record
create, delete, length
fill        a number of records, as fast as they go, within a time
produce     for some seconds: record by record, in bulk, or each awaited
read        all of a topic: record by record, or in batches
pace        records at a rate (open loop: what is late is sent late, and counted as late)
follow      the other end of `pace`: latencies from the time a record was meant to be sent
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from itertools import cycle
from typing import Any, Final, Literal, NamedTuple

from scripts.loading.histogram import Latencies
from scripts.loading.records import RecordPool
from scripts.loading.sizes import Sizes
from scripts.peers.interface import CHUNK, START_TIMEOUT_S, Client, in_chunks
from scripts.peers.systems import SYSTEMS
from scripts.peers.workers import Gate

POOL_RECORDS: Final = 10_000
#: `{"n":0000000001,` before the rest of an event.
PREFIX_BYTES: Final = 16
NUMBER: Final = slice(5, 15)
RETRY_S: Final = 0.005
TICK_S: Final = 0.001
#: A pacer that is late hands over at most this many at once.
MAX_LATE: Final = 5_000
WAIT_CHUNK: Final = 20

ProduceKind = Literal["records", "bulk", "awaited"]
ReadKind = Literal["records", "batches"]


class Target(NamedTuple):
    """A system, and where its broker is."""

    system: str
    address: str


class Span(NamedTuple):
    """So many records, between two moments of the monotonic clock."""

    records: int
    started: float
    ended: float


class ShortOfRecords(Exception):
    """Fewer records, or other ones, than were acknowledged, or than can be timed."""


@cache
def pool(size_bytes: int) -> list[bytes]:
    """The records of everybody: JSON events, the same in every process."""
    return RecordPool.make(Sizes.parse(str(size_bytes)), count=POOL_RECORDS).values


@asynccontextmanager
async def opened(target: Target, *, for_latency: bool = False) -> AsyncIterator[Client]:
    client = SYSTEMS[target.system].client(target.address, for_latency=for_latency)
    await client.open()
    try:
        yield client
    finally:
        await client.close()


# --- starting, topics ---


async def first_ack(gate: Gate, target: Target, topic: str, is_durable: bool) -> float:
    """When it was acknowledged."""
    client = SYSTEMS[target.system].client(target.address)
    value = pool(100)[0]
    async with asyncio.timeout(START_TIMEOUT_S):
        await _listening(target.address)
        await _until_it_works(client.open)
        await _until_it_works(lambda: client.create(topic, is_durable=is_durable))
        await _until_it_works(lambda: client.send_and_wait(topic, value))
        acknowledged = time.monotonic()
    await client.close()
    return acknowledged


async def _listening(address: str) -> None:
    host, port = address.split(":")
    while True:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            await asyncio.sleep(RETRY_S)
        else:
            writer.close()
            return


async def _until_it_works(action: Callable[[], Awaitable[Any]]) -> None:
    """A broker may listen before it can answer. The time limit around this is the end of it."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            await action()
        except Exception:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(RETRY_S)
        else:
            return


async def create(gate: Gate, target: Target, topics: Sequence[str], is_durable: bool) -> None:
    async with opened(target) as client:
        for topic in topics:
            await client.create(topic, is_durable=is_durable)


async def delete(gate: Gate, target: Target, topics: Sequence[str]) -> None:
    async with opened(target) as client:
        for topic in topics:
            await client.delete(topic)


async def length(gate: Gate, target: Target, topics: Sequence[str]) -> int:
    """Of all these together."""
    async with opened(target) as client:
        return sum([await client.length(topic) for topic in topics])


# --- producing, reading ---


async def fill(
    gate: Gate, target: Target, topic: str, size_bytes: int, count: int, seconds: float
) -> int:
    """Up to `count` records, fewer where that takes longer; how many."""
    async with opened(target) as client:
        sent = 0
        deadline = time.monotonic() + seconds
        for chunk in cycle(in_chunks(pool(size_bytes), CHUNK)):
            if sent >= count or time.monotonic() >= deadline:
                break
            await client.hand_over(topic, chunk)
            sent += len(chunk)
        await client.flush()
    return sent


async def produce(
    gate: Gate, target: Target, topic: str, size_bytes: int, kind: ProduceKind, seconds: float
) -> Span:
    values = pool(size_bytes)
    async with opened(target, for_latency=kind == "awaited") as client:
        await client.send_and_wait(topic, values[0])  # all that is done once is done
        begin = await gate()
        until = begin + seconds
        if kind == "records":
            count = await client.produce(topic, values, until)
        elif kind == "bulk":
            count = await client.produce_bulk(topic, values, until)
        else:
            count = await _send_awaited(client, topic, values, until)
        return Span(count, begin, time.monotonic())


async def _send_awaited(client: Client, topic: str, values: Sequence[bytes], until: float) -> int:
    sent = 0
    for chunk in cycle(in_chunks(values, WAIT_CHUNK)):
        if time.monotonic() >= until:
            break
        for value in chunk:
            await client.send_and_wait(topic, value)
        sent += len(chunk)
    return sent


async def read(
    gate: Gate, target: Target, topic: str, size_bytes: int, kind: ReadKind, count: int
) -> Span:
    async with opened(target) as client:
        await gate()
        if kind == "records":
            amount = await client.read_records(topic, count)
        else:
            amount = await client.read_batches(topic, count, lambda values: None)
    if amount.records < count or amount.size_bytes != amount.records * size_bytes:
        raise ShortOfRecords(f"{amount} where {count} of {size_bytes} bytes were acknowledged")
    if amount.records == amount.first_records:
        raise ShortOfRecords(f"all {amount.records} came in one piece: too few to time")
    return Span(amount.records - amount.first_records, amount.started, amount.ended)


# --- end to end ---


async def pace(
    gate: Gate, target: Target, topic: str, size_bytes: int, count: int, rate: float | None
) -> Span:
    """`count` records at `rate` a second; None: as fast as they go."""
    size = Sizes.parse(str(size_bytes))
    bodies = RecordPool.make(size, count=POOL_RECORDS, prefix_bytes=PREFIX_BYTES).values
    values = [b'{"n":%010d,%s' % (n, bodies[n % len(bodies)]) for n in range(count)]
    async with opened(target, for_latency=rate is not None) as client:
        await client.send_and_wait(topic, values[0])  # for the follower to find
        begin = await gate()
        sent = 0
        while sent < count:
            due = count if rate is None else int((time.monotonic() - begin) * rate)
            stop = min(count, due, sent + (CHUNK if rate is None else MAX_LATE))
            if stop > sent:
                await client.hand_over(topic, values[sent:stop])
                sent = stop
            else:
                await asyncio.sleep(TICK_S)
        await client.flush()
        return Span(sent, begin, time.monotonic())


class Followed(NamedTuple):
    """What came, and how late; `latencies` is an encoded histogram."""

    span: Span
    latencies: str


async def follow(
    gate: Gate, target: Target, topic: str, count: int, rate: float | None, skip_s: float
) -> Followed:
    """Reads before the clock starts: a first record that is not counted has been through.

    Latencies are of records meant to be sent after `skip_s`. Without a rate there is no time that
    a record was meant for, and nothing is counted.
    """
    begin = 0.0
    first = round(skip_s * (rate or 0))
    is_attached = asyncio.Event()
    delays_ns: list[int] = []

    def came(values: Sequence[bytes]) -> None:
        if not is_attached.is_set():
            is_attached.set()
        elif rate is not None:
            now = time.monotonic() - begin
            numbers = [int(value[NUMBER]) for value in values]
            delays_ns.extend([int((now - n / rate) * 1e9) for n in numbers if n >= first])

    async with (
        opened(target, for_latency=rate is not None) as client,
        asyncio.TaskGroup() as tasks,
    ):
        following = tasks.create_task(client.follow(topic, count + 1, came))
        await is_attached.wait()
        begin = await gate()
    amount = following.result()
    if amount.records != count + 1:
        raise ShortOfRecords(f"{amount.records - 1} records came, {count} were sent")
    latencies = Latencies()
    latencies.record_many(delays_ns)
    return Followed(Span(count, begin, amount.ended), latencies.encode())
