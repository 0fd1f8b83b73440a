"""The broker's side of consumer groups, over a socket."""

from __future__ import annotations

import asyncio
import errno
import os
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from seglog.protocol import api, errors
from seglog.protocol.group_messages import (
    CommitOffsetsRequest,
    DeleteGroupRequest,
    DescribeGroupRequest,
    FetchOffsetsRequest,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    GroupLeaveRequest,
    ListGroupsRequest,
    OffsetCommit,
    TopicPartitions,
)
from seglog.protocol.messages import AlterTopicRequest, DeleteTopicRequest, MetadataRequest
from seglog.server.app import Broker
from seglog.server.groups.offsets import by_topic, flat
from seglog.server.storage.filesystem import Buffer, File, FileSystem

from tests.brokers import RawClient, broker_process, fetch_request, running_broker

#: Nobody's session ends, and no heartbeat comes back by itself, before a test has hung.
SESSION_MS = 30 * 60 * 1000
LONG_MS = 60_000
PATIENCE_S = 50

Place = tuple[str, int]


class Member:
    """A member by hand: each heartbeat is one call."""

    def __init__(self, client: RawClient, group: str = "g", **options: Any) -> None:
        self.client = client
        self.group = group
        self.id = str(uuid.uuid4())
        self.topics: list[str] = options.pop("topics", ["t"])
        self.options = {"session_timeout_ms": SESSION_MS, "instance_id": None, **options}
        self.epoch = self.version = self.topics_version = 0
        self.holds: set[Place] = set()
        self.assignment: set[Place] = set()

    def request(self, max_wait_ms: int = 0) -> GroupHeartbeatRequest:
        return GroupHeartbeatRequest(
            self.group,
            self.id,
            self.epoch,
            self.options["instance_id"],
            self.options["session_timeout_ms"],
            self.options.get("assignors", ["sticky"]),
            self.topics,
            by_topic(self.holds),
            max_wait_ms,
            self.version,
            self.options.get("topics_version", 0),
        )

    async def beat(self, max_wait_ms: int = 0, *, gives_up: bool = True) -> GroupHeartbeatResponse:
        answer = await self.client.call(api.GROUP_HEARTBEAT, self.request(max_wait_ms))
        return self.hear(answer, gives_up=gives_up)

    def hear(
        self, answer: GroupHeartbeatResponse, *, gives_up: bool = True
    ) -> GroupHeartbeatResponse:
        self.epoch, self.version = answer.member_epoch, answer.assignment_version
        self.assignment = set(flat(answer.assignment))
        self.holds |= self.assignment
        if gives_up:
            self.holds &= self.assignment
        return answer

    async def leave(self, *, keep_seat: bool = True) -> None:
        request = GroupLeaveRequest(self.group, self.id, self.epoch, keep_seat)
        await self.client.call(api.GROUP_LEAVE, request)

    async def commit(self, *offsets: OffsetCommit) -> list[errors.SeglogError | None]:
        request = CommitOffsetsRequest(self.group, self.id, self.epoch, list(offsets))
        return await commit(self.client, request)


async def commit(
    client: RawClient, request: CommitOffsetsRequest
) -> list[errors.SeglogError | None]:
    response = await client.call(api.COMMIT_OFFSETS, request)
    return [result.error and result.error.to_exception() for result in response.results]


async def committed(client: RawClient, group: str = "g") -> dict[Place, int]:
    response = await client.call(api.FETCH_OFFSETS, FetchOffsetsRequest(group))
    return {(found.topic, found.partition): found.offset for found in response.offsets}


async def calm(*members: Member) -> None:
    """Let them talk until nobody is told anything new."""
    for _ in range(6):
        for member in members:
            await member.beat()


def places(count: int, topic: str = "t") -> set[Place]:
    return {(topic, number) for number in range(count)}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running_broker(tmp_path / "data", group_min_session_timeout_ms=100) as running:
        yield running


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[RawClient]:
    async with await RawClient.open(broker.port) as opened:
        yield opened


async def test_two_members_share_a_topic_and_the_second_waits_for_the_first(client):
    await client.create("t", 4)
    first, second = Member(client), Member(client)
    await first.beat()
    assert first.assignment == places(4)
    await second.beat()
    assert second.assignment == set()
    await first.beat(gives_up=False)  # it is told, and still works on two partitions
    assert len(first.assignment) == 2
    await first.beat(gives_up=False)
    await second.beat()
    assert second.assignment == set()
    first.holds = set(first.assignment)
    await first.beat()
    await second.beat()
    assert first.assignment | second.assignment == places(4)
    assert not first.assignment & second.assignment


async def test_a_waiting_heartbeat_is_answered_at_once_when_the_assignment_changes(broker, client):
    await client.create("t", 2)
    first = Member(client)
    await first.beat()
    client.send(api.GROUP_HEARTBEAT, first.request(LONG_MS))
    async with await RawClient.open(broker.port) as other:
        second = Member(other)
        await second.beat()
        async with asyncio.timeout(PATIENCE_S):  # by itself it would wait for LONG_MS
            first.hear(await client.answer(api.GROUP_HEARTBEAT))
        assert len(first.assignment) == 1
        other.send(api.GROUP_HEARTBEAT, second.request(LONG_MS))
        await first.beat()
        async with asyncio.timeout(PATIENCE_S):
            second.hear(await other.answer(api.GROUP_HEARTBEAT))
        assert len(second.assignment) == 1


async def test_a_heartbeat_waits_no_longer_than_a_third_of_the_session(client):
    await client.create("t", 1)
    member = Member(client, session_timeout_ms=3_000)
    await member.beat()
    # One that waits for less than the session, and for more than a third of it, is answered later.
    parked = client.send(api.GROUP_HEARTBEAT, member.request(LONG_MS))
    fetch = client.send(api.FETCH, fetch_request(("t", 0, 0), max_wait_ms=2_500, min_bytes=1))
    short = client.send(api.FETCH, fetch_request(("t", 0, 0), max_wait_ms=200, min_bytes=1))
    order = [(await client.receive()).correlation_id for _ in range(3)]
    assert order == [short, parked, fetch]


async def test_a_newer_heartbeat_ends_the_wait_of_the_older_one(client):
    await client.create("t", 1)
    member = Member(client)
    await member.beat()
    older = client.send(api.GROUP_HEARTBEAT, member.request(LONG_MS))
    client.send(api.GROUP_HEARTBEAT, member.request(LONG_MS))
    async with asyncio.timeout(PATIENCE_S):
        assert (await client.receive()).correlation_id == older


async def test_a_silent_member_is_removed_and_its_partitions_go_to_the_others(broker, client):
    await client.create("t", 4)
    silent, other = Member(client), Member(client)
    await silent.beat()
    await other.beat()
    assert other.assignment == set()
    silent.options["session_timeout_ms"] = 300
    await silent.beat(gives_up=False)  # its last: it still holds all four
    await silent.beat(gives_up=False)
    async with asyncio.timeout(PATIENCE_S):
        while other.assignment != places(4):
            await other.beat(LONG_MS)
    with pytest.raises(errors.UnknownMember):
        await silent.beat()
    with pytest.raises(errors.UnknownMember):
        await silent.commit(OffsetCommit("t", 0, 5))


async def test_who_leaves_frees_its_partitions_at_once(client):
    await client.create("t", 4)
    first, second = Member(client), Member(client)
    await calm(first, second)
    await first.leave()
    await second.beat(LONG_MS)
    assert second.assignment == places(4)


async def test_a_restarted_static_member_has_its_seat_and_nobody_notices(client):
    await client.create("t", 4)
    first, second = Member(client), Member(client, instance_id="seat-2")
    await calm(first, second)
    before = second.assignment, first.version, first.epoch
    await second.leave()
    again = Member(client, instance_id="seat-2")
    await again.beat()
    await first.beat()
    assert (again.assignment, first.version, first.epoch) == before
    with pytest.raises(errors.MemberFenced):
        await second.beat()
    with pytest.raises(errors.MemberFenced):
        await second.commit(OffsetCommit("t", min(second.assignment)[1], 5))


async def test_a_static_member_that_leaves_for_good_frees_its_seat(client):
    await client.create("t", 4)
    first, second = Member(client), Member(client, instance_id="seat-2")
    await calm(first, second)
    await second.leave(keep_seat=False)
    await first.beat(LONG_MS)
    assert first.assignment == places(4)


async def test_an_exclusive_member_shares_its_group_with_nobody(client):
    await client.create("t", 4)
    first = Member(client, assignors=["exclusive"])
    await first.beat()
    for assignors in (["exclusive"], ["sticky", "range"], ["exclusive", "sticky"]):
        with pytest.raises(errors.GroupTaken, match=f"in use by raw at .*{first.id}.*that one"):
            await Member(client, assignors=assignors).beat()
    await first.beat()
    assert first.assignment == places(4)  # it was not disturbed
    await first.leave()
    second = Member(client)
    await second.beat()
    with pytest.raises(errors.GroupTaken, match=f"{second.id}.*this one does not share it"):
        await Member(client, assignors=["exclusive"]).beat()


async def test_an_exclusive_members_seat_can_be_taken_over(client):
    await client.create("t", 4)
    first = Member(client, assignors=["exclusive"], instance_id="seat")
    await first.beat()
    second = Member(client, assignors=["exclusive"], instance_id="seat")
    await second.beat()
    assert second.assignment == places(4)
    with pytest.raises(errors.MemberFenced):
        await first.beat()


async def test_a_member_without_a_common_assignor_is_refused(client):
    await client.create("t", 4)
    first = Member(client, assignors=["range", "sticky"])
    await first.beat()
    with pytest.raises(errors.NoCommonAssignor):
        await Member(client, assignors=["roundrobin"]).beat()
    with pytest.raises(errors.NoCommonAssignor):
        await Member(client, group="other", assignors=["made-up"]).beat()
    second = Member(client, assignors=["sticky", "range"])
    await calm(first, second)
    described = await client.call(api.DESCRIBE_GROUP, DescribeGroupRequest("g"))
    assert described.assignor == "range"
    assert sorted(map(sorted, [first.assignment, second.assignment])) == [
        [("t", 0), ("t", 1)],
        [("t", 2), ("t", 3)],
    ]


async def test_only_the_owner_commits(client):
    await client.create("t", 2)
    first, second = Member(client), Member(client)
    await calm(first, second)
    ((_, mine),), ((_, others),) = first.assignment, second.assignment
    results = await first.commit(OffsetCommit("t", mine, 5), OffsetCommit("t", others, 6))
    assert results[0] is None
    assert isinstance(results[1], errors.NotOwner)
    missing = await first.commit(OffsetCommit("t", 9, 1), OffsetCommit("nothing", 0, 1))
    assert [type(error) for error in missing] == [errors.NotOwner, errors.NotOwner]
    assert await committed(client) == {("t", mine): 5}
    first.epoch -= 1
    with pytest.raises(errors.StaleMemberEpoch):
        await first.commit(OffsetCommit("t", mine, 7))


async def test_without_membership_offsets_are_taken_while_nobody_is_a_member(client):
    await client.create("t", 2)
    without = CommitOffsetsRequest("g", "", 0, [OffsetCommit("t", 1, 7, "note", 3)])
    assert await commit(client, without) == [None]
    member = Member(client)
    await member.beat()
    with pytest.raises(errors.GroupNotEmpty):
        await commit(client, without)
    await member.leave()
    assert await commit(client, without) == [None]
    asked = FetchOffsetsRequest("g", [TopicPartitions("t", [0, 1])])
    nothing, found = (await client.call(api.FETCH_OFFSETS, asked)).offsets
    assert (nothing.offset, nothing.metadata) == (-1, "")
    assert (found.offset, found.metadata, found.log_epoch) == (7, "note", 3)
    unknown = CommitOffsetsRequest("g", "", 0, [OffsetCommit("t", 2, 0), OffsetCommit("x", 0, 0)])
    results = await commit(client, unknown)
    assert [type(error) for error in results] == [errors.UnknownPartition, errors.UnknownTopic]


async def test_a_grown_topic_is_shared_out_and_a_deleted_one_forgotten(client):
    await client.create("t", 1)
    member = Member(client, topics=["t", "later"])
    await member.beat()
    await client.call(api.ALTER_TOPIC, AlterTopicRequest("t", 3))
    await member.beat(LONG_MS)
    assert member.assignment == places(3)
    await client.create("later", 1)
    await member.beat(LONG_MS)
    assert member.assignment == places(3) | places(1, "later")
    assert await member.commit(OffsetCommit("t", 0, 5)) == [None]
    await client.call(api.DELETE_TOPIC, DeleteTopicRequest("t"))
    await member.beat(LONG_MS)
    assert member.assignment == places(1, "later")
    await client.create("t", 1)
    assert await committed(client) == {}
    await calm(member)
    assert member.assignment == places(1) | places(1, "later")


async def test_who_subscribes_by_a_pattern_is_told_of_a_new_topic_at_once(client, broker):
    await client.create("t", 1)
    member = Member(client)
    version = (await member.beat()).topics_version
    member.options["topics_version"] = version
    client.send(api.GROUP_HEARTBEAT, member.request(LONG_MS))
    async with await RawClient.open(broker.port) as other:
        await other.create("t2", 1)
    async with asyncio.timeout(PATIENCE_S):
        answer = await client.answer(api.GROUP_HEARTBEAT)
    assert answer.topics_version > version


async def test_groups_do_not_affect_each_other(client):
    await client.create("t", 4)
    one, other = Member(client, "one"), Member(client, "other")
    await calm(one, other)
    assert one.assignment == other.assignment == places(4)
    assert await one.commit(OffsetCommit("t", 0, 5)) == [None]
    assert await committed(client, "other") == {}
    version, epoch = other.version, other.epoch
    await one.leave()
    await other.beat()
    assert (other.version, other.epoch, other.assignment) == (version, epoch, places(4))


async def test_a_description_has_members_offsets_owners_and_lag(client):
    await client.create("t", 2)
    await client.produce("t", 0, b"a", b"b", b"c")
    member = Member(client)
    await member.beat()
    assert await member.commit(OffsetCommit("t", 0, 1, "note")) == [None]
    described = await client.call(api.DESCRIBE_GROUP, DescribeGroupRequest("g"))
    while described.partitions[0].lag_ms < 20:  # it grows with the time
        described = await client.call(api.DESCRIBE_GROUP, DescribeGroupRequest("g"))
    assert (described.state, described.assignor, described.epoch) == ("stable", "sticky", 1)
    (seen,) = described.members
    assert (seen.member_id, seen.client_name, seen.address) == (member.id, "raw", "127.0.0.1")
    assert (seen.topics, flat(seen.owned)) == (["t"], sorted(places(2)))
    read, unread = described.partitions
    assert (read.offset, read.metadata, read.owner) == (1, "note", member.id)
    assert (read.log_start, read.durable_end, read.lag_records) == (0, 3, 2)
    assert read.lag_ms >= 20
    assert (unread.offset, unread.lag_records, unread.lag_ms) == (-1, -1, -1)
    assert await member.commit(OffsetCommit("t", 0, 3)) == [None]
    described = await client.call(api.DESCRIBE_GROUP, DescribeGroupRequest("g"))
    assert (described.partitions[0].lag_records, described.partitions[0].lag_ms) == (0, 0)


async def test_groups_are_listed_and_deleted_when_nobody_is_in_them(client):
    await client.create("t", 1)
    member = Member(client)
    await member.beat()
    listed = await client.call(api.LIST_GROUPS, ListGroupsRequest())
    assert [(g.group, g.state, g.members) for g in listed.groups] == [("g", "stable", 1)]
    with pytest.raises(errors.GroupNotEmpty):
        await client.call(api.DELETE_GROUP, DeleteGroupRequest("g"))
    await member.commit(OffsetCommit("t", 0, 1))
    await member.leave()
    await client.call(api.DELETE_GROUP, DeleteGroupRequest("g"))
    assert await committed(client) == {}
    for request in (DeleteGroupRequest("g"), DescribeGroupRequest("g")):
        which = api.DELETE_GROUP if isinstance(request, DeleteGroupRequest) else api.DESCRIBE_GROUP
        with pytest.raises(errors.UnknownGroup):
            await client.call(which, request)


@pytest.mark.parametrize("name", ["../up", "with space", ".hidden", "ü"])
async def test_a_bad_group_name_is_refused_by_name(client, name):
    with pytest.raises(errors.BadGroupName):
        await Member(client, name).beat()
    with pytest.raises(errors.BadGroupName):
        await committed(client, name)


async def test_the_topic_of_groups_is_hidden_and_protected(client):
    await client.create("t", 1)
    await Member(client).beat()
    metadata = await client.call(api.METADATA, MetadataRequest())
    assert [topic.name for topic in metadata.topics] == ["t"]
    with pytest.raises(errors.ProtectedTopic):
        await client.produce("__groups", 0, b"x")
    member = Member(client, "spy", topics=["__groups"])
    await member.beat()
    assert member.assignment == set()


async def test_limits_are_named(tmp_path):
    limits: dict[str, Any] = {
        "max_groups": 1,
        "max_members_per_group": 1,
        "group_max_subscribed_topics": 2,
        "max_committed_offsets": 1,
        "group_max_metadata_length": 3,
    }
    async with (
        running_broker(tmp_path, **limits) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t", 2)
        with pytest.raises(errors.LimitExceeded, match="session"):
            await Member(client, session_timeout_ms=1).beat()
        with pytest.raises(errors.LimitExceeded, match="subscribed"):
            await Member(client, topics=["a", "b", "c"]).beat()
        member = Member(client)
        await member.beat()
        with pytest.raises(errors.LimitExceeded, match="members"):
            await Member(client).beat()
        with pytest.raises(errors.LimitExceeded, match=r"max\.groups"):
            await Member(client, "second").beat()
        taken, beyond = await member.commit(OffsetCommit("t", 0, 1), OffsetCommit("t", 1, 1))
        assert taken is None
        assert isinstance(beyond, errors.LimitExceeded)
        (wordy,) = await member.commit(OffsetCommit("t", 0, 1, "four"))
        assert isinstance(wordy, errors.LimitExceeded)


async def test_a_killed_broker_comes_back_with_offsets_owners_and_epochs(tmp_path):
    async with broker_process(tmp_path) as process:
        client = await RawClient.open(process.port)
        await client.create("t", 4)
        first, second = Member(client), Member(client)
        await first.beat()
        await second.beat()
        assert await first.commit(OffsetCommit("t", 0, 9)) == [None]
        await first.beat(gives_up=False)  # in the middle of a rebalance
        process.process.kill()
        await process.process.wait()
        client.close()
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as client:
        first.client = second.client = client
        assert await committed(client) == {("t", 0): 9}
        epoch, keeps = first.epoch, set(first.assignment)
        await second.beat()
        assert second.assignment == set()  # what the first holds is still the first's
        await first.beat(gives_up=False)
        assert first.epoch >= epoch
        first.holds &= first.assignment
        await calm(first, second)
        assert first.assignment | second.assignment == places(4)
        assert len(first.assignment & keeps) == 2


class FullFile(File):
    """A file on a disk that can be full."""

    fs: FullDisk

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        self.fs.check(self.path)
        return super().write(buffers, position)


class FullDisk(FileSystem):
    """Has no room for groups, as long as `is_full`."""

    is_full = False

    def check(self, path: str) -> None:
        if self.is_full and "__groups" in path:
            raise OSError(errno.ENOSPC, "no space left on device")

    def create(self, path: str) -> File:
        file = super().create(path)
        full = FullFile(path, os.dup(file.descriptor))
        full.fs = self
        file.close()
        return full


async def test_what_cannot_be_saved_is_not_told_and_not_forgotten(tmp_path):
    disk = FullDisk()
    async with (
        running_broker(tmp_path, disk) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t", 2)
        first, second = Member(client), Member(client)
        await first.beat()
        disk.is_full = True
        with pytest.raises(errors.StorageFull):
            await second.beat()
        with pytest.raises(errors.StorageFull):
            await first.commit(OffsetCommit("t", 0, 5))
        with pytest.raises(errors.StorageFull):
            await committed(client)
        await client.produce("t", 0, b"others are not held up")
        disk.is_full = False
        await calm(first, second)
        assert len(first.assignment) == len(second.assignment) == 1
        assert await first.commit(OffsetCommit("t", min(first.assignment)[1], 6)) == [None]


async def test_a_stopped_broker_answers_who_waits(tmp_path):
    async with running_broker(tmp_path) as broker:
        client = await RawClient.open(broker.port)
        await client.create("t", 1)
        member = Member(client)
        await member.beat()
        client.send(api.GROUP_HEARTBEAT, member.request(LONG_MS))
        asked = client.send(api.METADATA, MetadataRequest())
        assert (await client.receive()).correlation_id == asked  # what came before it waits now
        async with asyncio.timeout(PATIENCE_S):
            await broker.stop()
            answer = await client.answer(api.GROUP_HEARTBEAT)
        assert answer.assignment_version == member.version
        client.close()
