"""The quickstart's second half: a broker, a producer, a kill in the middle of it all, and a
consumer.

The broker is a process of its own and is killed (SIGKILL) under load. The producer goes on by
itself when it is back: every record is in its topic once, in order.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from rich.console import Console

from scripts.checks import Check
from seglog import Admin, Consumer, Producer

TOPIC: Final = "events"
PARTITIONS: Final = 4
RECORDS: Final = 200_000
KILL_AFTER: Final = RECORDS // 2


class BrokerProcess:
    """`seglog serve` in a process of its own."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        command = [sys.executable, "-m", "seglog", "serve", "--data", str(folder)]
        self._process = subprocess.Popen(
            [*command, "--port", str(port), "--log-level", "error"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        found = re.search(r":(\d+)$", self._process.stdout.readline().strip())
        if found is None:
            raise SystemExit("the broker did not start: what it says is above")
        self.port = int(found[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM: finish, sync, exit; returns the exit code."""
        self._process.terminate()
        return self._process.wait(30)


async def produce(console: Console, folder: Path) -> tuple[BrokerProcess, float]:
    """Send everything, with a kill in the middle; returns the second broker and the seconds."""
    broker = BrokerProcess(folder)
    async with Admin(broker.address) as admin:
        await admin.create_topic(TOPIC, partitions=PARTITIONS)
    started = time.perf_counter()
    async with Producer(broker.address) as producer:
        for number in range(RECORDS):
            if number == KILL_AFTER:
                await asyncio.to_thread(broker.kill)
                broker = await asyncio.to_thread(BrokerProcess, folder, broker.port)
                console.print("   … the broker was killed, and another one started.")
            await producer.send(TOPIC, b"%d" % number)
    return broker, time.perf_counter() - started


async def consume(address: str) -> tuple[dict[int, list[int]], float]:
    """Every record, partition by partition, and the seconds it took."""
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    started = time.perf_counter()
    async with Consumer(TOPIC, bootstrap=address, start="earliest") as consumer:
        ends = await consumer.end_offsets()
        remaining = sum(ends.values())
        async for record in consumer:
            assert record.value is not None
            found[record.partition].append(int(record.value))
            remaining -= 1
            if not remaining:
                break
    return found, time.perf_counter() - started


async def share(address: str) -> tuple[list[int], int]:
    """Two members of a group read everything between them; their shares, and the lag they leave."""
    seen: list[set[tuple[int, int]]] = [set(), set()]

    async def member(found: set[tuple[int, int]]) -> None:
        async with Consumer(
            TOPIC, bootstrap=address, group="billing", start="earliest"
        ) as consumer:
            # The first to come owns everything until the other is there.
            while len(consumer.assignment) != PARTITIONS // 2:  # noqa: ASYNC110 - shown, not raced
                await asyncio.sleep(0.01)
            while sum(map(len, seen)) < RECORDS:
                records = await consumer.getmany(10_000, timeout=0.05)
                found.update((record.partition, record.offset) for record in records)
            await consumer.commit()  # also what is in hand: it is done

    await asyncio.gather(*map(member, seen))
    shares = [len(found) for found in seen]
    async with Admin(address) as admin:
        return shares, (await admin.describe_group("billing")).lag.records


async def tour(console: Console, folder: Path) -> list[Check]:
    console.print(
        f"\n[bold]5. A broker.[/] {RECORDS:,} records go to {PARTITIONS} partitions over TCP, each "
        "durable before it is acknowledged; the broker is killed half-way."
    )
    broker, sending_s = await produce(console, folder)
    console.print("\n[bold]6. A consumer[/] reads them all.")
    found, reading_s = await consume(broker.address)
    console.print("\n[bold]7. A group[/] of two shares the work; the broker keeps its bookmark.")
    shares, lag = await share(broker.address)
    code = await asyncio.to_thread(broker.stop)
    numbers = sorted(number for partition in found.values() for number in partition)
    in_order = all(partition == sorted(partition) for partition in found.values())
    return [
        Check("broker: records sent, with a kill -9 half-way", f"{RECORDS:,}"),
        Check("broker: found, each once", f"{len(numbers):,}", numbers == list(range(RECORDS))),
        Check("broker: in order within each partition", f"{PARTITIONS} of {PARTITIONS}", in_order),
        Check("group: shared by two members", " + ".join(f"{n:,}" for n in shares), all(shares)),
        Check("group: lag left, records", f"{lag}", lag == 0),
        Check("broker: stops cleanly", f"exit {code}", code == 0),
        Check("sent, with the restart, records/s", f"{RECORDS / sending_s:,.0f}"),
        Check("read, records/s", f"{RECORDS / reading_s:,.0f}"),
    ]
