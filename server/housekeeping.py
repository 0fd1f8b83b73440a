"""What a broker does beside traffic: retention, rolling by age, flushing, checkpoints, compaction.

Each kind of work has a task of its own, goes through the partitions one at a time, and hands what
changes files to the writer in small pieces; so traffic waits for one piece at the most. A failure
is logged and met again at the next round.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from ..protocol.errors import SeglogError, ShuttingDown, StorageError
from .storage import compaction
from .storage.log import Log
from .storage.retention import apply_retention

if TYPE_CHECKING:
    from .app import Broker

logger = logging.getLogger(__name__)

_FLUSH_STEP_MS: Final = 50  # how finely flush.interval.ms of topics with durability=os is kept
_COMPACTION_SHARE: Final = 0.25  # of one thread's time, so that the loop keeps the interpreter


class Housekeeping:
    """Owned by the broker: started after its logs are open, stopped before they are closed."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False
        # Weak: a deleted topic's log must go, and with it the map that keeps its disk space.
        self._flushed: WeakKeyDictionary[Log, float] = WeakKeyDictionary()

    def start(self) -> None:
        config = self._broker.config
        rounds: list[tuple[Callable[[Log], Awaitable[None]], int]] = [
            (self._tidy, config.housekeeping_interval_ms),
            (self._checkpoint, config.checkpoint_interval_ms),
            (self._compact, config.compaction_interval_ms),
            (self._flush, _FLUSH_STEP_MS),
        ]
        self._tasks = [
            asyncio.create_task(self._repeat(work, interval_ms / 1000))
            for work, interval_ms in rounds
        ]

    async def stop(self) -> None:
        """May be called twice."""
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _repeat(self, work: Callable[[Log], Awaitable[None]], interval_s: float) -> None:
        while not self._is_stopping:
            await asyncio.sleep(interval_s)
            await self._round(work)

    async def _round(self, work: Callable[[Log], Awaitable[None]]) -> None:
        # A function of its own: between rounds nothing here holds on to a log that is deleted.
        for partition in self._broker.topics.all_partitions():
            log = partition.log_or_none
            if log is None or log.offline_reason or partition.is_deleted:
                continue
            try:
                await work(log)
            except ShuttingDown:
                self._is_stopping = True
                return
            except (SeglogError, OSError) as error:
                if not partition.is_deleted:
                    self._broker.metrics.housekeeping_failures += 1
                    logger.error("%s: %s", log.name, error)
            except Exception:  # a defect of ours: the other logs, and the next round, are not its
                self._broker.metrics.housekeeping_failures += 1
                logger.exception("%s: housekeeping failed", log.name)

    async def _tidy(self, log: Log) -> None:
        now_us = time.time_ns() // 1000

        def tidy() -> None:
            if log.is_closed:
                return
            log.roll_if_due(now_us)
            for gone in apply_retention(log, now_us):
                self._broker.metrics.deleted_segments += 1
                logger.info("%s: retention removed %s", log.name, gone.file)
            log.producers.expire(now_us - log.config.producer_expiry_ms * 1000)

        await self._broker.writer.run(tidy)

    async def _checkpoint(self, log: Log) -> None:
        if log.needs_checkpoint:
            await self._broker.writer.run(log.checkpoint)

    async def _flush(self, log: Log) -> None:
        """Sync a topic with durability=os; beside the writer, which need not wait for it."""
        if log.config.syncs_before_ack or log.synced_end == log.log_end:
            return
        now = time.monotonic()
        if now - self._flushed.get(log, 0.0) >= log.config.flush_interval_ms / 1000:
            self._flushed[log] = now
            await asyncio.get_running_loop().run_in_executor(self._broker.readers, log.sync_beside)

    async def _compact(self, log: Log) -> None:
        if not log.config.is_compacted:
            return
        now_us = time.time_ns() // 1000
        throttle = _Throttle(lambda: self._is_stopping)
        loop = asyncio.get_running_loop()
        segments = log.segments
        try:
            cleaned = await loop.run_in_executor(
                self._broker.readers, partial(compaction.clean, log, now_us, throttle)
            )
        except (StorageError, OSError):
            if log.segments is segments:
                raise
            return  # retention was quicker, and took a file away: the next round looks again
        if cleaned is not None:
            await self._broker.writer.run(partial(compaction.commit, log, cleaned, now_us))
            self._broker.metrics.compactions += 1
            self._broker.metrics.compacted_records += cleaned.removed_records
            logger.info("%s: compaction removed %d records", log.name, cleaned.removed_records)


class _Throttle:
    """Called between batches: keeps a long pass from holding the interpreter for long."""

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        self._is_stopping = is_stopping
        self._began = time.perf_counter()

    def __call__(self) -> None:
        if self._is_stopping():
            raise ShuttingDown("the broker is stopping")
        worked = time.perf_counter() - self._began
        if worked > 0.002:
            time.sleep(worked * (1 - _COMPACTION_SHARE) / _COMPACTION_SHARE)
            self._began = time.perf_counter()
