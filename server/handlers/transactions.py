"""stage, commit_staged, describe_transaction: publishing exactly once (server/transactions.py)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...protocol.errors import SeglogError
from ...protocol.messages import (
    CommitStagedRequest,
    CommitStagedResponse,
    DescribeTransactionRequest,
    DescribeTransactionResponse,
    ProduceBatch,
    StageRequest,
    StageResponse,
    StageResult,
    WireError,
)
from ..topics import check_not_internal

if TYPE_CHECKING:
    from ..app import Broker
    from ..connection import Connection


async def handle_stage(
    broker: Broker, connection: Connection, request: StageRequest
) -> StageResponse:
    broker.check_array(request.batches, "batches")
    if broker.writer.is_full:
        connection.wait_for_writer(broker.writer.when_room)
    return StageResponse(
        await asyncio.gather(*(_stage(broker, request, batch) for batch in request.batches))
    )


async def _stage(broker: Broker, request: StageRequest, batch: ProduceBatch) -> StageResult:
    try:
        check_not_internal(batch.topic)
        position = await broker.transactions.stage(
            request.transaction, request.step, batch.topic, batch.partition, batch.batch
        )
    except SeglogError as error:
        return StageResult(WireError.of(error))
    return StageResult(None, position)


async def handle_commit_staged(
    broker: Broker, connection: Connection, request: CommitStagedRequest
) -> CommitStagedResponse:
    published = await broker.transactions.commit(
        request.transaction, request.step, request.positions, is_last=request.is_last
    )
    return CommitStagedResponse(not published, broker.transactions.last_step(request.transaction))


async def handle_describe_transaction(
    broker: Broker, connection: Connection, request: DescribeTransactionRequest
) -> DescribeTransactionResponse:
    return DescribeTransactionResponse(broker.transactions.last_step(request.transaction))
