"""When records are acknowledged, told by their batches: nothing waits for a single record.

`Acks` only looks: it never awaits a Delivery, since that ends the linger of its batch and would
change what is measured. In a checked run it also remembers which records each batch took, so that
those that failed are known, and that one that is missed later can be named with its offset.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from scripts.loading.checker import Finding, SentRecords
from scripts.loading.meter import Meter
from scripts.loading.supply import Supply
from seglog import BatchMetadata, BulkDelivery, Delivery, RecordMetadata
from seglog.client.batches import Batch
from seglog.client.partitioner import crc32
from seglog.protocol.errors import SeglogError

_BATCH = attrgetter("batch")


class _Kept(NamedTuple):
    """Records that were acknowledged together: those of one batch, in its order."""

    topic: str
    partition: int
    offset: int
    sequences: Sequence[int]


class Acks:
    """Of one producer."""

    def __init__(
        self, producer: int, meter: Meter, supply: Supply, partitions: int, *, is_checked: bool
    ) -> None:
        self._producer = producer
        self._meter = meter
        self._supply = supply
        self._partition_count = partitions
        self._is_checked = is_checked
        self._watched: dict[Batch, list[tuple[int, int]]] = {}
        # The position of the first one in its batch, and those that follow it there.
        self._sequences: dict[Batch, tuple[int, array[int]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._kept: list[_Kept] = []
        self._unsure: list[int] = []
        self.unexpected: BaseException | None = None

    # --- records one by one ---

    def sent(self, deliveries: Sequence[Delivery], due_ns: int, first_sequence: int) -> None:
        """These were handed to the producer, due at `due_ns`."""
        for batch, count in self._batches_of(deliveries):
            waiting = self._watched.get(batch)
            if waiting is None:
                waiting = self._watched[batch] = []
                self._start(self._settled(batch, waiting))
            waiting.append((due_ns, count))
        if self._is_checked:
            for sequence, delivery in enumerate(deliveries, first_sequence):
                begun = self._sequences.get(delivery.batch)
                if begun is None:
                    begun = self._sequences[delivery.batch] = (delivery.index, array("Q"))
                begun[1].append(sequence)

    def _batches_of(self, deliveries: Sequence[Delivery]) -> Iterable[tuple[Batch, int]]:
        # Without keys, records fill one batch after the other: where the ends are in the same one,
        # so is all between them.
        if not self._supply.has_keys and deliveries[0].batch is deliveries[-1].batch:
            return ((deliveries[0].batch, len(deliveries)),)
        return Counter(map(_BATCH, deliveries)).items()

    async def _settled(self, batch: Batch, waiting: list[tuple[int, int]]) -> None:
        await batch.outcome.wait()
        now = time.monotonic_ns()
        del self._watched[batch]
        error = batch.report_all()
        for due_ns, count in waiting:
            if error is None:
                self._meter.done(now - due_ns, count, now)
            else:
                self._meter.failed[type(error).__name__] += count
        if self._is_checked:
            index, sequences = self._sequences.pop(batch)
            base, queue = batch.outcome.base_offset, batch.queue
            if error is not None:
                self._unsure += sequences
            elif base >= 0:
                self._kept.append(_Kept(queue.topic, queue.partition, base + index, sequences))

    # --- one record that is awaited ---

    def acked(self, metadata: RecordMetadata, due_ns: int, sequence: int) -> None:
        now = time.monotonic_ns()
        self._meter.done(now - due_ns, 1, now)
        if self._is_checked:
            self._kept.append(
                _Kept(metadata.topic, metadata.partition, metadata.offset, (sequence,))
            )

    def failed(self, error: SeglogError, sequence: int) -> None:
        self._meter.failed[type(error).__name__] += 1
        if self._is_checked:
            self._unsure.append(sequence)

    # --- many at once ---

    def sent_bulk(self, delivery: BulkDelivery, due_ns: int, first_sequence: int) -> None:
        self._start(self._settled_bulk(delivery, due_ns, first_sequence))

    async def _settled_bulk(self, delivery: BulkDelivery, due_ns: int, first: int) -> None:
        count = delivery.record_count
        try:
            batches = await delivery
        except SeglogError as error:
            self._meter.failed[type(error).__name__] += count
            self._unsure += range(first, first + count)
            return
        now = time.monotonic_ns()
        self._meter.done(now - due_ns, count, now)
        if self._is_checked:
            self._keep_bulk(batches, first, count)

    def _keep_bulk(self, batches: list[BatchMetadata], first: int, count: int) -> None:
        """Batches come in the order of the records: of all, or of a partition where keys decide."""
        places: dict[int, list[int]] = {}
        for sequence in range(first, first + count):
            key = self._supply.key_of(sequence)
            number = -1 if key is None else crc32(key, self._partition_count)
            places.setdefault(number, []).append(sequence)
        for batch in batches:
            queue = places[-1 if -1 in places else batch.partition]
            taken, queue[:] = queue[: batch.record_count], queue[batch.record_count :]
            if batch.offset >= 0:
                self._kept.append(_Kept(batch.topic, batch.partition, batch.offset, taken))

    # --- the end ---

    def _start(self, settling: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(settling)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.unexpected = self.unexpected or task.exception()

    async def all_settled(self) -> None:
        """Every record has its outcome when this returns; raises what should never happen."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        if self.unexpected is not None:
            raise self.unexpected

    def sent_records(self) -> SentRecords:
        """All that was handed over, and what was not acknowledged."""
        return SentRecords(self._producer, self._supply.taken, ranges(self._unsure))

    def places(self, sequences: Iterable[int]) -> list[Finding]:
        """Where these were acknowledged."""
        wanted = set(sequences)
        found = []
        for kept in self._kept:
            found += [
                Finding(
                    "lost", kept.topic, kept.partition, kept.offset + index, self._producer,
                    sequence, "acknowledged there",
                )
                for index, sequence in enumerate(kept.sequences)
                if sequence in wanted
            ]  # fmt: skip
        known = {finding.sequence for finding in found}
        found += [
            Finding("lost", producer=self._producer, sequence=sequence)
            for sequence in sorted(wanted - known)
        ]
        return found


def ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Sorted, joined where they touch: [3, 1, 2, 7] is [(1, 4), (7, 8)]."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return found
