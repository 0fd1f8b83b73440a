"""One producer under load: the loops, each with no more work a record than its mode asks for.

    send    `await producer.send(…)` a record; nobody waits for the answer
    await   `in_flight` callers, each of which sends a record and waits until it is acknowledged
    batch   `await producer.send_batch(…)`

A closed loop sends as fast as the producer takes records. An open loop sends what is due in each
slot of its pace, and counts latency from then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import count as numbers_from
from typing import Final, NamedTuple

from scripts.loading.acks import Acks
from scripts.loading.checker import Finding, SentRecords
from scripts.loading.meter import Meter
from scripts.loading.pacing import Pace, Waker
from scripts.loading.records import RecordPool
from scripts.loading.supply import Keys, Supply
from scripts.loading.workload import Workload
from seglog import Delivery, Producer
from seglog.protocol.constants import MIB
from seglog.protocol.errors import SeglogError

#: Records sent between two looks at the clock, and their bytes.
STRIDE_RECORDS: Final = 64
STRIDE_BYTES: Final = 64 * 1024


class Slot(NamedTuple):
    """Records to be sent together."""

    due_ns: int
    records: int


class End:
    """When one producer stops, and why."""

    def __init__(self, stop_ns: int, records: int) -> None:
        self.stop_ns = stop_ns
        self.left = records
        self.is_stopped = False
        self.why = "time"

    def is_over(self, now_ns: int) -> bool:
        if self.is_stopped:
            self.why = "stop"
        elif self.left <= 0:
            self.why = "count"
        elif now_ns < self.stop_ns:
            return False
        return True


class ProducerTask:
    """A Producer of its own, the `number`th of the run."""

    def __init__(
        self,
        number: int,
        workload: Workload,
        bootstrap: str,
        topics: list[str],
        pool: RecordPool,
        meter: Meter,
        clock_offset_ns: int,
    ) -> None:
        self.number = number
        self._workload = workload
        self._meter = meter
        self._stride = max(1, min(STRIDE_RECORDS, int(STRIDE_BYTES / pool.mean_bytes)))
        self._most = workload.batch_records if workload.mode == "batch" else STRIDE_RECORDS
        self._supply = Supply(workload, pool, number, self._most, clock_offset_ns)
        self._acks = Acks(
            number, meter, self._supply, workload.partitions, is_checked=workload.check
        )
        self._producer = Producer(
            bootstrap,
            linger_ms=workload.linger_ms,
            batch_bytes=workload.batch_bytes,
            compression=workload.compression,
            delivery_timeout_s=workload.delivery_timeout_s,
            buffer_bytes=max(32 * MIB, 2 * workload.batch_bytes),
            client_name=f"loadgen-producer-{number}",
        )
        # Each begins with another topic, and goes on to the next one stride by stride.
        self._topics = topics[number % len(topics) :] + topics[: number % len(topics)]
        total = workload.record_limit(pool.mean_bytes)
        share = total // workload.producers + (number < total % workload.producers)
        self.end = End(0, share)

    async def open(self) -> None:
        """Connect, and know the topics: neither is part of the load."""
        await self._producer.start()
        for topic in self._topics:
            await self._producer.partitions_for(topic)

    async def close(self) -> None:
        await self._producer.close()

    def sent_records(self) -> SentRecords:
        return self._acks.sent_records()

    def places(self, sequences: list[int]) -> list[Finding]:
        return self._acks.places(sequences)

    async def run(self, start_ns: int, waker: Waker | None, pace: Pace | None) -> None:
        """Until the end, and every record has its outcome."""
        self.end.stop_ns = start_ns + int(self._workload.seconds * 1e9)
        if self._workload.mode == "await":
            await self._run_callers(waker, pace)
        elif waker is not None and pace is not None:
            await self._run_open(waker, pace)
        else:
            await self._run_closed()
        try:
            await self._producer.flush()
        except SeglogError:
            pass  # counted by its kind, with all that failed, in Acks
        await self._acks.all_settled()

    # --- send and batch ---

    async def _run_closed(self) -> None:
        send = self._send_bulk if self._workload.mode == "batch" else self._send_each
        most = self._workload.batch_records if self._workload.mode == "batch" else self._stride
        end = self.end
        for topic in self._turns():
            now = time.monotonic_ns()
            if end.is_over(now):
                return
            count = min(most, end.left)
            end.left -= count
            await send(topic, Slot(now, count))

    async def _run_open(self, waker: Waker, pace: Pace) -> None:
        send = self._send_bulk if self._workload.mode == "batch" else self._send_each
        topics = self._turns()
        for number in numbers_from():
            due = pace.due_ns(number)
            if self.end.is_over(due):
                return
            await waker.until(due)
            left = min(pace.records_in(number), self.end.left)
            self._meter.late(time.monotonic_ns() - due, left)
            self.end.left -= left
            while left:
                count = min(left, self._most)
                await send(next(topics), Slot(due, count))
                left -= count

    async def _send_each(self, topic: str, slot: Slot) -> None:
        first = self._supply.taken
        values, keys = self._supply.take(slot.records, slot.due_ns)
        deliveries = await send_all(self._producer, topic, values, keys)
        self._acks.sent(deliveries, slot.due_ns, first)

    async def _send_bulk(self, topic: str, slot: Slot) -> None:
        first = self._supply.taken
        values, keys = self._supply.take(slot.records, slot.due_ns)
        delivery = await self._producer.send_batch(topic, values, keys)
        self._acks.sent_bulk(delivery, slot.due_ns, first)

    def _turns(self) -> Iterator[str]:
        while True:
            yield from self._topics

    # --- await ---

    async def _run_callers(self, waker: Waker | None, pace: Pace | None) -> None:
        due = iter(self._due_now()) if pace is None else self._due_at(pace)
        # A record's number and its place in the producer's order must not part while a send waits.
        order = asyncio.Lock()
        topics = self._turns()
        async with asyncio.TaskGroup() as callers:
            for _ in range(self._workload.in_flight):
                callers.create_task(self._call(due, waker, topics, order))

    def _due_now(self) -> Iterator[int]:
        while not self.end.is_over(now := time.monotonic_ns()):
            self.end.left -= 1
            yield now

    def _due_at(self, pace: Pace) -> Iterator[int]:
        for number in numbers_from():
            due = pace.due_ns(number)
            for _ in range(pace.records_in(number)):
                if self.end.is_over(due):
                    return
                self.end.left -= 1
                yield due

    async def _call(
        self, dues: Iterator[int], waker: Waker | None, topics: Iterator[str], order: asyncio.Lock
    ) -> None:
        is_ordered = self._workload.check
        for due in dues:
            if waker is not None:
                await waker.until(due)
                self._meter.late(time.monotonic_ns() - due, 1)
            if is_ordered:
                await order.acquire()
            sequence = self._supply.taken
            (value,), keys = self._supply.take(1, due)
            try:
                delivery = await self._producer.send(next(topics), value, keys[0] if keys else None)
            finally:
                if is_ordered:
                    order.release()
            try:
                self._acks.acked(await delivery, due, sequence)
            except SeglogError as error:
                self._acks.failed(error, sequence)


async def send_all(
    producer: Producer, topic: str, values: list[bytes], keys: Keys
) -> list[Delivery]:
    """`send` for each, in a comprehension: the cheapest loop there is."""
    send = producer.send
    if keys is None:
        return [await send(topic, value) for value in values]
    return [await send(topic, value, key) for value, key in zip(values, keys, strict=True)]
