"""One range of one partition, as it is stored, as fast as the broker sends it: for executors.

    asked     first       second      third     …       the next one is asked for before an answer
                │           │  └──────┐ │               is used, and comes in meanwhile
                ▼           ▼         ▼ ▼
    the caller  chunk       chunk       chunk   …       whole stored batches, back to back

The first answer comes through the cluster's connection, and is all that a short range needs. The
others come through a socket that the caller's own thread reads (fetch_socket.py). Where that does
not work, for any reason, the cluster is asked: it waits for a broker that is away, up to
`patience_s` each time. A broker that has too many connections is not asked for one again. The first
and the last batch may reach beyond the range: the caller cuts. What the log does not have any more
is told as a `Gap`, never jumped over.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from time import monotonic
from typing import Any, Final, NamedTuple

from ..protocol import api
from ..protocol.constants import MAX_FETCH_BYTES, MIB, UNKNOWN_EPOCH
from ..protocol.errors import (
    DamagedLog,
    LogTruncated,
    OffsetOutOfRange,
    SeglogError,
    TooManyConnections,
    UnknownPartition,
    UnknownTopic,
)
from ..protocol.header import Hop, hop
from ..protocol.messages import FetchPartition, FetchRequest, FetchResponse, FetchResult
from .cluster import Cluster
from .fetch_socket import Allocate, FetchSocket
from .loop_thread import LoopThread
from .metadata import Address, TopicPartition

logger = logging.getLogger(__name__)

#: What a fetch meets where records are gone for good.
_LOST: Final = (OffsetOutOfRange, DamagedLog, LogTruncated, UnknownTopic, UnknownPartition)
DEFAULT_FETCH_BYTES: Final = 4 * MIB
#: Nothing is asked for ahead of a caller that takes longer than this for a chunk: the broker would
#: take him for one that does not read, and close the connection. He does not notice the wait.
AHEAD_WITHIN_S: Final = 1.0


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
        ahead_within_s: float = AHEAD_WITHIN_S,
        allocate: Allocate = bytearray,
    ) -> None:
        """`allocate` is the memory that chunks come in. A range holds two of `fetch_bytes`: the one
        in the caller's hands, and the one that comes in."""
        self._thread = thread
        self._cluster = cluster
        self._patience_s = patience_s
        self._fetch_bytes = min(fetch_bytes, MAX_FETCH_BYTES)
        self._ahead_within_s = ahead_within_s
        self._allocate = allocate

    def read(self, name: TopicPartition, start: int, end: int) -> Iterator[Chunk | Gap]:
        """All of the range, in order; closing the iterator stops the fetching."""
        way = _Way(self, name)
        offset, epoch = start, UNKNOWN_EPOCH
        try:
            while offset < end:
                found: Chunk | Gap
                try:
                    result = way.fetch(offset, epoch)
                except _LOST as error:
                    found = _gap(offset, end, error)
                    offset, epoch = found.end_offset, UNKNOWN_EPOCH
                else:
                    if not result.batches:
                        # The range was there when it was planned: the log was cut back, or made
                        # anew.
                        found = Gap(offset, end, None)
                        offset = end
                    else:
                        last = _last_needed(result.batches, end)
                        found = Chunk(result.batches[: last.position], last.hop.next_offset)
                        offset, epoch = last.hop.next_offset, last.hop.log_epoch
                if offset < end:
                    way.ask_ahead(offset, epoch)
                taken = monotonic()
                yield found
                way.is_hurried = monotonic() - taken < self._ahead_within_s
        finally:
            way.close()

    def request(self, name: TopicPartition, offset: int, epoch: int) -> FetchRequest:
        asked = FetchPartition(*name, offset, self._fetch_bytes, epoch)
        return FetchRequest(0, 1, self._fetch_bytes, [asked])

    def fetch(self, name: TopicPartition, offset: int, epoch: int) -> FetchResult:
        """One answer through the cluster, which tries again; its error raised."""

        async def once() -> FetchResult:
            response: FetchResponse = await self._cluster.request_to_leader(
                *name, api.FETCH, self.request(name, offset, epoch)
            )
            return _result(response)

        return self._thread.call(self._cluster.retry(once, timeout_s=self._patience_s))

    def open_socket(self, name: TopicPartition) -> FetchSocket:
        """To the leader of the partition; once."""

        async def leader() -> tuple[Address, int]:
            broker_id = await self._cluster.leader(*name)
            return await self._cluster.reached_at(broker_id), broker_id

        return FetchSocket.open(
            *self._thread.call(leader()),
            client_name=self._cluster.client_name,
            connect_timeout_s=self._cluster.connect_timeout_s,
            timeout_s=self._cluster.request_timeout_s,
            allocate=self._allocate,
        )


class _Way:
    """How one range is fetched: at first, and in need, through the cluster; else by a socket."""

    def __init__(self, reader: RangeReader, name: TopicPartition) -> None:
        self._reader = reader
        self._name = name
        self._socket: FetchSocket | None = None
        self._is_begun = False
        self._is_refused = False  # a socket, by a broker that has too many
        self._is_asked = False
        self.is_hurried = False  # whether the caller took the last chunk soon

    def ask_ahead(self, offset: int, epoch: int) -> None:
        """Have the broker send what `fetch` will be called for next."""
        if self._socket is not None and self.is_hurried:
            try:
                self._ask(self._socket, offset, epoch)
            except SeglogError as error:
                self._give_up(error)

    def fetch(self, offset: int, epoch: int) -> FetchResult:
        if self._is_begun and not self._is_refused:
            try:
                return self._by_socket(offset, epoch)
            except _LOST:
                raise
            except SeglogError as error:
                self._give_up(error)
        self._is_begun = True
        return self._reader.fetch(self._name, offset, epoch)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _by_socket(self, offset: int, epoch: int) -> FetchResult:
        if self._socket is None:
            self._socket = self._reader.open_socket(self._name)
        if not self._is_asked:
            self._ask(self._socket, offset, epoch)
        self._is_asked = False
        return _result(self._socket.answer())

    def _ask(self, socket: FetchSocket, offset: int, epoch: int) -> None:
        socket.ask(self._reader.request(self._name, offset, epoch))
        self._is_asked = True

    def _give_up(self, error: SeglogError) -> None:
        logger.debug("%s: the cluster is asked instead: %s", self._name, error)
        self.close()
        self._socket, self._is_asked = None, False
        self._is_refused = isinstance(error, TooManyConnections)


def _result(response: FetchResponse) -> FetchResult:
    """The only one; its error raised."""
    (result,) = response.results
    if result.error is not None:
        raise result.error.to_exception()
    return result


def _gap(offset: int, end: int, error: SeglogError) -> Gap:
    """Up to where reading can go on."""
    resume = end
    if isinstance(error, OffsetOutOfRange) and error.log_start > offset:
        resume = error.log_start
    elif isinstance(error, DamagedLog) and error.resume_offset > offset:
        resume = error.resume_offset
    return Gap(offset, min(resume, end), error)


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
