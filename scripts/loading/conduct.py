"""One run, from nothing to its result.

    broker started or reached ─► topics made ─► (filled) ─► workers ready ─► go
      ─► producers end, by time, count or Ctrl-C ─► consumers read what is left ─► checked ─► result

Whatever happens, workers are ended, and what stands around them (stage.py) is removed. Every wait
has a limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final, Protocol

import msgspec

from scripts.loading import messages as m
from scripts.loading.checker import PackedSightings, SentRecords, Verdict
from scripts.loading.draining import drain
from scripts.loading.outcome import make_result
from scripts.loading.processes import WorkerProcess
from scripts.loading.readback import read_back
from scripts.loading.result import EndedBy, Result
from scripts.loading.stage import Place, Stage, happens
from scripts.loading.stamps import clock_offset_ns
from scripts.loading.tally import Moment, SideTally
from scripts.loading.verdict import find_verdict
from scripts.loading.workload import Workload

#: Between telling all workers to go and their begin: so that they begin together.
HEAD_START_S: Final = 0.2
HEARTBEAT_S: Final = 1.0
#: Workers tell of a second at its end: looking a little later, one sees it.
BEAT_AFTER_S: Final = 0.1
FILL_SECONDS: Final = 1800.0
SLACK_S: Final = 30.0


class View(Protocol):
    """Shows a run while it lasts."""

    def show(self, moment: Moment) -> None: ...


class Conductor:
    """Of one run; `interrupt` ends it early, with the result so far."""

    def __init__(self, workload: Workload, place: Place, view: View, name: str = "") -> None:
        self._workload = workload
        self._stage = Stage(place, workload)
        self._view = view
        self._name = name or workload.described()
        self._clock_offset_ns = clock_offset_ns()
        self._workers: list[WorkerProcess] = []
        self._produce = SideTally() if workload.produces else None
        self._consume = SideTally() if workload.consumes else None
        self._phase = "starting"
        self._start_ns = 0
        self._record_bytes = 0.0
        self._interrupted = asyncio.Event()
        self._warnings: list[str] = []
        self._filled: list[SentRecords] = []

    def interrupt(self) -> None:
        """End the load now."""
        self._interrupted.set()

    @property
    def is_interrupted(self) -> bool:
        return self._interrupted.is_set()

    async def run(self) -> Result:
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        async with self._stage.set(), self._ended_workers():
            filled = await self._fill() if self._workload.kind == "consume" else []
            consumers = await self._start_workers(is_producer=False) if self._consume else []
            producers = await self._start_workers(is_producer=True) if self._produce else []
            ended_by, sent, seen = await self._load(producers, consumers)
            self._tell("checking" if self._workload.check else "ending")
            verdict = None
            if self._workload.check:
                verdict = await self._check(filled or producers, sent or self._filled, seen)
            return make_result(
                name=self._name,
                started_at=started_at,
                ended_by=ended_by,
                workload=self._workload,
                record_bytes=self._record_bytes,
                produce=None if self._produce is None else (self._produce, producers),
                consume=None if self._consume is None else (self._consume, consumers),
                watch=self._stage.watch,
                kills=self._stage.kills,
                check=verdict,
                warnings=self._warnings,
            )

    # --- what is there before and after ---

    @asynccontextmanager
    async def _ended_workers(self) -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            for worker in self._workers:
                worker.kill()
            raise
        finally:
            await asyncio.gather(*(worker.end() for worker in self._workers))

    async def _start_workers(
        self, *, is_producer: bool, workload: Workload | None = None, is_counted: bool = True
    ) -> list[WorkerProcess]:
        w = workload or self._workload
        tasks = w.producers if is_producer else w.consumers
        processes = w.producer_processes if is_producer else w.consumer_processes
        started = []
        for number in range(processes):
            plan = m.Plan(
                workload=w,
                is_producer=is_producer,
                numbers=list(range(tasks))[number::processes],
                bootstrap=self._stage.bootstrap,
                topics=self._stage.topics,
                group=self._stage.group,
                clock_offset_ns=self._clock_offset_ns,
            )
            role = "producer" if is_producer else "consumer"
            take = self._on_report if is_counted else _ignore
            started.append(WorkerProcess(f"{role} process {number}", plan, take))
        self._workers += started
        await asyncio.gather(*(worker.start() for worker in started))
        await asyncio.gather(*(worker.ready() for worker in started))
        if is_producer:
            self._record_bytes = started[0].mean_bytes
        return started

    def _on_report(self, worker: WorkerProcess, report: m.Report) -> None:
        tally = self._produce if worker.plan.is_producer else self._consume
        assert tally is not None
        tally.add(report)

    # --- filling ---

    async def _fill(self) -> list[WorkerProcess]:
        """A backlog to read. Those who wrote it stay: they know where each record is."""
        self._tell("filling")
        w = self._workload
        workload = msgspec.structs.replace(
            w, kind="produce", mode="batch", records=w.fill, seconds=FILL_SECONDS, rate=0.0,
            max_bytes=1 << 50,
        )  # fmt: skip
        workers = await self._start_workers(is_producer=True, workload=workload, is_counted=False)
        go(workers)
        done = await self._done(workers, FILL_SECONDS)
        self._filled = [each for one in done for each in one.sent]
        failed = sum(each.unsure_count for each in self._filled)
        if failed:
            self._warnings.append(f"{failed:,} records of the backlog could not be written")
        return workers

    # --- the load itself ---

    async def _load(
        self, producers: list[WorkerProcess], consumers: list[WorkerProcess]
    ) -> tuple[EndedBy, list[SentRecords], list[PackedSightings]]:
        self._start_ns = go([*consumers, *producers])
        for tally in (self._produce, self._consume):
            if tally is not None:
                tally.start_ns = self._start_ns
        self._stage.begin_watching()
        over = asyncio.Event()
        async with asyncio.TaskGroup() as helpers:
            helpers.create_task(self._beat(over))
            try:
                done, ended_by = await self._run_through(producers, consumers)
            finally:
                over.set()
        await self._stage.sample(self._elapsed_s())
        sent = [each for one in done for each in one.sent]
        return ended_by, sent, [each for one in done for each in one.sightings]

    async def _run_through(
        self, producers: list[WorkerProcess], consumers: list[WorkerProcess]
    ) -> tuple[list[m.Done], EndedBy]:
        """Those that end by themselves first, then those that are told when all is read."""
        self._phase = "running"
        told_to_end = consumers if producers or self._workload.sharing == "group" else []
        done: list[m.Done] = []
        is_counted = False
        if producers or not told_to_end:
            async with self._stage.killed_broker():
                done = await self._done(producers or consumers, self._workload.seconds)
            is_counted = all(each.ended_by == "count" for each in done)
        if told_to_end:
            self._phase = "draining" if producers else "running"
            left = await drain(
                told_to_end,
                self._stage.bootstrap,
                self._stage.topics,
                self._workload,
                self._interrupted,
            )
            done += await self._done(told_to_end, SLACK_S)
            if producers and left:
                self._warnings.append(f"consumers ended with {left:,} records unread")
            elif not producers:
                is_counted = not left
        if self._interrupted.is_set():
            return done, "stop"
        return done, "count" if is_counted else "time"

    async def _done(self, workers: list[WorkerProcess], seconds: float) -> list[m.Done]:
        """All of them, when they have ended; told to stop where the run is interrupted."""
        limit_s = seconds + self._workload.delivery_timeout_s + SLACK_S
        stopping = asyncio.create_task(self._stop_where_interrupted(workers))
        try:
            return await asyncio.gather(*(worker.answer(m.Done, limit_s) for worker in workers))
        finally:
            stopping.cancel()

    async def _stop_where_interrupted(self, workers: list[WorkerProcess]) -> None:
        await self._interrupted.wait()
        for worker in workers:
            worker.tell(m.Stop())

    async def _beat(self, over: asyncio.Event) -> None:
        due_s = BEAT_AFTER_S
        while True:
            due_s += HEARTBEAT_S
            if await happens(over, max(0.0, due_s - self._elapsed_s())):
                return
            for worker in self._workers:
                worker.check()
            self._stage.check()
            await self._stage.sample(self._elapsed_s())
            self._tell(self._phase)

    # --- afterwards ---

    async def _check(
        self,
        producers: list[WorkerProcess],
        sent: list[SentRecords],
        seen: list[PackedSightings],
    ) -> Verdict:
        if not self._workload.consumes:
            seen = [(await read_back(self._stage.bootstrap, self._stage.topics)).pack()]
        is_all = self._workload.consumes and self._workload.sharing == "all"
        return await find_verdict(producers, sent, seen, each_reads_all=is_all)

    def _elapsed_s(self) -> float:
        return (time.monotonic_ns() - self._start_ns) / 1e9 if self._start_ns else 0.0

    def _tell(self, phase: str) -> None:
        self._phase = phase
        self._view.show(
            Moment(
                phase, max(0.0, self._elapsed_s()), self._produce, self._consume,
                self._record_bytes, self._stage.watch, self._stage.kills,
            )
        )  # fmt: skip


def go(workers: list[WorkerProcess]) -> int:
    """All begin at the same time, which is returned."""
    start_ns = time.monotonic_ns() + int(HEAD_START_S * 1e9)
    for worker in workers:
        worker.tell(m.Go(start_ns))
    return start_ns


def _ignore(_: WorkerProcess, __: m.Report) -> None:
    """Of workers that fill: not part of the load."""
