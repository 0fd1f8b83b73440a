"""Consumer groups: members' heartbeats and commits, and what tools ask about a group."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...protocol.constants import NO_OFFSET
from ...protocol.errors import SeglogError, StorageError
from ...protocol.group_messages import (
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    CommitResult,
    DeleteGroupRequest,
    DescribeGroupRequest,
    DescribeGroupResponse,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    GroupLeaveRequest,
    GroupListing,
    GroupPartition,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberDescription,
    TopicPartitions,
)
from ...protocol.messages import Empty, WireError
from ..groups.offsets import by_topic
from ..groups.state import Group, Member
from ..lag import append_time_us, first_unread

if TYPE_CHECKING:
    from ..app import Broker
    from ..connection import Connection


async def handle_group_heartbeat(
    broker: Broker, connection: Connection, request: GroupHeartbeatRequest
) -> GroupHeartbeatResponse:
    broker.check_array(request.topics, "topics")
    _check_partitions(broker, request.owned, "owned")
    return await broker.groups.heartbeat(connection, request)


async def handle_group_leave(
    broker: Broker, connection: Connection, request: GroupLeaveRequest
) -> Empty:
    await broker.groups.leave(request)
    return Empty()


async def handle_commit_offsets(
    broker: Broker, connection: Connection, request: CommitOffsetsRequest
) -> CommitOffsetsResponse:
    broker.check_array(request.offsets, "offsets")
    results = await broker.groups.commit(request)
    return CommitOffsetsResponse(
        [CommitResult(None if error is None else WireError.of(error)) for error in results]
    )


async def handle_fetch_offsets(
    broker: Broker, connection: Connection, request: FetchOffsetsRequest
) -> FetchOffsetsResponse:
    _check_partitions(broker, request.partitions or [], "partitions")
    return await broker.groups.fetch_offsets(request)


async def handle_list_groups(
    broker: Broker, connection: Connection, request: ListGroupsRequest
) -> ListGroupsResponse:
    broker.groups.check_served()
    groups = broker.groups.coordinator.groups
    listed = [
        GroupListing(name, group.state, len(group.members), group.assignor)
        for name, group in sorted(groups.items())
    ]
    await broker.groups.saved()
    return ListGroupsResponse(listed)


async def handle_delete_group(
    broker: Broker, connection: Connection, request: DeleteGroupRequest
) -> Empty:
    await broker.groups.delete(request.group)
    return Empty()


async def handle_describe_group(
    broker: Broker, connection: Connection, request: DescribeGroupRequest
) -> DescribeGroupResponse:
    broker.groups.check_served()
    group = broker.groups.coordinator.group(request.group)
    response = DescribeGroupResponse(
        group.name,
        group.state,
        group.epoch,
        group.assignor,
        [_describe_member(group.members[member_id]) for member_id in sorted(group.members)],
        _describe_partitions(broker, group),
    )
    await broker.groups.saved()
    loop = asyncio.get_running_loop()
    # When a record was appended stands in its batch, which may have to come from the disk.
    await loop.run_in_executor(broker.readers, _add_lag, broker, response.partitions)
    return response


def _describe_member(member: Member) -> MemberDescription:
    return MemberDescription(
        member.id,
        member.instance_id,
        member.client_name,
        member.address,
        member.epoch,
        member.session_timeout_ms,
        list(member.topics),
        by_topic(member.owned),
    )


def _describe_partitions(broker: Broker, group: Group) -> list[GroupPartition]:
    """With what the coordinator knows; the logs are asked by `_add_lag`."""
    coordinator = broker.groups.coordinator
    committed = dict(coordinator.offsets.of_group(group.name))
    subscribed = {topic for member in group.members.values() for topic in member.topics}
    wanted = {
        (name, number)
        for name in subscribed & coordinator.topics.keys()
        for number in range(coordinator.topics[name].partitions)
    }
    described = []
    for place in sorted(wanted | committed.keys()):
        partition = GroupPartition(*place, None, owner=group.owners.get(place, ""))
        found = committed.get(place)
        if found is not None:
            partition.offset, partition.metadata = found.offset, found.metadata
            partition.commit_time_ms = found.commit_time_ms
        described.append(partition)
    return described


def _add_lag(broker: Broker, partitions: Sequence[GroupPartition]) -> None:
    """Called in a reader thread."""
    now_us = time.time_ns() // 1000
    for partition in partitions:
        try:
            log = broker.topics.partition(partition.topic, partition.partition).log
            partition.log_start, partition.durable_end = log.log_start, log.durable_end
            if partition.offset == NO_OFFSET:
                continue
            first = first_unread(log, partition.offset)
            partition.lag_records = max(0, partition.durable_end - first)
            partition.lag_ms = 0
            if partition.lag_records:
                appended_us = append_time_us(log, first)
                if appended_us is not None:
                    partition.lag_ms = max(0, now_us - appended_us) // 1000
        except SeglogError as error:
            partition.error = WireError.of(error)
        except OSError as error:
            what = f"{partition.topic}/{partition.partition}: {error}"
            partition.error = WireError.of(StorageError(what))


def _check_partitions(broker: Broker, grouped: Sequence[TopicPartitions], name: str) -> None:
    broker.check_array(grouped, name)
    for topic in grouped:
        broker.check_array(topic.partitions, f"{name} of {topic.topic}")
