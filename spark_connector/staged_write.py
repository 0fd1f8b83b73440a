"""What one task writes: Arrow batches in, batches staged in the broker out.

Rows are gathered by partition until they are a batch; batches travel, several requests at a time,
while the next are made. When `finish` returns, all of it is durable in the broker, and no reader
sees it: that is for the commit. In memory are `bufferBytes` of rows and MAX_IN_FLIGHT requests.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future
from typing import Any, Final

import pyarrow as pa

from ..client.blocking_transactions import SyncTransactions
from ..client.partitioner import PARTITIONERS, StickyTurn
from ..client.transactions import Target
from ..protocol.constants import MAX_BATCH_BYTES, MIB
from .options import Options
from .write_columns import PendingRows, RowColumns, record_batch_pieces
from .write_options import BATCH_BYTES, BUFFER_BYTES, COMPRESSION, PARTITIONER, TOPIC
from .write_partitions import Arranged, arrange

MAX_IN_FLIGHT: Final = 4
REQUEST_BYTES: Final = 4 * MIB
_REQUEST_BATCHES: Final = 1_000


class StagedWrite:
    """One attempt at one task's part of a step."""

    def __init__(
        self, client: SyncTransactions, transaction: str, step: int, options: Options
    ) -> None:
        self._client = client
        self._transaction = transaction
        self._step = step
        self._topic = options.get(TOPIC)
        self._codec = options[COMPRESSION]
        self._partitioner = PARTITIONERS[options[PARTITIONER]]
        self._batch_bytes = options[BATCH_BYTES]
        self._buffer_bytes = options[BUFFER_BYTES]
        self._counts: dict[str, int] = {}
        self._turns: dict[str, StickyTurn] = {}
        self._sticky: dict[str, int] = {}
        self._pending: dict[tuple[str, int], PendingRows] = {}
        self._held_bytes = 0  # of Arrow batches that pending rows are slices of
        self._request: list[Target] = []
        self._request_bytes = 0
        self._in_flight: deque[Future[list[int]]] = deque()
        self._positions: list[int] = []
        self.record_count = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take all rows of an Arrow batch."""
        for piece in record_batch_pieces(batch, self._buffer_bytes):
            for arranged in arrange(piece, self._topic, self._partition_count, self._partitioner):
                self._take(arranged)
            self.record_count += piece.num_rows
            # A slice keeps the whole Arrow batch in memory, so that is what counts.
            self._held_bytes += piece.nbytes
            if self._held_bytes >= self._buffer_bytes:
                self._flush()

    def finish(self) -> list[int]:
        """Send the rest and wait until all is durable; the positions, for the commit."""
        self._flush()
        self._send()
        while self._in_flight:
            self._settle_one()
        return self._positions

    def _partition_count(self, topic: str) -> int:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._client.partition_count(topic)
        return count

    # --- gathering ---

    def _take(self, arranged: Arranged) -> None:
        rows = _columns(arranged.rows)
        for topic, partition, start, stop in arranged.runs:
            if partition is None:
                self._take_sticky(rows, topic, start, stop)
            else:
                self._take_for(rows, topic, partition, start, stop)

    def _take_for(
        self, rows: RowColumns, topic: str, partition: int, start: int, stop: int
    ) -> None:
        while start < stop:
            pending = self._pending_for(topic, partition)
            start = pending.take(rows, start, stop, self._batch_bytes)
            if start < stop:
                self._encode(topic, partition)

    def _take_sticky(self, rows: RowColumns, topic: str, start: int, stop: int) -> None:
        """Rows without a key: one partition until its batch is full, then the next in turn."""
        while start < stop:
            partition = self._sticky.get(topic)
            if partition is None:
                turn = self._turns.setdefault(topic, StickyTurn())
                partition = self._sticky[topic] = turn.next(self._partition_count(topic))
            pending = self._pending_for(topic, partition)
            start = pending.take(rows, start, stop, self._batch_bytes)
            if start < stop:
                self._encode(topic, partition)
                del self._sticky[topic]

    def _pending_for(self, topic: str, partition: int) -> PendingRows:
        found = self._pending.get((topic, partition))
        if found is None:
            found = self._pending[topic, partition] = PendingRows()
        return found

    def _flush(self) -> None:
        for topic, partition in list(self._pending):
            self._encode(topic, partition)
        self._sticky.clear()
        self._held_bytes = 0

    # --- sending ---

    def _encode(self, topic: str, partition: int) -> None:
        pending = self._pending.pop((topic, partition))
        batch = pending.encode(codec=self._codec, max_bytes=MAX_BATCH_BYTES)
        if self._request and (
            self._request_bytes + len(batch) > REQUEST_BYTES
            or len(self._request) == _REQUEST_BATCHES
        ):
            self._send()
        self._request.append(Target(topic, partition, batch))
        self._request_bytes += len(batch)

    def _send(self) -> None:
        if not self._request:
            return
        if len(self._in_flight) == MAX_IN_FLIGHT:
            self._settle_one()
        request, self._request, self._request_bytes = self._request, [], 0
        self._in_flight.append(self._client.begin_stage(self._transaction, self._step, request))

    def _settle_one(self) -> None:
        # In the order in which they were sent: it is the order in which they are published.
        self._positions += self._in_flight.popleft().result()

    def give_up(self) -> None:
        """Stop what is under way; what was staged expires."""
        while self._in_flight:
            self._in_flight.popleft().cancel()


def _columns(batch: pa.RecordBatch) -> RowColumns:
    names = batch.schema.names

    def column(name: str) -> Any:
        return batch.column(name) if name in names else None

    return RowColumns(
        batch.column("value"),
        column("key"),
        column("headers"),
        column("timestamp"),
        time.time_ns() // 1000,
    )
