"""list_offsets and delete_records."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...protocol.constants import EARLIEST, LATEST
from ...protocol.errors import SeglogError
from ...protocol.messages import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResult,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    WireError,
)
from ..topics import check_not_internal

if TYPE_CHECKING:
    from ..app import Broker
    from ..connection import Connection


async def handle_list_offsets(
    broker: Broker, connection: Connection, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    broker.check_array(request.partitions, "partitions")
    return ListOffsetsResponse([await _find(broker, asked) for asked in request.partitions])


async def _find(broker: Broker, asked: ListOffsetsPartition) -> ListOffsetsResult:
    try:
        log = broker.topics.partition(asked.topic, asked.partition).log
        if asked.timestamp_us == EARLIEST:
            return ListOffsetsResult(None, log.log_start)
        if asked.timestamp_us == LATEST:
            return ListOffsetsResult(None, log.durable_end)
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(broker.readers, log.offset_for_time, asked.timestamp_us)
        return ListOffsetsResult(None, *found) if found else ListOffsetsResult(None)
    except SeglogError as error:
        return ListOffsetsResult(WireError.of(error))


async def handle_delete_records(
    broker: Broker, connection: Connection, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    broker.check_array(request.partitions, "partitions")
    return DeleteRecordsResponse([await _delete(broker, asked) for asked in request.partitions])


async def _delete(broker: Broker, asked: DeleteRecordsPartition) -> DeleteRecordsResult:
    try:
        check_not_internal(asked.topic)
        log = broker.topics.partition(asked.topic, asked.partition).log

        def delete() -> None:
            before = log.durable_end if asked.before_offset < 0 else asked.before_offset
            log.raise_log_start(max(before, log.log_start))

        await broker.writer.run(delete)
        return DeleteRecordsResult(None, log.log_start)
    except SeglogError as error:
        return DeleteRecordsResult(WireError.of(error))
