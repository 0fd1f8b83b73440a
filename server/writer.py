"""The one writer: every append, and every change of files, happens in its thread, in turn.

    loop:    submit(append) ────► queue                      ┌──► answers, wakes fetches
    writer:                        └► group: stage → journal ┘ → write → sync → publish

While one group is written the next gathers; so the busier the broker, the more appends share a
sync. A group touches many logs; what is durable how:

    `durability=os`                            written
    a log that brings SYNC_IN_PLACE_BYTES      written and synced in place
    the only small one                         written and synced in place
    several small ones                         journal, one sync for all, then written

An error of one log is that log's alone: the others of the group are answered as if it were not
there.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from ..protocol.constants import KIB, MIB
from ..protocol.errors import InternalError, SeglogError, ShuttingDown
from ..protocol.header import BatchHeader, Buffer
from .partition import Partition
from .storage.journal import Entry, Journal
from .storage.log import AppendResult, Log, Staged

logger = logging.getLogger(__name__)

T = TypeVar("T")

SYNC_IN_PLACE_BYTES: Final = 256 * KIB
MAX_GROUP_BYTES: Final = 16 * MIB  # so that the first in a group does not wait for ever
MAX_GROUP_APPENDS: Final = 10_000

Outcome = AppendResult | SeglogError


class Append:
    """One batch for one partition; `done` is called in the loop with its outcome."""

    __slots__ = ("batch", "done", "header", "outcome", "partition")

    def __init__(
        self,
        partition: Partition,
        batch: Buffer,
        header: BatchHeader,
        done: Callable[[Outcome], None],
    ) -> None:
        self.partition = partition
        self.batch = batch
        self.header = header
        self.done = done
        self.outcome: Outcome | None = None


class _Job(NamedTuple):
    """Something else that must not run beside an append."""

    action: Callable[[], object]
    future: asyncio.Future[object]


class GroupStats(NamedTuple):
    """What one group was, for metrics."""

    appends: int
    logs: int
    length: int
    seconds: float


class Writer:
    """Started and stopped by the loop it is given."""

    def __init__(
        self,
        journal: Journal,
        loop: asyncio.AbstractEventLoop,
        *,
        max_queued_bytes: int,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        on_group: Callable[[GroupStats], None] = lambda _: None,
    ) -> None:
        self._journal = journal
        self._loop = loop
        self._clock_us = clock_us
        self._on_group = on_group
        self._queue: queue.SimpleQueue[Append | _Job | None] = queue.SimpleQueue()
        self._left_over: list[Append] = []
        self._thread = threading.Thread(target=self._run, name="seglog-writer", daemon=True)
        self._is_stopped = False
        self._max_queued_bytes = max_queued_bytes
        self._queued_bytes = 0
        self._room_waiters: list[Callable[[], None]] = []

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Finish everything that was submitted, then end the thread. May be called twice."""
        if not self._is_stopped:
            self._is_stopped = True
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    # --- called in the loop ----------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether so much waits that connections should stop reading, until `when_room`."""
        return self._queued_bytes >= self._max_queued_bytes

    def when_room(self, callback: Callable[[], None]) -> None:
        self._room_waiters.append(callback)

    def submit(self, append: Append) -> None:
        if self._is_stopped:
            append.done(ShuttingDown("the broker is stopping"))
            return
        self._queued_bytes += len(append.batch)
        self._queue.put(append)

    async def run(self, action: Callable[[], T]) -> T:
        """Run `action` in the writer's thread, between two groups."""
        if self._is_stopped:
            raise ShuttingDown("the broker is stopping")
        future: asyncio.Future[object] = self._loop.create_future()
        self._queue.put(_Job(action, future))
        return await future  # type: ignore[return-value]

    def _finish(self, group: list[Append], grown: dict[Partition, int]) -> None:
        self._queued_bytes -= sum(len(append.batch) for append in group)
        for append in group:
            assert append.outcome is not None
            append.done(append.outcome)
        for partition, length in grown.items():
            partition.grew(length)
        if self._room_waiters and not self.is_full:
            waiters, self._room_waiters = self._room_waiters, []
            for callback in waiters:
                callback()

    def _finish_job(self, job: _Job, result: object, error: BaseException | None) -> None:
        if job.future.cancelled():
            return
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)

    # --- the writer's thread ---------------------------------------------------------------------

    def _run(self) -> None:
        stopping = False
        while not stopping or self._left_over:
            group, job, stopped = self._gather(wait=not stopping)
            stopping = stopping or stopped
            if group:
                self._write_group(group)
            if job is not None:
                self._run_job(job)

    def _gather(self, *, wait: bool) -> tuple[list[Append], _Job | None, bool]:
        """The next group, and the job that came behind it; waits only where there is nothing."""
        group, self._left_over = self._left_over, []
        length = sum(len(append.batch) for append in group)
        wait = wait and not group
        while length < MAX_GROUP_BYTES and len(group) < MAX_GROUP_APPENDS:
            try:
                item = self._queue.get(block=wait)
            except queue.Empty:
                break
            wait = False
            if item is None:
                return group, None, True
            if isinstance(item, _Job):
                return group, item, False
            group.append(item)
            length += len(item.batch)
        return group, None, False

    def _run_job(self, job: _Job) -> None:
        result: object = None
        failure: BaseException | None = None
        try:
            result = job.action()
        except BaseException as error:
            failure = error
        self._call_loop(self._finish_job, job, result, failure)

    def _write_group(self, group: list[Append]) -> None:
        started = time.perf_counter()
        grown: dict[Partition, int] = {}
        try:
            grown = self._append_group(group)
        except Exception:
            # No outcome was set for what was not reached: those appends are refused, the rest
            # holds.
            logger.exception("a group of %d appends failed", len(group))
        over = set(map(id, self._left_over))
        done = [append for append in group if id(append) not in over] if over else group
        for append in done:
            if append.outcome is None:
                append.outcome = InternalError("the writer failed")
        self._on_group(
            GroupStats(len(done), len(grown), sum(grown.values()), time.perf_counter() - started)
        )
        self._call_loop(self._finish, done, grown)

    def _append_group(self, group: list[Append]) -> dict[Partition, int]:
        by_partition: dict[Partition, list[Append]] = {}
        for append in group:
            by_partition.setdefault(append.partition, []).append(append)
        staged = self._stage(by_partition)
        self._make_durable(staged)
        return {
            partition: parts.length for partition, (_, parts, _) in staged.items() if parts.length
        }

    def _stage(self, by_partition: dict[Partition, list[Append]]) -> _StagedGroup:
        now_us = self._clock_us()
        staged: _StagedGroup = {}
        for partition, appends in by_partition.items():
            try:
                log = partition.log
                parts = log.stage([(append.batch, append.header) for append in appends], now_us)
            except SeglogError as error:
                _set_outcomes(appends, error)
                continue
            staged[partition] = (log, parts, appends[: parts.taken])
            self._left_over += appends[parts.taken :]  # they go into the next segment
        return staged

    def _make_durable(self, staged: _StagedGroup) -> None:
        small = {
            partition: (log, parts, appends)
            for partition, (log, parts, appends) in staged.items()
            if log.config.syncs_before_ack and 0 < parts.length < SYNC_IN_PLACE_BYTES
        }
        journaled = len(small) > 1 and self._write_journal(small)
        for partition, (log, parts, appends) in list(staged.items()):
            in_journal = journaled and partition in small
            try:
                log.write(parts, is_journaled=in_journal)
                if log.config.syncs_before_ack and not in_journal:
                    log.sync()
            except SeglogError as error:
                _set_outcomes(appends, error)
                del staged[partition]
                continue
            log.publish()
            for append, outcome in zip(appends, parts.results, strict=True):
                append.outcome = outcome

    def _write_journal(self, small: _StagedGroup) -> bool:
        entries = [
            Entry(
                partition.topic_id,
                partition.number,
                parts.segment.base_offset,
                parts.position,
                parts.length,
                parts.buffers,
                log,
            )
            for partition, (log, parts, _) in small.items()
        ]
        return self._journal.append(entries)

    def _call_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop is closed: nobody waits for the answer any more
            logger.debug("an answer came after the loop was closed")


_StagedGroup = dict[Partition, tuple[Log, Staged, list[Append]]]


def _set_outcomes(appends: Sequence[Append], outcome: Outcome) -> None:
    for append in appends:
        append.outcome = outcome
