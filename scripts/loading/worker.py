"""A process of the load: `python -m scripts.loading.worker`, told what to do on its stdin.

It holds some of the producers, or some of the consumers, each a task with a client of its own.
When its stdin ends, it ends: nothing is left behind by a run that was killed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Final

import uvloop

from scripts.loading import messages as m
from scripts.loading.consuming import ConsumerTask
from scripts.loading.meter import Meter
from scripts.loading.pacing import Pace, Waker
from scripts.loading.producing import ProducerTask
from scripts.loading.records import POOL_RECORDS, RecordPool
from scripts.loading.sizes import Sizes
from seglog.protocol.errors import SeglogError

REPORT_S: Final = 1.0
DRAIN_S: Final = 0.05
#: Young objects between two collections: what lives long is frozen, and cycles are rare.
GC_THRESHOLD: Final = 100_000


class Worker:
    """Reads messages, answers them, and runs the tasks."""

    def __init__(self, plan: m.Plan, reader: asyncio.StreamReader) -> None:
        self._plan = plan
        self._reader = reader
        self._meter = Meter()
        self._stop = asyncio.Event()
        self._drain = asyncio.Event()
        self._producers: list[ProducerTask] = []
        self._consumers: list[ConsumerTask] = []

    async def run(self) -> None:
        mean_bytes = self._make_tasks()
        tasks: list[ProducerTask | ConsumerTask] = [*self._producers, *self._consumers]
        for task in tasks:
            await task.open()
        tell(m.Ready(mean_bytes, time.process_time()))
        go = await self._next()
        if not isinstance(go, m.Go):
            return
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        # Waits in a task of its own: while the load runs, it may be told to stop or to drain.
        listening = asyncio.create_task(self._listen())
        helpers = [asyncio.create_task(self._report(go.start_ns))]
        helpers.append(asyncio.create_task(self._tell_positions()))
        try:
            ended_by = await self._load(go.start_ns)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
        tell(self._meter.report())
        tell(
            m.Done(
                ended_by=ended_by,
                sent=[task.sent_records() for task in self._producers],
                sightings=[
                    task.sightings.pack() for task in self._consumers if task.sightings is not None
                ],
            )
        )
        for task in tasks:
            await task.close()
        await listening

    def _make_tasks(self) -> float:
        plan, workload = self._plan, self._plan.workload
        if not plan.is_producer:
            self._consumers = [
                ConsumerTask(
                    number, workload, plan.bootstrap, plan.topics, plan.group, self._meter,
                    plan.clock_offset_ns,
                )
                for number in plan.numbers
            ]  # fmt: skip
            return 0.0
        pool = RecordPool.make(
            Sizes.parse(workload.size),
            count=min(POOL_RECORDS, workload.records or POOL_RECORDS),
            seed=workload.seed,
            keys=workload.keys,
            key_count=workload.key_count,
            zipf_exponent=workload.zipf_exponent,
            prefix_bytes=workload.stamp_bytes,
        )
        self._producers = [
            ProducerTask(
                number, workload, plan.bootstrap, plan.topics, pool, self._meter,
                plan.clock_offset_ns,
            )
            for number in plan.numbers
        ]  # fmt: skip
        return pool.mean_bytes

    # --- the load ---

    async def _load(self, start_ns: int) -> str:
        await asyncio.sleep(max(0, start_ns - time.monotonic_ns()) / 1e9)
        if not self._plan.is_producer:
            await self._until_stopped([task.run(start_ns) for task in self._consumers])
            return "stop" if self._stop.is_set() else self._consumers[0].why
        workload = self._plan.workload
        if workload.rate:
            pace = Pace(workload.rate / workload.producers, start_ns)
            with Waker(start_ns, pace.slot_ns) as waker:
                await _all(task.run(start_ns, waker, pace) for task in self._producers)
        else:
            await _all(task.run(start_ns, None, None) for task in self._producers)
        return self._producers[0].end.why

    async def _until_stopped(self, loops: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Consumers wait for records that may never come: so they are cancelled."""
        running = asyncio.ensure_future(_all(loops))
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        running.cancel()
        try:
            await running
        except asyncio.CancelledError:
            pass

    # --- what is told meanwhile ---

    async def _report(self, start_ns: int) -> None:
        due_ns = start_ns
        while True:
            due_ns += int(REPORT_S * 1e9)
            await asyncio.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
            tell(self._meter.report())

    async def _tell_positions(self) -> None:
        await self._drain.wait()
        while True:
            tell(m.Positions([task.positions() for task in self._consumers]))
            await asyncio.sleep(DRAIN_S)

    async def _next(self) -> m.ToWorker | None:
        line = await self._reader.readline()
        return m.to_worker.decode(line) if line else None

    async def _listen(self) -> None:
        while (message := await self._next()) is not None:
            if isinstance(message, m.Stop):
                self._stop_all()
            elif isinstance(message, m.Drain):
                self._drain.set()
            elif isinstance(message, m.Where):
                self._tell_places(message.records)
        self._stop_all()

    def _stop_all(self) -> None:
        self._stop.set()
        for task in self._producers:
            task.end.is_stopped = True

    def _tell_places(self, records: list[tuple[int, int]]) -> None:
        findings = []
        for task in self._producers:
            mine = [sequence for producer, sequence in records if producer == task.number]
            findings += task.places(mine) if mine else []
        tell(m.Places(findings))


async def _all(loops: Any) -> None:
    """All at once; the first that fails ends the others."""
    async with asyncio.TaskGroup() as group:
        for loop in loops:
            group.create_task(loop)


def tell(message: m.FromWorker) -> None:
    # Written at once and whole: the one who reads is never far behind.
    sys.stdout.buffer.write(m.encode_line(message))
    sys.stdout.buffer.flush()


async def main() -> int:
    reader = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    line = await reader.readline()
    plan = m.to_worker.decode(line) if line else None
    if not isinstance(plan, m.Plan):
        return 1
    try:
        await Worker(plan, reader).run()
    except Exception as error:
        first: BaseException = error
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        tell(m.Failed(f"{type(first).__name__}: {first}"))
        if not isinstance(first, SeglogError | OSError):
            raise  # a defect: its stack goes to stderr
        return 1
    return 0


if __name__ == "__main__":
    # Ctrl-C reaches every process of the terminal: the one that conducts the run decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Reconnecting is part of some runs, and what fails is counted: no line for each try.
    logging.getLogger("seglog").setLevel(logging.ERROR)
    code = uvloop.run(main())
    sys.stdout.flush()
    os._exit(code)  # the pool, a few hundred thousand objects, need not be taken apart
