"""Batches to their leaders and answers back: in order, neither lost nor doubled.

Each broker has a lane. What becomes ready in one turn of the loop is written at the end of it, one
batch of each partition in a request, with no task in between: who sends one record and waits for it
pays for each. Only where the lane must wait, for a connection or for the transport, a task does so.
A partition has at most `max_in_flight` batches under way. What an answer means for a batch:

    done, or DuplicateSequence         settled; of a duplicate the offset is not known
    may pass (connection lost, …)      the partition recovers: recovery.py
    SequenceGap, UnknownProducer       it recovers; the first in line then gets a new producer epoch
    ProducerFenced                     the end of this producer
    anything else                      the batch failed; the next one tells whether a gap is left
"""

from __future__ import annotations

import asyncio
import logging
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
from ..protocol.messages import InitProducerRequest, InitProducerResponse, ProduceResponse
from ..protocol.produce_frame import BATCH_OVERHEAD_BYTES, FRAME_OVERHEAD_BYTES, renumber
from .accumulator import Accumulator
from .batches import Batch, PartitionQueue
from .cluster import Cluster
from .connection import Connection
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
        self.is_called = False  # it will be looked at without being called again
        self.is_waiting = False  # for a connection, or for room in its transport
        self._connection: Connection | None = None
        self.max_requests = self.max_bytes = 0

    def use(self, connection: Connection) -> None:
        """Keep to the limits of this one."""
        if connection is not self._connection:
            self._connection = connection
            most = connection.limit("max.in.flight.requests", MAX_LANE_REQUESTS)
            self.max_requests = min(MAX_LANE_REQUESTS, most)
            most = connection.limit("max.frame.bytes", MAX_FRAME_BYTES)
            self.max_bytes = min(MAX_REQUEST_BYTES, most)


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
        self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._recovery = Recovery(cluster, self)

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._is_idempotent:
            await self.init_producer()
        self._own(self._recovery.run())
        self._own(self._expire())

    async def close(self) -> None:
        """End all tasks; what is unsettled stays so."""
        self._is_closed = True
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
            self._fail(error)

    def _fail(self, defect: BaseException) -> None:
        """A defect of ours: better a producer that says so than one that hangs."""
        logger.error("the sender failed", exc_info=defect)
        self._end(InternalError(f"the producer failed: {defect!r}"))

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
        lane.ready[queue] = None
        self._call(lane)

    def _call(self, lane: _Lane) -> None:
        """Look at it when this turn of the loop has brought all that it brings."""
        if not lane.is_called:
            lane.is_called = True
            self._loop.call_soon(self._look_at, lane)

    def _look_at(self, lane: _Lane) -> None:
        if self._is_closed:
            return
        try:
            connection = self._cluster.open_connection(lane.broker_id)
            if connection is not None:
                self._write(lane, connection)
        except Exception as error:
            self._fail(error)
            return
        finally:
            lane.is_called = False
        if lane.ready and not lane.is_waiting and not (connection and connection.is_writable):
            lane.is_waiting = True
            self._own(self._wait(lane))

    def _write(self, lane: _Lane, connection: Connection) -> None:
        """As many requests as may be under way; an answer calls the lane again where it stops."""
        lane.use(connection)
        while lane.ready and lane.requests < lane.max_requests and connection.is_writable:
            sent = self._collect(lane, lane.max_bytes)
            if sent:
                lane.requests += 1
                pairs = [(batch.queue.target, batch.encoded or b"") for batch in sent]
                connection.produce(pairs, partial(self._answered, lane, sent))

    async def _wait(self, lane: _Lane) -> None:
        try:
            connection = await self._cluster.connection(lane.broker_id)
            await connection.writable()
        except SeglogError as error:
            logger.warning("broker %d cannot be reached: %s", lane.broker_id, error)
            queues, lane.ready = lane.ready, {}
            for queue in queues:
                self._recovery.begin(queue)
        finally:
            lane.is_waiting = False
        if lane.ready:
            self._call(lane)

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
            if queue.has_work:
                self.work(queue)  # it is ready again, behind the others
        return taken

    def _next_batch(self, queue: PartitionQueue) -> Batch | None:
        """The first of `waiting`, encoded; None where this partition may send nothing."""
        if queue.is_recovering or len(queue.in_flight) >= self._max_in_flight:
            return None
        while True:
            if not queue.waiting and queue.opened is not None and queue.is_opened_due:
                self.accumulator.seal(queue.opened)
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

    def _answered(
        self,
        lane: _Lane,
        sent: list[Batch],
        response: ProduceResponse | None,
        failure: SeglogError | None,
    ) -> None:
        lane.requests -= 1
        try:
            self._judge_all(sent, response, failure)
        except Exception as error:
            self._fail(error)
        if lane.ready:
            self._call(lane)

    def _judge_all(
        self, sent: list[Batch], response: ProduceResponse | None, failure: SeglogError | None
    ) -> None:
        results = response.results if response is not None else []
        if failure is None and len(results) != len(sent):
            failure = InternalError(f"{len(results)} results for {len(sent)} batches")
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
