"""The one writer: every append, and every change of files, happens in its turn.

    loop:    submit(append) ─► gathered ─┬► queue               ┌──► answers, wakes fetches
    thread:                              │   └► group: commit ──┤
    loop:                                └► at once: commit ────┘

While one group is written (group_commit.py) the next gathers; so the busier the broker, the more
appends share a sync. What the loop reads from all sockets in one turn is handed over at the end of
that turn, together: a writer woken by the first of them would fight the loop for the interpreter,
and sync it alone.

Two threads that hand over to each other take longer than a small write to the page cache. So the
loop does such a write itself, at once, where the thread has nothing to do: then it also is the only
one. Whatever may wait for the disk (a sync, space, a new segment) is the thread's.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from ..protocol.constants import KIB, MIB
from ..protocol.errors import ShuttingDown
from ..protocol.header import BatchHeader, Buffer
from .group_commit import Append, Committed, GroupCommit, Outcome
from .metrics import Metrics
from .partition import Partition
from .storage.journal import Journal

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_GROUP_BYTES: Final = 16 * MIB  # so that the first in a group does not wait for ever
MAX_GROUP_APPENDS: Final = 10_000
MAX_AT_ONCE_BYTES: Final = 64 * KIB
#: A write to the page cache that takes longer than this had to wait for the disk after all: the
#: system holds writers back while it has too much unwritten. The thread writes for a while then.
SLOW_WRITE_S: Final = 0.01
AVOID_SLOW_WRITES_S: Final = 1.0


class _Job(NamedTuple):
    """Something else that must not run beside an append."""

    action: Callable[[], object]
    future: asyncio.Future[object]


_Item = Append | _Job | None  # None: the end


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
        self._clock_us = clock_us
        self._group_commit = GroupCommit(journal, clock_us)
        self._loop = loop
        self._metrics = metrics
        self._gathered: list[_Item] = []
        self._queue: queue.SimpleQueue[Sequence[_Item]] = queue.SimpleQueue()
        self._under_way = 0  # handed to the thread, and not finished
        self._at_once_from = 0.0  # the loop's time; before it, the loop writes nothing itself
        self._received: deque[_Item] = deque()  # the thread's own
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
            self._gather(None)
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
        self._gather(append)

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
        self._gather(_Job(action, future))
        return await future  # type: ignore[return-value]

    def _gather(self, item: _Item) -> None:
        if not self._gathered:
            self._loop.call_soon(self._hand_over)
        self._gathered.append(item)

    def _hand_over(self) -> None:
        gathered, self._gathered = self._gathered, []
        if self._under_way == 0 and (group := self._quick(gathered)):
            self._write_at_once(group)
        else:
            self._put(gathered)

    def _put(self, items: Sequence[_Item]) -> None:
        self._under_way += len(items)
        self._queue.put(items)

    def _quick(self, items: Sequence[_Item]) -> list[Append] | None:
        """These as a group, if writing it waits for nothing."""
        if self._loop.time() < self._at_once_from:
            return None
        now_us = self._clock_us()
        length = 0
        group = []
        for item in items:
            if not isinstance(item, Append):
                return None
            length += len(item.batch)
            log = item.partition.log_or_none
            # As if all of them were for this one log: few are small and do not fit it so.
            if length > MAX_AT_ONCE_BYTES or log is None or not log.has_room(length, now_us):
                return None
            group.append(item)
        return group

    def _write_at_once(self, group: list[Append]) -> None:
        started = time.perf_counter()
        done, left_over, grown = self._commit(group)
        if time.perf_counter() - started > SLOW_WRITE_S:
            self._at_once_from = self._loop.time() + AVOID_SLOW_WRITES_S
        if left_over:
            self._put(left_over)
        self._finish(done, grown)

    def _finish_group(self, group: list[Append], grown: dict[Partition, int]) -> None:
        self._under_way -= len(group)
        self._finish(group, grown)

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
        self._under_way -= 1
        if job.future.cancelled():
            return
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)

    # --- called by whoever writes ----------------------------------------------------------------

    def _commit(self, group: list[Append]) -> Committed:
        started = time.perf_counter()
        committed = self._group_commit.commit(group)
        seconds = time.perf_counter() - started
        grown = committed.grown
        self._metrics.group_committed(len(committed.done), len(grown), sum(grown.values()), seconds)
        return committed

    # --- the writer's thread ---------------------------------------------------------------------

    def _run(self) -> None:
        stopping = False
        while not stopping or self._left_over:
            group, job, stopped = self._next_group(wait=not stopping)
            stopping = stopping or stopped
            if group:
                self._write_group(group)
            if job is not None:
                self._run_job(job)
            del group, job  # or the last batches, and a deleted log, would stay while it waits

    def _next_group(self, *, wait: bool) -> tuple[list[Append], _Job | None, bool]:
        """The next group, and the job that came behind it; waits only where there is nothing."""
        group, self._left_over = self._left_over, []
        length = sum(len(append.batch) for append in group)
        while length < MAX_GROUP_BYTES and len(group) < MAX_GROUP_APPENDS:
            if not self._received and not self._receive(wait=wait and not group):
                break
            item = self._received.popleft()
            if item is None:
                return group, None, True
            if isinstance(item, _Job):
                return group, item, False
            group.append(item)
            length += len(item.batch)
        return group, None, False

    def _receive(self, *, wait: bool) -> bool:
        """Take what the loop handed over, if need be when it does; whether there was anything."""
        try:
            self._received.extend(self._queue.get(block=wait))
        except queue.Empty:
            return False
        return True

    def _run_job(self, job: _Job) -> None:
        result: object = None
        failure: BaseException | None = None
        try:
            result = job.action()
        except BaseException as error:
            failure = error
        self._call_loop(self._finish_job, job, result, failure)

    def _write_group(self, group: list[Append]) -> None:
        done, self._left_over, grown = self._commit(group)
        self._call_loop(self._finish_group, done, grown)

    def _call_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop is closed: nobody waits for the answer any more
            logger.debug("an answer came after the loop was closed")
