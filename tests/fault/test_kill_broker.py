"""A broker that is killed under load, again and again, on one data folder.

Several producers, idempotent, send their next batch when the last one is acked, and send it again
when they do not know; several consumers read what is there. After every kill: each acked record is
there once, in order, at its offset; and no record that a consumer saw ever changes.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from seglog.protocol import api, messages
from seglog.protocol.batch import encode_batch
from seglog.protocol.errors import SeglogError

from tests.brokers import NOON_US, RawClient, fetch_request, records_of

PARTITIONS = 6
PRODUCERS = 4
CONSUMERS = 3
RECORDS = 3  # of a batch
ACKS_BETWEEN_KILLS = (20, 200)
GONE = (OSError, EOFError)


@dataclass
class Truth:
    """What the broker said, over all of its lives."""

    acked: dict[int, dict[int, bytes]] = field(  # partition -> offset -> value
        default_factory=lambda: {number: {} for number in range(PARTITIONS)}
    )
    seen: dict[int, dict[int, bytes]] = field(
        default_factory=lambda: {number: {} for number in range(PARTITIONS)}
    )
    acks: int = 0
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    enough_acks: int = 0

    def ack(self, partition: int, base_offset: int, values: list[bytes]) -> None:
        for offset, value in enumerate(values, base_offset):
            known = self.acked[partition].setdefault(offset, value)
            assert known == value, f"{partition}: offset {offset} acked for two records"
        self.acks += 1
        if self.acks >= self.enough_acks:
            self.enough.set()

    def see(self, partition: int, offset: int, value: bytes) -> None:
        known = self.seen[partition].setdefault(offset, value)
        assert known == value, f"{partition}: offset {offset} was {known!r}, and is {value!r}"


@dataclass
class Producer:
    """Sends to all partitions at once, so that its batches go through the journal."""

    number: int
    id: int = -1
    sequence: int = 0
    waiting: list[list[bytes] | None] = field(default_factory=lambda: [None] * PARTITIONS)

    async def run(self, client: RawClient, truth: Truth) -> None:
        if self.id < 0:
            answer = await client.call(api.INIT_PRODUCER, messages.InitProducerRequest())
            self.id = answer.producer_id
        while True:
            await self._send(client, truth)

    async def _send(self, client: RawClient, truth: Truth) -> None:
        """One batch a partition; those that have no answer yet are sent again as they were."""
        if not any(self.waiting):
            self.waiting = [self._values(number) for number in range(PARTITIONS)]
        asked = [(number, values) for number, values in enumerate(self.waiting) if values]
        batches = [
            messages.ProduceBatch("t", number, memoryview(self._batch(values)))
            for number, values in asked
        ]
        answer = await client.call(api.PRODUCE, messages.ProduceRequest(batches))
        for (number, values), result in zip(asked, answer.results, strict=True):
            assert result.error is None, result.error
            truth.ack(number, result.base_offset, values)
            self.waiting[number] = None
        self.sequence += RECORDS

    def _values(self, partition: int) -> list[bytes]:
        return [b"%d:%d:%d" % (self.number, partition, self.sequence + n) for n in range(RECORDS)]

    def _batch(self, values: list[bytes]) -> bytearray:
        return encode_batch(
            values, timestamps=NOON_US, producer_id=self.id, base_sequence=self.sequence
        )


async def consume(client: RawClient, truth: Truth, start: dict[int, int]) -> None:
    """Follow every partition, from where this consumer was."""
    while True:
        places = [("t", number, offset) for number, offset in start.items()]
        request = fetch_request(*places, max_wait_ms=1000, min_bytes=1)
        answer = await client.call(api.FETCH, request)
        for number, result in enumerate(answer.results):
            assert result.error is None, result.error
            for record in records_of(result):
                truth.see(number, record.offset, record.value or b"")
                start[number] = max(start[number], record.offset + 1)


@asynccontextmanager
async def process_on(data: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """A broker that rolls, saves and switches its journal all the time. Killed at the end, whatever
    it is at.
    """
    options = ["journal.bytes=65536", "checkpoint.interval.ms=50", "housekeeping.interval.ms=50"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "seglog", "serve", "--data", str(data), "--port", "0",
        *(word for option in options for word in ("--set", option)), "--log-level", "error",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        assert line.startswith("listening on "), line
        yield process, int(line.rpartition(":")[2])
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def work_until_killed(
    data: Path, truth: Truth, producers: list[Producer], starts: list[dict[int, int]]
) -> None:
    async with process_on(data) as (process, port):
        clients = [await RawClient.open(port) for _ in range(PRODUCERS + CONSUMERS)]
        work = [
            *(p.run(client, truth) for p, client in zip(producers, clients, strict=False)),
            *(consume(c, truth, s) for c, s in zip(clients[PRODUCERS:], starts, strict=True)),
        ]
        tasks = [asyncio.create_task(one) for one in work]
        enough = asyncio.create_task(truth.enough.wait())
        # Whichever ends first: a worker that ends now has found something wrong.
        await asyncio.wait([enough, *tasks], return_when=asyncio.FIRST_COMPLETED)
        enough.cancel()
        process.kill()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for client in clients:
            client.close()
    for result in results:
        if not isinstance(result, GONE):
            assert isinstance(result, BaseException)
            raise result


def journal_is_there(data: Path) -> bool:
    return (data / "journal-0").exists()


async def check(data: Path, truth: Truth) -> None:
    """Read everything that is there after a kill."""
    async with process_on(data) as (_, port), await RawClient.open(port) as client:
        for partition in range(PARTITIONS):
            values = [value or b"" for value in await client.values("t", partition)]
            found = dict(enumerate(values))
            assert len(values) == len(set(values)), f"partition {partition}: a record twice"
            for what, promised in (("acked", truth.acked), ("seen", truth.seen)):
                for offset, value in promised[partition].items():
                    assert found.get(offset) == value, (
                        f"partition {partition}: {value!r} was {what} at {offset}, "
                        f"there is {found.get(offset)!r}, the end is {len(values)}"
                    )
            for producer in range(PRODUCERS):
                own = [v for v in values if v.startswith(b"%d:" % producer)]
                assert own == sorted(own, key=lambda v: int(v.rpartition(b":")[2])), "out of order"


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(3, id="3 rounds"),
        pytest.param(50, id="50 rounds", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
async def test_a_broker_that_is_killed_under_load_loses_and_changes_nothing(
    tmp_path, rounds, request
):
    seed = random.randrange(1 << 32)
    request.node.add_report_section("call", "seed", f"when it was killed: random.Random({seed})")
    chance = random.Random(seed)
    truth = Truth()
    producers = [Producer(number) for number in range(PRODUCERS)]
    starts = [dict.fromkeys(range(PARTITIONS), 0) for _ in range(CONSUMERS)]
    async with process_on(tmp_path) as (_, port), await RawClient.open(port) as client:
        await client.create("t", PARTITIONS, segment_bytes=16_384)

    for round_ in range(rounds):
        truth.enough_acks = truth.acks + chance.randint(*ACKS_BETWEEN_KILLS)
        truth.enough.clear()
        try:
            await work_until_killed(tmp_path, truth, producers, starts)
            assert journal_is_there(tmp_path), "nothing went through the journal: no test"
            await check(tmp_path, truth)
        except (AssertionError, SeglogError) as error:
            raise AssertionError(f"round {round_}, seed {seed}: {error}") from error

    assert truth.acks > rounds * ACKS_BETWEEN_KILLS[0]
    assert any(truth.seen.values())
