"""metadata and the topics: create, delete, alter, describe."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...protocol.errors import SeglogError, TopicExists, UnknownTopic
from ...protocol.messages import (
    AlterTopicRequest,
    BrokerAddress,
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteTopicRequest,
    DescribeTopicRequest,
    DescribeTopicResponse,
    Empty,
    MetadataRequest,
    MetadataResponse,
    PartitionDescription,
    SegmentDescription,
    TopicMetadata,
    WireError,
)
from ..partition import Partition
from ..storage.config import config_values
from ..storage.filesystem import storage_error
from ..topics import check_not_internal

if TYPE_CHECKING:
    from ..app import Broker
    from ..connection import Connection


async def handle_metadata(
    broker: Broker, connection: Connection, request: MetadataRequest
) -> MetadataResponse:
    names = broker.topics.names() if request.topics is None else request.topics
    broker.check_array(request.topics or [], "topics")
    host, port = broker.advertised_address(connection)
    return MetadataResponse(
        [BrokerAddress(broker.broker_id, host, port)],
        [await _topic_metadata(broker, name, may_create=request.may_create) for name in names],
    )


async def _topic_metadata(broker: Broker, name: str, *, may_create: bool) -> TopicMetadata:
    try:
        if may_create and broker.config.auto_create_topics:
            await _create_if_missing(broker, name)
        topic, partitions = broker.topics.describe(name)
    except SeglogError as error:
        return TopicMetadata(WireError.of(error), name)
    return TopicMetadata(None, name, topic.id, [broker.broker_id] * len(partitions))


async def _create_if_missing(broker: Broker, name: str) -> None:
    try:
        broker.topics.partitions(name)
    except UnknownTopic:
        check_not_internal(name)
        try:
            await broker.topics.create(name)
        except TopicExists:
            pass  # another client was quicker


async def handle_create_topic(
    broker: Broker, connection: Connection, request: CreateTopicRequest
) -> CreateTopicResponse:
    check_not_internal(request.name)
    topic = await broker.topics.create(request.name, request.partitions, dict(request.config))
    return CreateTopicResponse(topic.id, topic.partitions)


async def handle_delete_topic(
    broker: Broker, connection: Connection, request: DeleteTopicRequest
) -> Empty:
    check_not_internal(request.name)
    await broker.topics.delete(request.name)
    return Empty()


async def handle_alter_topic(
    broker: Broker, connection: Connection, request: AlterTopicRequest
) -> Empty:
    check_not_internal(request.name)
    await broker.topics.alter(request.name, request.partitions, dict(request.config))
    return Empty()


async def handle_describe_topic(
    broker: Broker, connection: Connection, request: DescribeTopicRequest
) -> DescribeTopicResponse:
    topic, partitions = broker.topics.describe(request.name)
    loop = asyncio.get_running_loop()
    described = await loop.run_in_executor(  # a segment that is not open is asked on disk
        broker.readers, lambda: [_describe(partition) for partition in partitions]
    )
    return DescribeTopicResponse(topic.name, topic.id, config_values(topic.config), described)


def _describe(partition: Partition) -> PartitionDescription:
    try:
        log = partition.log
        segments = [SegmentDescription(*info) for info in log.describe()]
    except SeglogError as error:
        return PartitionDescription(partition.number, WireError.of(error))
    except OSError as error:
        fault = storage_error(error, f"describing {partition.topic}/{partition.number}")
        return PartitionDescription(partition.number, WireError.of(fault))
    return PartitionDescription(
        partition.number,
        None,
        log.log_start,
        log.durable_end,
        log.log_end,
        log.epoch,
        log.size_bytes,
        segments,
    )
