"""produce and init_producer: batches are checked here and handed to the writer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...protocol.api import PRODUCE, encode_response
from ...protocol.errors import SeglogError
from ...protocol.header import check_produced
from ...protocol.messages import (
    InitProducerRequest,
    InitProducerResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
    WireError,
)
from ..group_commit import Append, Outcome
from ..topics import check_not_internal

if TYPE_CHECKING:
    from ..app import Broker
    from ..connection import Connection


class _Reply:
    """The answer to one produce request: sent when the last of its batches has its outcome."""

    __slots__ = ("_connection", "_correlation_id", "_metrics", "_place", "_results", "_waiting")

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        place: int,
        correlation_id: int,
        count: int,
    ) -> None:
        self._metrics = broker.metrics
        self._connection = connection
        self._place = place
        self._correlation_id = correlation_id
        self._results: list[ProduceResult] = [None] * count  # type: ignore[list-item]
        self._waiting = count

    def settle(self, number: int, outcome: Outcome) -> None:
        if isinstance(outcome, SeglogError):
            self._metrics.failed(PRODUCE.key, outcome.code)
            self._results[number] = ProduceResult(WireError.of(outcome))
        else:
            self._results[number] = ProduceResult(None, outcome.base_offset, outcome.append_time_us)
        self._waiting -= 1
        if not self._waiting:
            response = encode_response(self._correlation_id, ProduceResponse(self._results))
            self._connection.respond(self._place, [response], PRODUCE.key)


def handle_produce(
    broker: Broker,
    connection: Connection,
    place: int,
    correlation_id: int,
    request: ProduceRequest,
) -> None:
    broker.check_array(request.batches, "batches")
    reply = _Reply(broker, connection, place, correlation_id, len(request.batches))
    for number, produced in enumerate(request.batches):
        try:
            check_not_internal(produced.topic)
            partition = broker.topics.partition(produced.topic, produced.partition)
            limit = partition.log.config.max_batch_bytes
            header = check_produced(produced.batch, max_bytes=limit)
        except SeglogError as error:
            reply.settle(number, error)
            continue
        done = partial(reply.settle, number)
        broker.writer.submit(Append(partition, produced.batch, header, done))
    if broker.writer.is_full:
        connection.wait_for_writer(broker.writer.when_room)


async def handle_init_producer(
    broker: Broker, connection: Connection, request: InitProducerRequest
) -> InitProducerResponse:
    if request.producer_id < 0:
        taken = await broker.writer.run(broker.producer_ids.take)
        return InitProducerResponse(taken, 0)
    # Each partition fences the old epoch when the first batch of the new one arrives.
    return InitProducerResponse(request.producer_id, request.producer_epoch + 1)
