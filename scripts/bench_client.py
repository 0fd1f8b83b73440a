"""The client library against a real broker: records a second, one at a time and in bulk.

    send        `await producer.send(topic, value)` of 100-byte records, then flush
    send_batch  the same records, 10,000 at a time
    async for   `async for record in consumer`
    batches     `async for batch in consumer.batches()`, keys and values read as columns

The broker is a process of its own; every record is durable before it counts. Beside each figure
stands the time that the same Python spends without a broker (a loop over the same calls that does
nothing), so that a slow machine shows.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import typer
import uvloop

from scripts.figures import Figure, report
from scripts.server_process import Server
from seglog import Admin, Consumer, Producer

RECORD_BYTES: Final = 100
BULK: Final = 10_000
AIMS: Final = {"send": 400_000, "send_batch": 2_000_000, "async for": 600_000, "batches": 2_000_000}


async def nothing(topic: str, value: bytes) -> bytes:
    return value


async def empty_loop(values: list[bytes]) -> float:
    """Awaiting a coroutine that does nothing, once a record: what Python itself takes."""
    started = time.perf_counter()
    for value in values:
        await nothing("bench", value)
    return len(values) / (time.perf_counter() - started)


async def send(port: int, topic: str, values: list[bytes]) -> float:
    async with Producer(f"127.0.0.1:{port}") as producer:
        started = time.perf_counter()
        for value in values:
            await producer.send(topic, value)
        await producer.flush()
        return len(values) / (time.perf_counter() - started)


async def send_batch(port: int, topic: str, values: list[bytes]) -> float:
    async with Producer(f"127.0.0.1:{port}", batch_bytes=2_000_000) as producer:
        started = time.perf_counter()
        for first in range(0, len(values), BULK):
            await producer.send_batch(topic, values[first : first + BULK])
        await producer.flush()
        return len(values) / (time.perf_counter() - started)


async def iterate(port: int, topic: str, count: int) -> float:
    async with Consumer(topic, bootstrap=f"127.0.0.1:{port}", start="earliest") as consumer:
        started = time.perf_counter()
        async for _ in consumer:
            count -= 1
            if not count:
                break
        return consumer.position(topic, 0) / (time.perf_counter() - started)


async def iterate_batches(port: int, topic: str, count: int) -> float:
    seen = 0
    async with Consumer(topic, bootstrap=f"127.0.0.1:{port}", start="earliest") as consumer:
        started = time.perf_counter()
        async for batch in consumer.batches():
            seen += len(batch.values)
            if seen >= count:
                break
        return seen / (time.perf_counter() - started)


async def run(folder: Path, rounds: int, count: int) -> list[Figure]:
    server = Server("-m", "seglog", "serve", "--data", str(folder), "--port", "0")
    values = [os.urandom(RECORD_BYTES) for _ in range(count)]
    rates: dict[str, list[float]] = {name: [] for name in ("empty loop", *AIMS)}
    try:
        async with Admin(f"127.0.0.1:{server.port}") as admin:
            for number in range(rounds):
                topic, bulk = f"single-{number}", f"bulk-{number}"
                await admin.create_topic(topic, partitions=1)
                await admin.create_topic(bulk, partitions=1)
                rates["empty loop"].append(await empty_loop(values))
                rates["send"].append(await send(server.port, topic, values))
                rates["send_batch"].append(await send_batch(server.port, bulk, values))
                rates["async for"].append(await iterate(server.port, topic, count))
                rates["batches"].append(await iterate_batches(server.port, bulk, count))
    finally:
        server.stop()
    group = f"client, {RECORD_BYTES} B records"
    figures = [Figure(group, "an empty loop", median(rates["empty loop"]), "records/s")]
    for name, aim in AIMS.items():
        rate = median(rates[name])
        figures.append(Figure(group, name, rate, "records/s", f"≥ {aim:,}", rate >= aim))
    return figures


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each is measured.")] = 3,
    count: Annotated[int, typer.Option(min=BULK, help="Records in each round.")] = 500_000,
    json: Annotated[Path | None, typer.Option(help="Save the figures here as well.")] = None,
) -> None:
    """Takes about half a minute."""
    with tempfile.TemporaryDirectory(prefix="seglog-bench-") as temporary:
        figures = uvloop.run(run(Path(temporary), rounds, count))
    report(figures, "scripts/bench client", json)
