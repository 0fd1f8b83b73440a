"""fetch: slices of the log's map, straight to the socket; waiting for data costs nothing.

1. Read what is in memory. A partition whose data is cold is warmed in a reader thread first, so
   that the
   loop never waits for the disk.
2. Enough bytes, an error, or no time left: answer.
3. Else wait for an append or the deadline, then answer with what is there.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING

from ...protocol.api import FETCH
from ...protocol.constants import UNKNOWN_EPOCH
from ...protocol.errors import SeglogError
from ...protocol.fetch_frame import FetchedPartition, fetch_response_parts
from ...protocol.header import count_records
from ...protocol.messages import FetchPartition, FetchRequest, WireError
from ..fetch_waiters import FetchWaiter
from ..partition import Partition
from ..storage.filesystem import storage_error
from ..storage.reading import Found
from ..topics import check_not_internal

if TYPE_CHECKING:
    from ..app import Broker
    from ..connection import Connection

_NOTHING = Found(memoryview(b""), 0, 0)


def handle_fetch(
    broker: Broker,
    connection: Connection,
    place: int,
    correlation_id: int,
    request: FetchRequest,
) -> None:
    broker.check_array(request.partitions, "partitions")
    _Fetch(broker, connection, place, correlation_id, request).attempt()


class _Fetch:
    """One fetch request on its way."""

    __slots__ = (
        "_broker",
        "_connection",
        "_correlation_id",
        "_is_last",
        "_max_bytes",
        "_place",
        "_request",
        "_wait_began",
        "_waited_s",
        "_waiter",
        "_warmed",
    )

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        place: int,
        correlation_id: int,
        request: FetchRequest,
    ) -> None:
        self._broker = broker
        self._connection = connection
        self._place = place
        self._correlation_id = correlation_id
        self._request = request
        self._max_bytes = min(request.max_bytes, broker.config.max_fetch_bytes)
        self._warmed = False
        self._is_last = request.max_wait_ms == 0
        self._waiter: FetchWaiter | None = None
        self._wait_began = 0.0
        self._waited_s = 0.0

    def attempt(self) -> None:
        """Answer, or arrange to be called again."""
        if self._connection.is_choked:  # an answer now would only add to what waits
            self._connection.when_writable(self.attempt)
            return
        results: list[FetchedPartition] = []
        partitions: list[Partition] = []
        taken: list[tuple[Partition, Found]] = []
        cold: list[tuple[Partition, FetchPartition, int]] = []
        total = 0
        failed = False
        for asked in self._request.partitions:
            room = self._max_bytes - total
            try:
                check_not_internal(asked.topic)
                partition = self._broker.topics.partition(asked.topic, asked.partition)
                partitions.append(partition)
                found = self._read(partition, asked, room, may_overrun=total == 0)
                if found is None:
                    cold.append((partition, asked, min(asked.max_bytes, room)))
                    found = _NOTHING
                log = partition.log
                batches = found.batches
                results.append(FetchedPartition(None, log.log_start, log.durable_end, batches))
                if batches:
                    taken.append((partition, found))
                    total += len(batches)
            except SeglogError as error:
                failed = True
                results.append(FetchedPartition(WireError.of(error), -1, -1, b""))
        if cold and not self._warmed:
            self._warmed = True
            self._connection.start_task(self._warm(cold))
        elif (
            self._is_last
            or failed
            or self._connection.is_stopping
            or total >= min(self._request.min_bytes, self._max_bytes)
        ):
            self._count(taken)
            if failed:
                self._count_errors(results)
            parts = fetch_response_parts(self._correlation_id, results)
            self._connection.respond(self._place, parts, FETCH.key, self._waited_s)
        else:
            self._wait(partitions, self._request.min_bytes - total)

    def _read(
        self, partition: Partition, asked: FetchPartition, room: int, *, may_overrun: bool
    ) -> Found | None:
        log = partition.log
        if asked.epoch != UNKNOWN_EPOCH:
            log.check_epoch(asked.offset, asked.epoch)
        if room <= 0:
            return _NOTHING
        wanted = min(asked.max_bytes, room)
        try:
            if self._warmed:  # it was brought in just now: what is not there after all is read here
                found: Found | None = log.find(asked.offset, wanted)
            else:
                found = log.find_if_cached(asked.offset, wanted)
        except OSError as error:
            partition.log  # noqa: B018  a topic that was deleted meanwhile says so
            raise storage_error(error, f"reading {log.name}") from error
        # One batch is always read whole; only the first of a response may pass the limit for it.
        if found is not None and len(found.batches) > room and not may_overrun:
            return _NOTHING
        return found

    def _count(self, taken: list[tuple[Partition, Found]]) -> None:
        """Only what is answered: an attempt that waits instead is not the last one."""
        for partition, found in taken:
            records = found.next_offset - found.base_offset
            if partition.log_or_none is not None and partition.log_or_none.config.is_compacted:
                records = count_records(found.batches)  # offsets have gaps
            partition.traffic.fetched(records, len(found.batches))

    def _count_errors(self, results: list[FetchedPartition]) -> None:
        for result in results:
            if result.error is not None:
                self._broker.metrics.failed(FETCH.key, result.error.code)

    def _wait(self, partitions: list[Partition], missing_bytes: int) -> None:
        self._is_last = True
        self._warmed = False
        self._wait_began = perf_counter()
        self._waiter = FetchWaiter(
            partitions, missing_bytes, self._request.max_wait_ms / 1000, self._wake
        )
        self._connection.waiters.add(self._waiter)

    def _wake(self) -> None:
        if self._waiter is not None:
            self._connection.waiters.discard(self._waiter)
        self._waited_s = perf_counter() - self._wait_began
        self._broker.metrics.fetch_wait.observe(self._waited_s)
        self.attempt()

    async def _warm(self, cold: list[tuple[Partition, FetchPartition, int]]) -> None:
        loop = asyncio.get_running_loop()
        for partition, asked, wanted in cold:
            try:
                await loop.run_in_executor(
                    self._broker.readers, partition.log.warm, asked.offset, wanted
                )
            except (SeglogError, OSError):
                pass  # the second attempt meets it again, and answers with it
        self.attempt()
