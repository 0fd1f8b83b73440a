"""The paths of streams: a range or on and on, as lines or as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request, Response

from ..protocol.errors import BadRequest, LimitExceeded
from .limits import SLOT, Slot
from .models import PLACE_PATTERN, EncodingQuery, FromQuery, OnePartition, TopicPath
from .places import Span, check_spans, find_spans, parse_place
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
    spans = await find_spans(admin, topic, parse_place("from", start), chosen)
    ends = None
    if not follow:
        ends = {number: span.durable_end for number, span in spans.items()}
        if to is not None:
            until = await find_spans(admin, topic, parse_place("to", to), list(spans))
            ends = {number: span.at for number, span in until.items()}
    reader, slot = await _open(gateway, topic, partition, spans, ends, max_records)
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
    if last_event_id:
        spans = await _resumed(gateway, topic, last_event_id, chosen)
    else:
        spans = await find_spans(admin, topic, parse_place("from", start), chosen)
    reader, slot = await _open(gateway, topic, partition, spans, None, None)
    return _respond(gateway, request, events(reader, encoding), reader, slot, EVENT_STREAM_TYPE)


async def _resumed(
    gateway: Gateway, topic: str, event_id: str, chosen: list[int] | None
) -> dict[int, Span]:
    """A partition that the id does not name came after it: nothing of it was read."""
    wanted = parse_event_id(event_id)
    found = await find_spans(await gateway.backend.admin(), topic, "earliest", chosen)
    spans = {
        number: Span(wanted.get(number, span.at), span.log_start, span.durable_end)
        for number, span in found.items()
    }
    check_spans(topic, spans)
    return spans


async def _open(
    gateway: Gateway,
    topic: str,
    partition: int | None,
    spans: dict[int, Span],
    ends: dict[int, int] | None,
    max_records: int | None,
) -> tuple[Reader, Slot]:
    settings = gateway.settings
    if len(spans) > settings.max_stream_partitions:
        told = LimitExceeded(
            f"{topic} has {len(spans)} partitions, http.max.stream.partitions allows"
            f" {settings.max_stream_partitions}: name one with partition="
        )
        raise Refused(422, told)
    starts = {number: span.at for number, span in spans.items()}
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
