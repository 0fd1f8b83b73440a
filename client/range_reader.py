"""One range of one partition, as it is stored, as fast as the broker sends it: for executors.

    loop thread    fetch ──► fetch ──► fetch ──►        the next one is asked for when an answer is
                     │         │         │              in, not when it was used
                     ▼         ▼         ▼
    the caller     chunk     chunk     chunk            whole stored batches, back to back

At most MAX_WAITING_CHUNKS wait for the caller; then nothing more is asked for. A broker that is
away is waited for, up to `patience_s` each time. The first and the last batch may reach beyond the
range: the caller cuts. What the log does not have any more is told as a `Gap`, never jumped over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ..protocol import api
from ..protocol.constants import MAX_FETCH_BYTES, MIB, UNKNOWN_EPOCH
from ..protocol.errors import (
    DamagedLog,
    LogTruncated,
    OffsetOutOfRange,
    SeglogError,
    UnknownPartition,
    UnknownTopic,
)
from ..protocol.header import Hop, hop
from ..protocol.messages import FetchPartition, FetchRequest, FetchResponse, FetchResult
from .cluster import Cluster
from .loop_thread import LoopThread
from .metadata import TopicPartition

logger = logging.getLogger(__name__)

#: What a fetch meets where records are gone for good.
_LOST: Final = (OffsetOutOfRange, DamagedLog, LogTruncated, UnknownTopic, UnknownPartition)
#: Chunks that are there before the caller asks. With the one in his hands and the one on its way
#: this bounds the memory of a range: four times `fetch_bytes`.
MAX_WAITING_CHUNKS: Final = 2
DEFAULT_FETCH_BYTES: Final = 4 * MIB


class Chunk(NamedTuple):
    """Whole stored batches, back to back; `next_offset` follows the last one."""

    batches: memoryview
    next_offset: int


class Gap(NamedTuple):
    """A part of the range that is not there any more, and why."""

    first_offset: int
    end_offset: int
    reason: SeglogError | None


class RangeReader:
    """Reads with a cluster that belongs to the loop of `thread`; neither is closed here."""

    def __init__(
        self,
        thread: LoopThread,
        cluster: Cluster,
        *,
        patience_s: float,
        fetch_bytes: int = DEFAULT_FETCH_BYTES,
    ) -> None:
        self._thread = thread
        self._cluster = cluster
        self._patience_s = patience_s
        self._fetch_bytes = min(fetch_bytes, MAX_FETCH_BYTES)

    def read(self, name: TopicPartition, start: int, end: int) -> Iterator[Chunk | Gap]:
        """All of the range, in order; closing the iterator stops the fetching."""
        if start >= end:
            return
        ahead = self._thread.run(_Ahead, self, name, start, end)
        try:
            while True:
                found = self._thread.call(ahead.next())
                if found is None:
                    return
                yield found
        finally:
            self._thread.call(ahead.close())

    async def fetch(self, name: TopicPartition, offset: int, epoch: int) -> FetchResult:
        """One answer; its error raised."""

        async def once() -> FetchResult:
            request = FetchRequest(
                0, 1, self._fetch_bytes, [FetchPartition(*name, offset, self._fetch_bytes, epoch)]
            )
            connection = await self._cluster.connection(await self._cluster.leader(*name))
            response: FetchResponse = await connection.request(api.FETCH, request)
            (result,) = response.results
            if result.error is not None:
                raise result.error.to_exception()
            return result

        return await self._cluster.retry(once, timeout_s=self._patience_s)


class _Ahead:
    """The task that fetches, and what it has brought."""

    def __init__(self, reader: RangeReader, name: TopicPartition, start: int, end: int) -> None:
        self._reader = reader
        self._name = name
        self._end = end
        self._waiting: asyncio.Queue[Chunk | Gap | None] = asyncio.Queue(MAX_WAITING_CHUNKS)
        self._task = asyncio.create_task(self._run(start))

    async def next(self) -> Chunk | Gap | None:
        """None at the end of the range; what went wrong is raised after what came before it."""
        if self._waiting.empty() and self._task.done():
            self._task.result()
            return None
        getting = asyncio.ensure_future(self._waiting.get())
        try:
            await asyncio.wait({getting, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                return getting.result()
        finally:
            getting.cancel()
        return await self.next()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, offset: int) -> None:
        epoch = UNKNOWN_EPOCH
        while offset < self._end:
            found: Chunk | Gap
            try:
                result = await self._reader.fetch(self._name, offset, epoch)
            except _LOST as error:
                found = self._gap(offset, error)
                offset, epoch = found.end_offset, UNKNOWN_EPOCH
            else:
                if not result.batches:
                    # The range was there when it was planned: the log was cut back, or made anew.
                    found = Gap(offset, self._end, None)
                    offset = self._end
                else:
                    last = _last_needed(result.batches, self._end)
                    found = Chunk(result.batches[: last.position], last.hop.next_offset)
                    offset, epoch = last.hop.next_offset, last.hop.log_epoch
            await self._waiting.put(found)

    def _gap(self, offset: int, error: SeglogError) -> Gap:
        """Up to where reading can go on."""
        resume = self._end
        if isinstance(error, OffsetOutOfRange) and error.log_start > offset:
            resume = error.log_start
        elif isinstance(error, DamagedLog) and error.resume_offset > offset:
            resume = error.resume_offset
        return Gap(offset, min(resume, self._end), error)


class _Last(NamedTuple):
    hop: Hop
    position: int  # of the byte after it


def _last_needed(batches: memoryview, end: int) -> _Last:
    """The last batch that holds something of the range."""
    position = 0
    while True:
        found = hop(batches, position)
        position += found.length
        if found.next_offset >= end or position >= len(batches):
            return _Last(found, position)


def open_cluster(
    thread: LoopThread, bootstrap: str, *, patience_s: float, **options: Any
) -> Cluster:
    """A cluster in the loop of `thread`, reached; its broker is waited for."""

    async def opened() -> Cluster:
        cluster = Cluster(bootstrap, **options)
        await cluster.retry(cluster.start, timeout_s=patience_s)
        return cluster

    return thread.call(opened())
