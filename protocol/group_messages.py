"""The requests and responses of consumer groups; as in messages.py, arrays with fixed positions.

How a member lives, in these messages:

    join        group_heartbeat with member_epoch 0 and a member_id that the client made (a uuid)
    live        group_heartbeat again and again; the broker holds it until there is news to tell
    take, give  `assignment` is what the member may use: it takes what is new at once, and stops
                using, commits and drops what is missing. The next heartbeat repeats
                `assignment_version` and lists what it still holds in `owned`; only then is what it
                dropped given to another
    commit      commit_offsets with member_id and member_epoch
    leave       group_leave
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from .constants import (
    MAX_ARRAY_LENGTH,
    MAX_ASSIGNORS,
    MAX_CLIENT_NAME_LENGTH,
    MAX_COMMIT_METADATA_LENGTH,
    MAX_GROUP_NAME_LENGTH,
    MAX_HEARTBEAT_WAIT_MS,
    MAX_MEMBER_ID_LENGTH,
    MAX_PARTITIONS_PER_TOPIC,
    NO_MEMBER,
    NO_OFFSET,
    UNKNOWN_EPOCH,
)
from .messages import ManyPartitions, Message, PartitionNumber, TopicName, WireError

GroupName = Annotated[str, Meta(min_length=1, max_length=MAX_GROUP_NAME_LENGTH)]
_ID_PATTERN = r"\A[A-Za-z0-9._:-]+\Z"
MemberId = Annotated[str, Meta(min_length=1, max_length=MAX_MEMBER_ID_LENGTH, pattern=_ID_PATTERN)]
MaybeMemberId = Annotated[
    str, Meta(max_length=MAX_MEMBER_ID_LENGTH, pattern=r"\A[A-Za-z0-9._:-]*\Z")
]
MemberEpoch = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Version = Annotated[int, Meta(ge=0, le=2**63 - 1)]
AssignorName = Annotated[str, Meta(min_length=1, max_length=MAX_CLIENT_NAME_LENGTH)]


class TopicPartitions(Message):
    """Partitions of one topic, by their numbers."""

    topic: TopicName
    partitions: Annotated[list[PartitionNumber], Meta(max_length=MAX_PARTITIONS_PER_TOPIC)]


class GroupHeartbeatRequest(Message):
    """Join a group, and stay in it.

    Every heartbeat says everything; one that is lost, late or sent twice does no harm.

    `member_id`: made by the client when it starts, a uuid; never used by two processes.
    `member_epoch`: 0 joins (also again, after UnknownMember or StaleMemberEpoch); else the epoch of
    the last answer.
    `instance_id`: nil, or the name of a seat that outlives the process (a static member): a new
    member_id with the same instance_id takes the seat over at once, with all its partitions.
    `session_timeout_ms`: the member is removed this long after the arrival of its last heartbeat.
    `assignors`: the names it supports, the preferred one first.
    `topics`: the topics it wants, by name; one that does not exist is waited for.
    `owned`: every partition it holds now: what it uses, and what it was told to give up and has not
    finished with. Empty with member_epoch 0.
    `max_wait_ms`: the answer may wait this long (at most a third of the session timeout) for
    something to tell. A newer heartbeat of the same member ends the wait of an older one.
    `assignment_version`: of the last answer that the member has acted on; 0 with member_epoch 0.
    Where it is not the newest, the newest assignment is answered at once and the rest of the
    heartbeat, but for the sign of life, is left out of account.
    `topics_version`: of the last answer, by a member that wants to be told at once when any topic
    appears or goes (it subscribes by a pattern, and resolves it by itself); 0: only with the next
    answer.
    """

    group: GroupName
    member_id: MemberId
    member_epoch: MemberEpoch
    instance_id: MemberId | None
    session_timeout_ms: Annotated[int, Meta(ge=1, lt=2**31)]
    assignors: Annotated[list[AssignorName], Meta(min_length=1, max_length=MAX_ASSIGNORS)]
    topics: Annotated[list[TopicName], Meta(max_length=MAX_ARRAY_LENGTH)]
    owned: Annotated[list[TopicPartitions], Meta(max_length=MAX_ARRAY_LENGTH)] = field(
        default_factory=list
    )
    max_wait_ms: Annotated[int, Meta(ge=0, le=MAX_HEARTBEAT_WAIT_MS)] = 0
    assignment_version: Version = 0
    topics_version: Version = 0


class GroupHeartbeatResponse(Message):
    """`member_epoch`: for the next heartbeat and for commits; it only grows.
    `assignment`: every partition that the member may use now, topics and numbers sorted. What it
    holds beyond that it must finish, commit and drop. More may be added later, as others drop it.
    `assignment_version`: names this assignment; to be sent back once it is acted on.
    `heartbeat_interval_ms`: send the next heartbeat at the latest this long after this answer.
    `topics_version`: another number than before: topics or partitions have appeared or gone.
    """

    member_epoch: int
    assignment: list[TopicPartitions]
    assignment_version: int
    heartbeat_interval_ms: int
    topics_version: int


class GroupLeaveRequest(Message):
    """Leave; everything the member held is free at once.

    A static member keeps its seat and its partitions, with `keep_seat`, until its session timeout:
    a restart within that time moves nothing. `keep_seat` means nothing for the others.
    """

    group: GroupName
    member_id: MemberId
    member_epoch: MemberEpoch
    keep_seat: bool = True


class OffsetCommit(Message):
    """`offset`: of the next record to read. `metadata`: text of the application's own.
    `log_epoch`: of the last batch read; -1: not known.
    """

    topic: TopicName
    partition: PartitionNumber
    offset: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    metadata: Annotated[str, Meta(max_length=MAX_COMMIT_METADATA_LENGTH)] = ""
    log_epoch: Annotated[int, Meta(ge=UNKNOWN_EPOCH, lt=2**32)] = UNKNOWN_EPOCH


class CommitOffsetsRequest(Message):
    """Durable once it is answered. One partition may fail alone, with NotOwner, UnknownTopic or
    UnknownPartition; UnknownMember, StaleMemberEpoch, MemberFenced and GroupNotEmpty refuse it all.

    `member_id` "" commits without membership (tools, Spark): allowed while nobody is a member.
    """

    group: GroupName
    member_id: MaybeMemberId
    member_epoch: MemberEpoch
    offsets: Annotated[list[OffsetCommit], ManyPartitions]

    @property
    def has_member(self) -> bool:
        return self.member_id != NO_MEMBER


class CommitResult(Message):
    error: WireError | None


class CommitOffsetsResponse(Message):
    results: list[CommitResult]


class FetchOffsetsRequest(Message):
    """The committed offsets of these partitions; nil: of all that have one. Needs no membership,
    and no group: where there is none, nothing was committed.
    """

    group: GroupName
    partitions: Annotated[list[TopicPartitions], Meta(max_length=MAX_ARRAY_LENGTH)] | None = None


class CommittedOffset(Message):
    """`offset` -1: nothing was committed. `commit_time_ms`: milliseconds since the epoch, UTC."""

    topic: str
    partition: int
    offset: int = NO_OFFSET
    metadata: str = ""
    log_epoch: int = UNKNOWN_EPOCH
    commit_time_ms: int = -1


class FetchOffsetsResponse(Message):
    """In the order asked; sorted where all were asked for."""

    offsets: list[CommittedOffset]


class ListGroupsRequest(Message):
    """All groups."""


class GroupListing(Message):
    """`state`: empty, rebalancing (partitions are on the move) or stable."""

    group: str
    state: str
    members: int
    assignor: str


class ListGroupsResponse(Message):
    groups: list[GroupListing]


class DescribeGroupRequest(Message):
    group: GroupName


class MemberDescription(Message):
    """`owned`: what the member holds, with what it still has to give up."""

    member_id: str
    instance_id: str | None
    client_name: str
    address: str
    member_epoch: int
    session_timeout_ms: int
    topics: list[str]
    owned: list[TopicPartitions]


class GroupPartition(Message):
    """`offset` -1: nothing was committed, and the lag is not known.
    `lag_records`: offsets between the committed one (or the log start, where that is higher) and
    the durable end; -1: not known.
    `lag_ms`: since when the oldest unread record waits; 0: all is read; -1: not known.
    `owner`: a member_id, or "".
    """

    topic: str
    partition: int
    error: WireError | None
    offset: int = NO_OFFSET
    metadata: str = ""
    commit_time_ms: int = -1
    log_start: int = -1
    durable_end: int = -1
    lag_records: int = -1
    lag_ms: int = -1
    owner: str = ""


class DescribeGroupResponse(Message):
    """`partitions`: those with a committed offset, and those that members subscribe to; sorted."""

    group: str
    state: str
    epoch: int
    assignor: str
    members: list[MemberDescription]
    partitions: list[GroupPartition]


class DeleteGroupRequest(Message):
    """Forget a group without members, and its committed offsets."""

    group: GroupName
