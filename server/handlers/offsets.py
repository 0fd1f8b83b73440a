"""list_offsets and delete_records."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...protocol.constants import EARLIEST, LATEST
from ...protocol.errors import DamagedLog, SeglogError
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
from ..partition import Partition
from ..storage.filesystem import storage_error
from ..storage.reading import TimePosition
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
        partition = broker.topics.partition(asked.topic, asked.partition)
        log = partition.log
        if asked.timestamp_us == EARLIEST:
            return ListOffsetsResult(None, log.log_start)
        if asked.timestamp_us == LATEST:
            return ListOffsetsResult(None, log.durable_end)
        found = await _find_time(broker, partition, asked.timestamp_us)
        return ListOffsetsResult(None, *found) if found else ListOffsetsResult(None)
    except SeglogError as error:
        return ListOffsetsResult(WireError.of(error))


async def _find_time(
    broker: Broker, partition: Partition, timestamp_us: int
) -> TimePosition | None:
    log = partition.log
    loop = asyncio.get_running_loop()
    try:
        return await loop.run_in_executor(broker.readers, log.offset_for_time, timestamp_us)
    except DamagedLog:
        partition.log  # noqa: B018  a topic that was deleted meanwhile says so
        raise
    except OSError as error:
        partition.log  # noqa: B018
        raise storage_error(error, f"reading {log.name}") from error


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
            gone = log.raise_log_start(max(before, log.log_start))
            broker.metrics.deleted_segments += len(gone)

        await broker.writer.run(delete)
        return DeleteRecordsResult(None, log.log_start)
    except SeglogError as error:
        return DeleteRecordsResult(WireError.of(error))
