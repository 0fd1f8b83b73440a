"""The typed bodies of consumer groups, and how the client's answers become them."""

from __future__ import annotations

from datetime import datetime
from typing import Self

from pydantic import BaseModel, Field, model_validator

from ..client.group_lag import GroupDescription, Lag, PartitionLag
from ..client.group_offsets import Bookmark
from ..client.group_reset import ResetTo, SameAs, Shift
from ..client.metadata import TopicPartition
from ..places import Last, parse_place
from ..protocol.constants import MAX_ARRAY_LENGTH, MAX_COMMIT_METADATA_LENGTH, MAX_OFFSET
from .models import Closed, Name, Offset, PartitionNumber


class GroupListed(BaseModel):
    group: str
    state: str = Field(description="empty, rebalancing or stable")
    members: int
    assignor: str


class GroupsOut(BaseModel):
    groups: list[GroupListed]


class LagOut(BaseModel):
    """`unknown`: partitions that are not counted, since nothing was committed for them."""

    records: int
    seconds: float
    unknown: int = 0


class PartitionRef(BaseModel):
    topic: str
    partition: int


class MemberOut(BaseModel):
    member_id: str
    instance_id: str | None
    client_name: str
    address: str
    owned: list[PartitionRef]


class GroupPartitionOut(BaseModel):
    topic: str
    partition: int
    offset: int | None = Field(description="of the next record to read; null: nothing committed")
    metadata: str
    log_start: int
    durable_end: int
    lag: LagOut | None = Field(description="null: not known")
    owner: str = Field(description="a member_id, or empty")
    error: str | None


class GroupOut(BaseModel):
    group: str
    state: str
    epoch: int
    assignor: str
    lag: LagOut
    lag_by_topic: dict[str, LagOut]
    members: list[MemberOut]
    partitions: list[GroupPartitionOut]


class BookmarkOut(BaseModel):
    topic: str
    partition: int
    offset: int
    metadata: str
    committed_at: datetime


class BookmarksOut(BaseModel):
    group: str
    offsets: list[BookmarkOut]


class BookmarkIn(Closed):
    """`offset`: of the next record to read."""

    topic: Name
    partition: PartitionNumber
    offset: Offset
    metadata: str = Field("", max_length=MAX_COMMIT_METADATA_LENGTH)


class CommitIn(Closed):
    offsets: list[BookmarkIn] = Field(min_length=1, max_length=MAX_ARRAY_LENGTH)


class PartitionIn(Closed):
    topic: Name
    partition: PartitionNumber


class ResetIn(Closed):
    """Where bookmarks go: one of `to`, `shift` and `same_as`."""

    to: str | Offset | None = Field(
        None, description="`earliest`, `latest`, a time (ISO 8601), or an offset"
    )
    shift: int | None = Field(
        None, ge=-MAX_OFFSET, le=MAX_OFFSET, description="so many on from the bookmark, or back"
    )
    same_as: Name | None = Field(None, description="where another group is")
    topics: list[Name] | None = Field(None, max_length=MAX_ARRAY_LENGTH)
    partitions: list[PartitionIn] | None = Field(None, max_length=MAX_ARRAY_LENGTH)
    dry_run: bool = Field(True, description="only tell what would change")

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = [each for each in (self.to, self.shift, self.same_as) if each is not None]
        if len(given) != 1:
            raise ValueError("give one of to, shift and same_as")
        self.target()
        return self

    def target(self) -> ResetTo:
        if self.shift is not None:
            return Shift(self.shift)
        if self.same_as is not None:
            return SameAs(self.same_as)
        if isinstance(self.to, int):
            return self.to
        place = parse_place(self.to or "")
        if place is None or isinstance(place, int | Last):  # a text is not taken for a number
            raise ValueError("to: neither earliest, latest, an offset, nor a time")
        return place


class ChangeOut(BaseModel):
    topic: str
    partition: int
    from_offset: int | None = Field(description="null: there was no bookmark")
    to_offset: int


class ResetOut(BaseModel):
    group: str
    dry_run: bool
    changes: list[ChangeOut]


def group_out(found: GroupDescription) -> dict[str, object]:
    return {
        "group": found.group,
        "state": found.state,
        "epoch": found.epoch,
        "assignor": found.assignor,
        "lag": _lag_out(found.lag),
        "lag_by_topic": {topic: _lag_out(lag) for topic, lag in found.lag_by_topic.items()},
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_name": member.client_name,
                "address": member.address,
                "owned": [
                    {"topic": each.topic, "partition": number}
                    for each in member.owned
                    for number in each.partitions
                ],
            }
            for member in found.members
        ],
        "partitions": [_group_partition_out(each) for each in found.partitions],
    }


def _group_partition_out(found: PartitionLag) -> dict[str, object]:
    return {
        "topic": found.name.topic,
        "partition": found.name.partition,
        "offset": found.offset,
        "metadata": found.metadata,
        "log_start": found.log_start,
        "durable_end": found.durable_end,
        "lag": None if found.lag is None else _lag_out(found.lag),
        "owner": found.owner,
        "error": found.error,
    }


def _lag_out(lag: Lag) -> dict[str, object]:
    return lag._asdict()


def bookmarks_out(group: str, found: dict[TopicPartition, Bookmark]) -> dict[str, object]:
    return {
        "group": group,
        "offsets": [
            {
                "topic": name.topic,
                "partition": name.partition,
                "offset": mark.offset,
                "metadata": mark.metadata,
                "committed_at": mark.committed_at,
            }
            for name, mark in sorted(found.items())
        ],
    }
