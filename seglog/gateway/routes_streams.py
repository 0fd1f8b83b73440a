"""The paths of streams: a range or on and on, as lines or as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request, Response

from ..protocol.errors import BadRequest, LimitExceeded
from .limits import SLOT, Slot
from .models import PLACE_PATTERN, EncodingQuery, FromQuery, OnePartition, TopicPath
from .places import check_offsets, find_log_ends, find_offsets, parse_place
from .problems import Refused
from .records import Encoding
from .state import ANY_PROBLEM, CLOSED_QUERY, PREFIX, Gateway, GatewayState
from .streams import (
    EVENT_STREAM_TYPE,
    NDJSON_TYPE,
    Reader,
    StreamResponse,
    events,
    ndjson,
    parse_event_id,
)

router = APIRouter(
    prefix=PREFIX, tags=["streams"], responses=ANY_PROBLEM, dependencies=CLOSED_QUERY
)


_RECORD: Final = {"$ref": "#/components/schemas/RecordOut"}
_PROBLEM: Final = {"$ref": "#/components/schemas/Problem"}
_LAST_LINE: Final = {"type": "object", "properties": {"error": _PROBLEM}, "required": ["error"]}
_EVENT: Final = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "for each partition, the offset to go on at"},
        "event": {"enum": ["message", "error"]},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"anyOf": [_RECORD, _PROBLEM]},
        },
    },
    "required": ["data"],
}


def _streamed(media_type: str, item: dict[str, Any], what: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {media_type: {"itemSchema": item}}, "description": what}}


@router.get(
    "/topics/{topic}/stream",
    response_class=Response,
    responses=_streamed(
        NDJSON_TYPE, {"anyOf": [_RECORD, _LAST_LINE]}, "A record a line; an error is the last line"
    ),
)
async def stream(
    topic: TopicPath,
    request: Request,
    gateway: GatewayState,
    start: FromQuery = "earliest",
    to: Annotated[
        str | None,
        Query(
            pattern=PLACE_PATTERN,
            description="Where to end (not included), as `from`; without it, the end as it is now.",
        ),
    ] = None,
    partition: OnePartition = None,
    follow: Annotated[bool, Query(description="Do not end: wait for what comes.")] = False,
    max_records: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
    encoding: EncodingQuery = Encoding.auto,
) -> Response:
    """Read a range, or follow, as newline-delimited JSON.

    Of several partitions the records come as they are read: in order within each.
    """
    if follow and to is not None:
        raise Refused(422, BadRequest("to: a stream that follows has no end"))
    admin = await gateway.backend.admin()
    chosen = None if partition is None else [partition]
    first, last = parse_place("from", start), parse_place("to", to or "latest")
    log_ends = await find_log_ends(admin, topic, chosen)
    starts = await find_offsets(admin, topic, first, log_ends)
    ends = None if follow else await find_offsets(admin, topic, last, log_ends)
    reader, slot = await _open(gateway, topic, partition, starts, ends, max_records)
    return _respond(gateway, request, ndjson(reader, encoding), reader, slot, NDJSON_TYPE)


@router.get(
    "/topics/{topic}/events",
    response_class=Response,
    responses=_streamed(
        EVENT_STREAM_TYPE, _EVENT, "An event for each record; of the type error, the last one"
    ),
)
async def follow_events(
    topic: TopicPath,
    request: Request,
    gateway: GatewayState,
    start: FromQuery = "latest",
    partition: OnePartition = None,
    encoding: EncodingQuery = Encoding.auto,
    last_event_id: Annotated[
        str | None, Header(max_length=4096, description="Go on after this event; beats `from`.")
    ] = None,
) -> Response:
    """Follow a topic with server-sent events.

    Each has an id with which a client goes on exactly there: browsers do so by themselves.
    """
    admin = await gateway.backend.admin()
    chosen = None if partition is None else [partition]
    wanted = parse_event_id(last_event_id) if last_event_id else None
    log_ends = await find_log_ends(admin, topic, chosen)
    if wanted is None:
        starts = await find_offsets(admin, topic, parse_place("from", start), log_ends)
    else:
        # A partition that the id does not name came after it: nothing of it was read.
        starts = {number: wanted.get(number, ends.log_start) for number, ends in log_ends.items()}
        check_offsets(topic, starts, log_ends)
    reader, slot = await _open(gateway, topic, partition, starts, None, None)
    return _respond(gateway, request, events(reader, encoding), reader, slot, EVENT_STREAM_TYPE)


async def _open(
    gateway: Gateway,
    topic: str,
    partition: int | None,
    starts: dict[int, int],
    ends: dict[int, int] | None,
    max_records: int | None,
) -> tuple[Reader, Slot]:
    settings = gateway.settings
    if len(starts) > settings.max_stream_partitions:
        told = LimitExceeded(
            f"{topic} has {len(starts)} partitions, http.max.stream.partitions allows"
            f" {settings.max_stream_partitions}: name one with partition="
        )
        raise Refused(422, told)
    slot = gateway.streams.take()
    consumer = gateway.backend.consumer(
        [(topic, number) for number in starts],
        {(topic, number): at for number, at in starts.items()},
        buffer_bytes=settings.stream_buffer_bytes,
        topic=topic if partition is None and ends is None else None,
    )
    try:
        await consumer.start()
    except BaseException:
        slot.release()
        raise
    quiet_s = settings.heartbeat_ms / 1000
    return Reader(consumer, topic, starts, ends, quiet_s=quiet_s, max_records=max_records), slot


def _respond(
    gateway: Gateway,
    request: Request,
    chunks: AsyncGenerator[bytes, None],
    reader: Reader,
    slot: Slot,
    media_type: str,
) -> Response:
    request.scope[SLOT].release()  # from here on it counts as a stream
    max_ms = gateway.settings.max_stream_ms
    return StreamResponse(
        chunks,
        reader.consumer,
        slot,
        media_type=media_type,
        stopping=gateway.backend.stopping,
        max_s=max_ms / 1000 if max_ms else None,
    )
