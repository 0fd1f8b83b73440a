"""After trouble: a partition's batches again, neither lost nor doubled, in their order.

A partition that recovers sends nothing until all it has in flight is answered (or the connection
lost), waits, and then sends what is not settled again: the same bytes, the same sequence numbers,
the same order. So the broker can tell what it has already. A new epoch begins only when the broker
itself said that the first unsettled batch does not follow what it has: then none of them is in its
log, and all of them are numbered again from 0.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from ..protocol.errors import SeglogError
from .accumulator import Accumulator
from .backoff import backoff_s
from .batches import PartitionQueue
from .cluster import Cluster

logger = logging.getLogger(__name__)


class Resender(Protocol):
    """What recovery needs of the sender."""

    accumulator: Accumulator
    epoch: int

    async def init_producer(self) -> None: ...
    def work(self, queue: PartitionQueue) -> None: ...


class Recovery:
    """All partitions in trouble: each waits its own time, then all that are due go together."""

    def __init__(self, cluster: Cluster, sender: Resender) -> None:
        self._cluster = cluster
        self._sender = sender
        self._timers: dict[PartitionQueue, asyncio.TimerHandle] = {}
        self._due: dict[PartitionQueue, None] = {}
        self._wake = asyncio.Event()

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def begin(self, queue: PartitionQueue) -> None:
        """Send nothing of this partition but as told above."""
        queue.is_recovering = True
        self.go_on(queue)

    def go_on(self, queue: PartitionQueue) -> None:
        """Once everything in flight is answered: try again after a while."""
        if queue.unanswered or queue in self._timers or queue in self._due:
            return
        delay = backoff_s(queue.attempt)
        queue.attempt += 1
        loop = asyncio.get_running_loop()
        self._timers[queue] = loop.call_later(delay, self._is_due, queue)

    def _is_due(self, queue: PartitionQueue) -> None:
        del self._timers[queue]
        self._due[queue] = None
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled, by the sender."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            queues = list(self._due)
            try:
                await self._cluster.refresh(sorted({queue.topic for queue in queues}))
                if any(queue.needs_epoch and queue.epoch == self._sender.epoch for queue in queues):
                    await self._sender.init_producer()
            except SeglogError as error:
                logger.warning("producer: %s", error)
                for queue in queues:
                    del self._due[queue]
                    self.go_on(queue)
                continue
            for queue in queues:
                del self._due[queue]
                self._resume(queue)

    def _resume(self, queue: PartitionQueue) -> None:
        queue.take_back()
        if queue.is_doubtful:
            queue.is_doubtful = False
            self._fail_if_unknown(queue)
        if queue.needs_epoch:
            queue.needs_epoch = False
            queue.epoch = self._sender.epoch
            queue.next_sequence = 0
            for batch in queue.waiting:
                batch.base_sequence = -1
        queue.is_recovering = False
        self._sender.work(queue)

    def _fail_if_unknown(self, queue: PartitionQueue) -> None:
        """The broker did not know the partition: if metadata does not either, that is final."""
        try:
            self._cluster.metadata.leader(queue.topic, queue.partition)
        except SeglogError as error:
            for batch in [*queue.waiting, *([queue.opened] if queue.opened else [])]:
                self._sender.accumulator.settle(batch, -1, error)
            queue.waiting.clear()
