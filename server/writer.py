"""The one writer: every append, and every change of files, happens in its thread, in turn.

    loop:    submit(append) ────► queue                ┌──► answers, wakes fetches
    writer:                        └► group: commit ───┘

While one group is written (group_commit.py) the next gathers; so the busier the broker, the more
appends share a sync.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from ..protocol.constants import MIB
from ..protocol.errors import ShuttingDown
from ..protocol.header import BatchHeader, Buffer
from .group_commit import Append, GroupCommit, Outcome
from .metrics import Metrics
from .partition import Partition
from .storage.journal import Journal

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_GROUP_BYTES: Final = 16 * MIB  # so that the first in a group does not wait for ever
MAX_GROUP_APPENDS: Final = 10_000


class _Job(NamedTuple):
    """Something else that must not run beside an append."""

    action: Callable[[], object]
    future: asyncio.Future[object]


class Writer:
    """Started and stopped by the loop it is given."""

    def __init__(
        self,
        journal: Journal,
        loop: asyncio.AbstractEventLoop,
        *,
        max_queued_bytes: int,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        metrics: Metrics,
    ) -> None:
        self._group_commit = GroupCommit(journal, clock_us)
        self._loop = loop
        self._metrics = metrics
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
    def queued_bytes(self) -> int:
        """Of batches that are not answered yet."""
        return self._queued_bytes

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

    def append(
        self, partition: Partition, batch: Buffer, header: BatchHeader
    ) -> asyncio.Future[Outcome]:
        """Submit one batch, for those who wait for its outcome."""
        future: asyncio.Future[Outcome] = self._loop.create_future()

        def settle(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        self.submit(Append(partition, batch, header, settle))
        return future

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
            self._tell(append.done, append.outcome)
        for partition, length in grown.items():
            self._tell(partition.grew, length)
        if self._room_waiters and not self.is_full:
            waiters, self._room_waiters = self._room_waiters, []
            for callback in waiters:
                self._tell(callback)

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call one of many: what goes wrong with it must not keep the others waiting."""
        try:
            callback(*arguments)
        except Exception:
            logger.exception("an answer failed")

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
            del group, job  # or the last batches, and a deleted log, would stay while it waits

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
        done, self._left_over, grown = self._group_commit.commit(group)
        seconds = time.perf_counter() - started
        self._metrics.group_committed(len(done), len(grown), sum(grown.values()), seconds)
        self._call_loop(self._finish, done, grown)

    def _call_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop is closed: nobody waits for the answer any more
            logger.debug("an answer came after the loop was closed")
