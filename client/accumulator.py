"""Records on their way into batches: a few lists a partition, within bounded memory.

    send ─► open batch ─► full, or linger over ─► waiting ─► in flight ─► settled

A batch is open while records join it. It closes when the next record does not fit, or when the
sender takes it: so while a partition has as much in flight as it may, its next batch keeps filling.
`size_bytes` of a batch is the most that it can take encoded; so `batch_bytes` bounds batches, their
record count too (each record counts RECORD_BYTES), and `buffer_bytes` bounds what is not settled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from ..protocol.columns import Headers
from ..protocol.errors import ClientClosed, SeglogError
from .batches import Batch, Cells, PartitionQueue
from .delivery import Delivery


class Accumulator:
    """All partitions' open batches, and the memory that unsettled records take."""

    def __init__(
        self,
        *,
        batch_bytes: int,
        buffer_bytes: int,
        linger_s: float,
        delivery_timeout_s: float,
        on_work: Callable[[PartitionQueue], None],
        on_failed: Callable[[Batch], None] = lambda _: None,
    ) -> None:
        self.batch_bytes = batch_bytes
        self.buffer_bytes = buffer_bytes
        self._linger_s = linger_s
        self._delivery_timeout_s = delivery_timeout_s
        self._on_work = on_work
        self._on_failed = on_failed
        self.buffered_bytes = 0
        #: Beyond this many bytes a sender must `pause` first: the only check on its way.
        self.pause_at = -1
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        #: Everything that has no outcome, oldest first.
        self.unsettled: dict[Batch, None] = {}
        #: Open batches that nobody waits for, oldest first, and until when; one timer for all.
        self._lingering: dict[Batch, float] = {}
        self._linger_timer: asyncio.TimerHandle | None = None
        self.refusal: SeglogError | None = ClientClosed("this client is not open")

    def start(self) -> None:
        """Take records from now on."""
        self._loop = asyncio.get_running_loop()
        self.refusal = None
        self._set_pause()

    # --- filling ---

    def batch_for(self, queue: PartitionQueue, size: int) -> Batch:
        """The open batch of this partition, with room for `size` bytes more."""
        batch = queue.opened
        if batch is not None:
            if batch.size_bytes + size <= self.batch_bytes:
                return batch
            self.close(batch)
        batch = queue.opened = self._new_batch(queue)
        batch.on_wait = self.hurry
        self._lingering[batch] = self._loop.time() + self._linger_s
        if self._linger_timer is None:
            self._linger_timer = self._loop.call_later(self._linger_s, self._look_at_lingering)
        return batch

    def append(
        self,
        queue: PartitionQueue,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        timestamp_us: int | None,
        size: int,
    ) -> Delivery:
        """Add a record with whatever it has; `size` is its `record_size`."""
        batch = self.batch_for(queue, size)
        index = len(batch.values)
        batch.add(value, key, headers, timestamp_us)
        batch.size_bytes += size
        self.buffered_bytes += size
        return Delivery(batch, index)

    def append_closed(
        self,
        queue: PartitionQueue,
        values: Cells,
        keys: Cells | None,
        headers: list[Headers | None] | None,
        timestamps: int | Sequence[int] | None,
        size_bytes: int,
    ) -> Batch:
        """Add a whole batch, behind what the partition has."""
        if queue.opened is not None:
            self.close(queue.opened)
        batch = self._new_batch(queue)
        batch.values, batch.keys, batch.headers = values, keys, headers
        if isinstance(timestamps, int):
            batch.first_timestamp_us = timestamps
        else:
            batch.timestamps = timestamps
        batch.size_bytes += size_bytes
        self.buffered_bytes += size_bytes
        batch.record_count = len(values)
        queue.waiting.append(batch)
        self._on_work(queue)
        return batch

    def close(self, batch: Batch) -> None:
        """No record joins from now on, and the sender may take it."""
        self.seal(batch)
        self._on_work(batch.queue)

    def seal(self, batch: Batch) -> None:
        """No record joins from now on: the sender is taking it."""
        queue = batch.queue
        queue.opened = None
        batch.record_count = len(batch.values)
        batch.on_wait = None
        self._lingering.pop(batch, None)
        queue.waiting.append(batch)

    def hurry(self, batch: Batch) -> None:
        """Somebody awaits it: it goes now, or when what is under way is answered, but never later
        than its linger is over.
        """
        if batch.queue.opened is batch and not batch.is_awaited:
            batch.is_awaited = True
            self._on_work(batch.queue)

    def end_linger(self, batch: Batch) -> None:
        """The sender may take it."""
        if batch.queue.opened is batch and not batch.is_due:
            batch.is_due = True
            self._lingering.pop(batch, None)
            self._on_work(batch.queue)

    def _look_at_lingering(self) -> None:
        """End what is over, and come again when the next one is."""
        self._linger_timer = None
        now = self._loop.time()
        for batch, until in list(self._lingering.items()):
            if until > now:
                self._linger_timer = self._loop.call_later(until - now, self._look_at_lingering)
                return
            self.end_linger(batch)

    def _new_batch(self, queue: PartitionQueue) -> Batch:
        batch = Batch(queue, self._loop.time() + self._delivery_timeout_s)
        self.unsettled[batch] = None
        self.buffered_bytes += batch.size_bytes
        return batch

    # --- memory ---

    async def pause(self) -> None:
        """Wait for room; where there is room, let the loop run once.

        A producer in a tight loop never suspends otherwise, and nothing would leave or be answered.
        Raises what `refuse` said. Nothing is added by a call that is cancelled here.
        """
        if self.refusal is None and self.buffered_bytes <= self.buffer_bytes:
            await asyncio.sleep(0)
        while self.refusal is None and self.buffered_bytes > self.buffer_bytes:
            waiter = self._loop.create_future()
            self._room_waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()  # the turn was ours: pass it on
                raise
        if self.refusal is not None:
            raise self.refusal
        self._set_pause()
        self._wake()

    def refuse(self, reason: SeglogError) -> None:
        """From now on nothing is taken; what lingers is the caller's to end."""
        self.refusal = reason
        self.pause_at = -1
        if self._linger_timer is not None:  # or the loop would keep all of this until it is over
            self._linger_timer.cancel()
            self._linger_timer = None
        while self._room_waiters:
            self._wake()

    def settle(self, batch: Batch, base_offset: int, error: SeglogError | None) -> None:
        """Give a batch its outcome, and its memory back."""
        if batch.outcome.is_done:
            return
        if batch.queue.opened is batch:
            self.close(batch)
        batch.drop_records()
        del self.unsettled[batch]
        self.buffered_bytes -= batch.size_bytes
        batch.outcome.settle(base_offset, error)
        if error is not None:
            self._on_failed(batch)
        self._set_pause()
        self._wake()

    def _set_pause(self) -> None:
        if self.refusal is None:
            self.pause_at = min(self.buffer_bytes, self.buffered_bytes + self.batch_bytes)

    def _wake(self) -> None:
        """Let the one that waits longest look again."""
        if self.refusal is None and self.buffered_bytes > self.buffer_bytes:
            return
        while self._room_waiters:
            waiter = self._room_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
