"""Appending records through the one Producer: each is durable before it is answered for.

Between the gateway and the broker nothing is doubled. Between the client and the gateway it can be:
HTTP has no sequence numbers, so a client that repeats a request whose answer it did not get may
append its records twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Response

from ..client.delivery import Delivery, RecordMetadata
from ..protocol.errors import InternalError, ProducerFenced, SeglogError, UnknownPartition
from ..protocol.times import iso_time
from .backend import Backend
from .models import Outgoing
from .problems import problem
from .state import json_response


async def append(backend: Backend, topic: str, records: Sequence[Outgoing]) -> Response:
    """200 where all were appended, 207 where only some were; where none was, the error of the first
    is raised."""
    outcomes = await _send(backend, topic, records)
    errors = [each for each in outcomes if isinstance(each, SeglogError)]
    if len(errors) == len(outcomes):
        raise errors[0]
    entries = [
        {"error": problem(each)} if isinstance(each, SeglogError) else _placed(each)
        for each in outcomes
    ]
    return json_response({"records": entries}, 207 if errors else 200)


async def append_one(backend: Backend, topic: str, record: Outgoing) -> Response:
    (outcome,) = await _send(backend, topic, [record])
    if isinstance(outcome, SeglogError):
        raise outcome
    return json_response(_placed(outcome))


async def _send(
    backend: Backend, topic: str, records: Sequence[Outgoing]
) -> list[RecordMetadata | SeglogError]:
    producer = await backend.producer()
    # All are looked at before one is sent.
    highest = max((each.partition for each in records if each.partition is not None), default=0)
    count = await producer.partitions_for(topic)
    if highest >= count:
        count = await producer.partitions_for(topic, fresh=True)
    if highest >= count:
        raise UnknownPartition.beyond(topic, highest, count)
    deliveries: list[Delivery | SeglogError] = []
    for record in records:
        try:
            deliveries.append(await producer.send(topic, *record))
        except SeglogError as error:
            deliveries.append(error)
    outcomes = [await _outcome(each) for each in deliveries]
    if any(isinstance(each, InternalError | ProducerFenced) for each in outcomes):
        await backend.drop(producer)
    return outcomes


async def _outcome(delivery: Delivery | SeglogError) -> RecordMetadata | SeglogError:
    if isinstance(delivery, SeglogError):
        return delivery
    try:
        return await delivery
    except SeglogError as error:
        return error


def _placed(found: RecordMetadata) -> dict[str, Any]:
    return {
        "topic": found.topic,
        "partition": found.partition,
        "offset": found.offset if found.offset >= 0 else None,
        "timestamp": iso_time(found.timestamp_us),
        "timestamp_us": found.timestamp_us,
    }
