"""A group as a tool sees it: members, bookmarks, and how far behind it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..protocol.constants import NO_OFFSET
from ..protocol.group_messages import (
    DescribeGroupResponse,
    GroupPartition,
    MemberDescription,
)
from .metadata import TopicPartition


class Lag(NamedTuple):
    """How much is unread. Of several partitions: all records, and the longest wait of one.

    `unknown`: partitions that are not counted, since nothing was committed for them, or they cannot
    be looked at.
    """

    records: int
    seconds: float
    unknown: int = 0


class PartitionLag(NamedTuple):
    """`offset` None: nothing was committed. `lag` None: not known. `owner`: a member id or ""."""

    name: TopicPartition
    offset: int | None
    metadata: str
    log_start: int
    durable_end: int
    lag: Lag | None
    owner: str
    error: str | None = None


class GroupDescription(NamedTuple):
    """`state`: empty, rebalancing or stable. `partitions`: those with a bookmark, and those that
    members subscribe to."""

    group: str
    state: str
    epoch: int
    assignor: str
    members: list[MemberDescription]
    partitions: list[PartitionLag]

    @property
    def lag(self) -> Lag:
        """Of the whole group."""
        return _total(self.partitions)

    @property
    def lag_by_topic(self) -> dict[str, Lag]:
        topics: dict[str, list[PartitionLag]] = {}
        for partition in self.partitions:
            topics.setdefault(partition.name.topic, []).append(partition)
        return {topic: _total(partitions) for topic, partitions in topics.items()}

    @property
    def lag_by_partition(self) -> dict[TopicPartition, Lag | None]:
        return {partition.name: partition.lag for partition in self.partitions}


def to_description(response: DescribeGroupResponse) -> GroupDescription:
    return GroupDescription(
        response.group,
        response.state,
        response.epoch,
        response.assignor,
        response.members,
        [_to_lag(partition) for partition in response.partitions],
    )


def _to_lag(found: GroupPartition) -> PartitionLag:
    lag = None
    if found.lag_records >= 0:
        lag = Lag(found.lag_records, max(0, found.lag_ms) / 1000)
    return PartitionLag(
        TopicPartition(found.topic, found.partition),
        None if found.offset == NO_OFFSET else found.offset,
        found.metadata,
        found.log_start,
        found.durable_end,
        lag,
        found.owner,
        None if found.error is None else str(found.error.to_exception()),
    )


def _total(partitions: Iterable[PartitionLag]) -> Lag:
    lags = [partition.lag for partition in partitions]
    known = [lag for lag in lags if lag is not None]
    return Lag(
        sum(lag.records for lag in known),
        max((lag.seconds for lag in known), default=0.0),
        len(lags) - len(known),
    )
