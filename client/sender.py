"""Batches to their leaders and answers back: in order, neither lost nor doubled.

Each broker has a lane: a task that writes produce requests, one batch of each ready partition in a
request, and does not wait for answers. A partition has at most `max_in_flight` batches under way.
What an answer means for a batch:

    done, or DuplicateSequence         settled; of a duplicate the offset is not known
    may pass (connection lost, …)      the partition recovers: recovery.py
    SequenceGap, UnknownProducer       it recovers; the first in line then gets a new producer epoch
    ProducerFenced                     the end of this producer
    anything else                      the batch failed; the next one tells whether a gap is left
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from ..protocol import api
from ..protocol.batch import encode_batch
from ..protocol.constants import (
    MAX_BATCH_BYTES,
    MAX_FRAME_BYTES,
    MIB,
    NO_PRODUCER_ID,
    SEQUENCE_MODULUS,
)
from ..protocol.errors import (
    DeliveryTimeout,
    DuplicateSequence,
    InternalError,
    ProducerFenced,
    SeglogError,
    SequenceGap,
    UnknownPartition,
    UnknownProducer,
    UnknownTopic,
)
from ..protocol.messages import InitProducerRequest, InitProducerResponse, ProduceResult
from ..protocol.produce_frame import BATCH_OVERHEAD_BYTES, FRAME_OVERHEAD_BYTES, renumber
from .accumulator import Accumulator
from .batches import Batch, PartitionQueue
from .cluster import Cluster
from .recovery import Recovery

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES: Final = 8 * MIB
MAX_REQUEST_BATCHES: Final = 1000
MAX_LANE_REQUESTS: Final = 64


class _Lane:
    """What is ready for one broker."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.ready: dict[PartitionQueue, None] = {}  # in the order of their turns
        self.requests = 0  # under way
        self.wake = asyncio.Event()


class Sender:
    """Owns the tasks of a producer. `accumulator` is set before anything is sent."""

    accumulator: Accumulator

    def __init__(
        self,
        cluster: Cluster,
        *,
        is_idempotent: bool,
        max_in_flight: int,
        codec: int,
        level: int | None,
        delivery_timeout_s: float,
    ) -> None:
        self._cluster = cluster
        self._is_idempotent = is_idempotent
        self._max_in_flight = max_in_flight
        self._codec = codec
        self._level = level
        self._delivery_timeout_s = delivery_timeout_s
        self._producer_id = NO_PRODUCER_ID
        self.epoch = 0
        self._lanes: dict[int, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._recovery = Recovery(cluster, self)

    async def start(self) -> None:
        if self._is_idempotent:
            await self.init_producer()
        self._own(self._recovery.run())
        self._own(self._expire())

    async def close(self) -> None:
        """End all tasks; what is unsettled stays so."""
        self._recovery.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _own(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A defect of ours: better a producer that says so than one that hangs.
            logger.error("a sender task failed", exc_info=error)
            self._end(InternalError(f"the producer failed: {error!r}"))

    async def init_producer(self) -> None:
        """Become a producer, or, being one, take its next epoch."""
        request = InitProducerRequest(self._producer_id, self.epoch)
        response: InitProducerResponse = await self._cluster.retry(
            lambda: self._cluster.request_to_any(api.INIT_PRODUCER, request)
        )
        self._producer_id, self.epoch = response.producer_id, response.producer_epoch

    # --- sending ---

    def work(self, queue: PartitionQueue) -> None:
        """This partition may have something to send."""
        if queue.is_recovering or len(queue.in_flight) >= self._max_in_flight or not queue.has_work:
            return
        try:
            broker_id = self._cluster.metadata.leader(queue.topic, queue.partition)
        except SeglogError:
            queue.is_doubtful = True
            self._recovery.begin(queue)
            return
        lane = self._lanes.get(broker_id)
        if lane is None:
            lane = self._lanes[broker_id] = _Lane(broker_id)
            self._own(self._run(lane))
        lane.ready[queue] = None
        lane.wake.set()

    async def _run(self, lane: _Lane) -> None:
        while True:
            await lane.wake.wait()
            lane.wake.clear()
            try:
                connection = await self._cluster.connection(lane.broker_id)
            except SeglogError as error:
                logger.warning("broker %d cannot be reached: %s", lane.broker_id, error)
                queues, lane.ready = lane.ready, {}
                for queue in queues:
                    self._recovery.begin(queue)
                continue
            max_requests = min(
                MAX_LANE_REQUESTS, connection.limit("max.in.flight.requests", MAX_LANE_REQUESTS)
            )
            max_bytes = min(MAX_REQUEST_BYTES, connection.limit("max.frame.bytes", MAX_FRAME_BYTES))
            # An answer wakes the lane again where it stops at max_requests.
            while lane.ready and lane.requests < max_requests:
                await connection.writable()
                sent = self._collect(lane, max_bytes)
                if sent:
                    lane.requests += 1
                    pairs = [(batch.queue.target, batch.encoded or b"") for batch in sent]
                    answer = connection.produce(pairs)
                    answer.add_done_callback(partial(self._answered, lane, sent))

    def _collect(self, lane: _Lane, max_bytes: int) -> list[Batch]:
        """The next batch of each ready partition, as many as fit; they are in flight from now."""
        taken: list[Batch] = []
        size = FRAME_OVERHEAD_BYTES
        for queue in list(lane.ready):
            batch = self._next_batch(queue)
            if batch is None or batch.encoded is None:
                del lane.ready[queue]
                continue
            size += len(queue.target) + BATCH_OVERHEAD_BYTES + len(batch.encoded)
            if taken and (size > max_bytes or len(taken) == MAX_REQUEST_BATCHES):
                break
            queue.in_flight.append(queue.waiting.popleft())
            queue.unanswered += 1
            taken.append(batch)
            del lane.ready[queue]
            self.work(queue)  # with more to send, it is ready again, behind the others
        return taken

    def _next_batch(self, queue: PartitionQueue) -> Batch | None:
        """The first of `waiting`, encoded; None where this partition may send nothing."""
        if queue.is_recovering or len(queue.in_flight) >= self._max_in_flight:
            return None
        while True:
            if not queue.waiting and queue.opened is not None and queue.opened.is_due:
                self.accumulator.close(queue.opened)
            if not queue.waiting:
                return None
            batch = queue.waiting[0]
            if not batch.outcome.is_done:
                try:
                    self._encode(queue, batch)
                except SeglogError as error:
                    self.accumulator.settle(batch, -1, error)
            if not batch.outcome.is_done:
                return batch
            queue.waiting.popleft()

    def _encode(self, queue: PartitionQueue, batch: Batch) -> None:
        if batch.base_sequence >= 0:
            return
        sequence = queue.next_sequence if self._is_idempotent else 0
        if batch.encoded is not None:
            batch.encoded = renumber(
                batch.encoded, producer_epoch=queue.epoch, base_sequence=sequence
            )
        else:
            times = batch.timestamps
            batch.encoded = encode_batch(
                batch.values,
                batch.keys,
                batch.first_timestamp_us if times is None else times,
                batch.headers,
                codec=self._codec,
                level=self._level,
                producer_id=self._producer_id,
                producer_epoch=queue.epoch,
                base_sequence=sequence,
                max_bytes=MAX_BATCH_BYTES,
            )
            batch.drop_records()
        batch.base_sequence = sequence
        queue.next_sequence = (sequence + batch.record_count) % SEQUENCE_MODULUS

    # --- answers ---

    def _answered(self, lane: _Lane, sent: list[Batch], answer: asyncio.Future[Any]) -> None:
        lane.requests -= 1
        lane.wake.set()
        results: Sequence[ProduceResult] = ()
        failure: SeglogError | None = None
        try:
            results = answer.result().results
            if len(results) != len(sent):
                failure = InternalError(f"{len(results)} results for {len(sent)} batches")
        except SeglogError as refused:
            failure = refused
        for number, batch in enumerate(sent):
            batch.queue.unanswered -= 1
            if failure is not None:
                self._judge(batch, failure, -1)
            else:
                result = results[number]
                error = result.error.to_exception() if result.error is not None else None
                self._judge(batch, error, result.base_offset)
        for batch in sent:
            if batch.queue.is_recovering:
                self._recovery.go_on(batch.queue)
            else:
                self.work(batch.queue)

    def _judge(self, batch: Batch, error: SeglogError | None, base_offset: int) -> None:
        queue = batch.queue
        if error is None or isinstance(error, DuplicateSequence):
            queue.attempt = 0
            self._settle(batch, base_offset, None)
        elif isinstance(error, ProducerFenced):
            self._end(error)
        elif isinstance(error, SequenceGap | UnknownProducer):
            if batch.outcome.is_done:  # out of time: nobody resends it
                batch.is_settled = True
                queue.forget_settled()
            elif queue.in_flight[0] is batch:
                queue.needs_epoch = True
            self._recovery.begin(queue)
        elif isinstance(error, UnknownTopic | UnknownPartition):
            queue.is_doubtful = True
            self._recovery.begin(queue)
        elif error.retriable:
            if not queue.is_recovering:
                logger.warning("%s/%d: sending again: %s", queue.topic, queue.partition, error)
            self._recovery.begin(queue)
        else:
            self._settle(batch, -1, error)

    def _settle(self, batch: Batch, base_offset: int, error: SeglogError | None) -> None:
        batch.is_settled = True
        batch.encoded = None
        batch.queue.forget_settled()
        self.accumulator.settle(batch, base_offset, error)

    def _end(self, reason: SeglogError) -> None:
        """Nothing is taken or sent any more."""
        self.accumulator.refuse(reason)
        for batch in list(self.accumulator.unsettled):
            self.accumulator.settle(batch, -1, reason)

    async def _expire(self) -> None:
        """Batches are made in the order of their deadlines: the oldest tells how long to sleep."""
        loop = asyncio.get_running_loop()
        while True:
            oldest = next(iter(self.accumulator.unsettled), None)
            if oldest is None:
                await asyncio.sleep(self._delivery_timeout_s)
            elif oldest.deadline > loop.time():
                await asyncio.sleep(oldest.deadline - loop.time())
            else:
                queue = oldest.queue
                self.accumulator.settle(oldest, -1, DeliveryTimeout(
                    f"{queue.topic}/{queue.partition}: records were not acknowledged in "
                    f"{self._delivery_timeout_s:g} s"
                ))  # fmt: skip
