"""The paths of records: append, read, delete."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from ..protocol.errors import BadRequest, LimitExceeded
from .models import (
    MAX_HEADER_NAME_LENGTH,
    MAX_HEADERS,
    EncodingQuery,
    FromQuery,
    OnePartition,
    Outgoing,
    PartitionPath,
    Placed,
    ProduceIn,
    ProduceOut,
    ReadOut,
    TopicPath,
    to_time_us,
)
from .places import parse_place, unescaped
from .problems import Refused
from .producing import append, append_one
from .reading import Wanted, read
from .records import Encoding
from .state import ANY_PROBLEM, CLOSED_QUERY, PREFIX, GatewayState, json_response
from .topic_models import LogStartOut

router = APIRouter(
    prefix=PREFIX, tags=["records"], responses=ANY_PROBLEM, dependencies=CLOSED_QUERY
)

RAW_TYPE: Final = "application/octet-stream"
#: What a page of another site may send without asking first: not taken as a record.
_FORM_TYPES: Final = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")

MaxRecords = Annotated[int, Query(ge=1, le=1_000_000, description="At most so many records.")]


# --- append --------------------------------------------------------------------------------------


@router.post(
    "/topics/{topic}/records",
    response_model=ProduceOut,
    responses={207: {"model": ProduceOut, "description": "Some were appended, some were not"}},
)
async def produce(topic: TopicPath, body: ProduceIn, gateway: GatewayState) -> Response:
    """Append one or many records; answered when they are durable.

    A request that is repeated because its answer got lost may append its records twice.
    """
    limit = gateway.settings.max_records
    if len(body.records) > limit:
        told = LimitExceeded(f"{len(body.records)} records, http.max.records allows {limit}")
        raise Refused(413, told)
    return await append(gateway.backend, topic, [record.outgoing for record in body.records])


@router.post(
    "/topics/{topic}/records/raw",
    response_model=Placed,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {RAW_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def produce_raw(
    topic: TopicPath,
    request: Request,
    gateway: GatewayState,
    key: Annotated[str | None, Query(description="The key, as text.")] = None,
    partition: OnePartition = None,
    timestamp: Annotated[str | None, Query(max_length=64, description="ISO 8601.")] = None,
    header: Annotated[
        list[str] | None, Query(max_length=MAX_HEADERS, description="`NAME:VALUE`; repeatable.")
    ] = None,
) -> Response:
    """Append the body, as it is, as the value of one record."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not media_type or media_type in _FORM_TYPES:
        told = BadRequest(f"Content-Type: say {RAW_TYPE}, or what the value is")
        raise Refused(415, told)
    try:
        time_us = to_time_us(None if timestamp is None else unescaped(timestamp), None)
        headers = tuple(_header(text) for text in header or ()) or None
    except ValueError as error:
        raise Refused(422, BadRequest(str(error))) from None
    key_cell = None if key is None else key.encode()
    record = Outgoing(await request.body(), key_cell, partition, headers, time_us)
    return await append_one(gateway.backend, topic, record)


def _header(text: str) -> tuple[str, bytes]:
    name, colon, value = text.partition(":")
    if not colon or len(name) > MAX_HEADER_NAME_LENGTH:
        raise ValueError("header: it must be NAME:VALUE")
    return name, value.encode()


# --- read ----------------------------------------------------------------------------------------


@router.get("/topics/{topic}/partitions/{partition}/records", response_model=ReadOut)
async def consume(
    topic: TopicPath,
    partition: PartitionPath,
    gateway: GatewayState,
    start: FromQuery = "earliest",
    max_records: MaxRecords = 500,
    max_bytes: Annotated[
        int, Query(ge=1, le=2**31 - 1, description="Bytes of records; at least one is given.")
    ] = 1024 * 1024,
    wait_ms: Annotated[
        int, Query(ge=0, le=2**31 - 1, description="At the end of the log, wait for a record.")
    ] = 0,
    encoding: EncodingQuery = Encoding.auto,
) -> Response:
    """Read records of one partition; go on at `next_offset`.

    416 where the offset is deleted or was never written. Beyond the gateway's limits,
    `max_records`, `max_bytes` and `wait_ms` count as those.
    """
    settings = gateway.settings
    wanted = Wanted(
        min(max_records, settings.max_records),
        min(max_bytes, settings.max_answer_bytes),
        min(wait_ms, settings.max_wait_ms) / 1000,
        encoding,
    )
    place = parse_place("from", start)
    return json_response(await read(gateway.backend, settings, (topic, partition), place, wanted))


@router.delete("/topics/{topic}/partitions/{partition}/records", response_model=LogStartOut)
async def delete_records(
    topic: TopicPath,
    partition: PartitionPath,
    gateway: GatewayState,
    before: Annotated[
        str,
        Query(pattern=r"^(latest|[0-9]{1,18})$", description="An offset, or `latest`: all."),
    ],
) -> Response:
    """Delete what lies before an offset."""
    admin = await gateway.backend.admin()
    offset = -1 if before == "latest" else int(before)
    log_start = await admin.delete_records(topic, partition, offset)
    return json_response({"topic": topic, "partition": partition, "log_start": log_start})
