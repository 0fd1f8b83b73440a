"""The coordinator, step by step, where the order of events is the point of the test."""

from __future__ import annotations

import pytest

from seglog.protocol.errors import MemberFenced, NotOwner, StaleMemberEpoch
from seglog.protocol.group_messages import (
    CommitOffsetsRequest,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    OffsetCommit,
)
from seglog.server.groups.coordinator import Coordinator
from seglog.server.groups.limits import GroupLimits
from seglog.server.groups.offsets import by_topic, flat
from seglog.server.groups.records import group_key, member_key
from seglog.server.groups.state import Topic

Place = tuple[str, int]


class World:
    """A coordinator with its clock and its disk, and heartbeats by hand."""

    def __init__(self, partitions: int = 2) -> None:
        self.now_ms = 0
        self.disk: dict[bytes, bytes] = {}
        self.topics = {"t": Topic("id-1", partitions)}
        self.coordinator = self.start()

    def start(self) -> Coordinator:
        coordinator = Coordinator(
            GroupLimits(), lambda: self.now_ms, lambda: self.now_ms, self.save
        )
        for name, topic in self.topics.items():
            coordinator.set_topic(name, topic)
        coordinator.load(dict(self.disk))
        coordinator.settle("g")
        return coordinator

    def save(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.disk.pop(key, None)
        else:
            self.disk[key] = value

    def request(
        self, member: str, seen: GroupHeartbeatResponse | None = None, *holds: Place, **options: str
    ) -> GroupHeartbeatRequest:
        return GroupHeartbeatRequest(
            "g",
            member,
            seen.member_epoch if seen else 0,
            options.get("instance_id"),
            1_000,
            ["sticky"],
            options.get("topic", "t").split(","),
            by_topic(holds),
            0,
            seen.assignment_version if seen else 0,
        )

    def beat(self, request: GroupHeartbeatRequest) -> GroupHeartbeatResponse:
        self.coordinator.heartbeat(request)
        self.coordinator.settle("g")
        return self.coordinator.answer("g", request.member_id)

    def commit(self, member: str, seen: GroupHeartbeatResponse, place: Place) -> object:
        request = CommitOffsetsRequest("g", member, seen.member_epoch, [OffsetCommit(*place, 1)])
        return self.coordinator.commit(request)[0]


def test_a_heartbeat_from_before_a_grant_frees_nothing_however_late_it_comes():
    world = World(partitions=2)
    one = world.beat(world.request("m1"))
    two = world.beat(world.request("m2"))
    late = world.request("m2", two)  # it holds nothing yet
    one = world.beat(world.request("m1", one, *flat(one.assignment)))
    one = world.beat(world.request("m1", one, *flat(one.assignment)))
    granted = world.beat(world.request("m2", two))
    (place,) = flat(granted.assignment)
    assert granted.member_epoch == two.member_epoch  # so the epoch does not tell
    told = world.beat(world.request("m2", granted, place, topic="other"))
    assert told.assignment == []  # to give it up, but it still works on it
    world.beat(late)
    assert world.coordinator.groups["g"].owners[place] == "m2"
    world.beat(world.request("m2", told, topic="other"))
    assert world.coordinator.groups["g"].owners[place] == "m1"


def test_a_partition_that_two_records_claim_is_the_later_ones():
    world = World(partitions=2)
    one = world.beat(world.request("m1"))
    before = world.disk[member_key("g", "m1")]
    two = world.beat(world.request("m2"))
    one = world.beat(world.request("m1", one, ("t", 0), ("t", 1)))
    (kept,) = flat(one.assignment)
    moved = next(place for place in (("t", 0), ("t", 1)) if place != kept)
    one = world.beat(world.request("m1", one, kept))
    two = world.beat(world.request("m2", two))
    assert flat(two.assignment) == [moved]
    world.disk[member_key("g", "m1")] = before  # the grant reached the disk, the release did not
    world.coordinator = world.start()
    assert world.coordinator.groups["g"].owners == {kept: "m1", moved: "m2"}


def test_a_fenced_member_cannot_take_its_seat_back_with_a_late_join():
    world = World()
    join = world.request("old", instance_id="seat")
    old = world.beat(join)
    new = world.beat(world.request("new", instance_id="seat"))
    assert new.assignment == old.assignment
    for request in (join, world.request("old", old, instance_id="seat")):
        with pytest.raises(MemberFenced):
            world.coordinator.heartbeat(request)
    world.coordinator = world.start()
    with pytest.raises(MemberFenced):
        world.coordinator.heartbeat(join)
    assert world.beat(world.request("new", new, instance_id="seat")).assignment == new.assignment


def test_a_seat_that_changes_hands_makes_a_plan_stale_that_names_its_former_owner():
    world = World()
    world.beat(world.request("old", instance_id="seat"))
    world.coordinator.set_topic("t", Topic("id-1", 4))
    plan = world.coordinator.plan("g")
    world.coordinator.heartbeat(world.request("new", instance_id="seat"))
    assert plan is not None
    assert not world.coordinator.settle("g", plan)
    world.coordinator.settle("g")
    assert len(flat(world.coordinator.answer("g", "new").assignment)) == 4


def test_what_a_member_holds_of_a_deleted_topic_is_not_the_new_topics():
    world = World(partitions=1)
    one = world.beat(world.request("m1"))
    world.coordinator.remove_topic("t")
    world.coordinator.settle("g")
    world.coordinator.set_topic("t", Topic("id-2", 1))
    world.coordinator.settle("g")
    assert isinstance(world.commit("m1", one, ("t", 0)), NotOwner)
    told = world.beat(world.request("m1", one, ("t", 0)))
    assert told.assignment == []
    told = world.beat(world.request("m1", told))
    assert flat(told.assignment) == [("t", 0)]
    assert world.commit("m1", told, ("t", 0)) is None


def test_a_commit_from_a_members_former_life_is_refused():
    world = World()
    former = world.beat(world.request("m1"))
    world.now_ms = 1_000
    assert world.coordinator.expire() == [("g", "m1")]
    again = world.beat(world.request("m1"))
    assert again.member_epoch > former.member_epoch
    with pytest.raises(StaleMemberEpoch):
        world.commit("m1", former, ("t", 0))
    assert world.commit("m1", again, ("t", 0)) is None


def test_a_session_runs_from_the_last_heartbeat_and_in_full_after_a_restart():
    world = World()
    one = world.beat(world.request("m1"))
    world.now_ms = 900
    world.beat(world.request("m1", one, *flat(one.assignment)))
    world.now_ms = 1_800
    assert world.coordinator.expire() == []
    world.coordinator = world.start()
    world.now_ms = 2_799
    assert world.coordinator.expire() == []
    world.coordinator.postpone(100)
    world.now_ms = 2_899
    assert world.coordinator.expire() == []
    world.now_ms = 2_900
    assert world.coordinator.expire() == [("g", "m1")]


def test_members_whose_share_does_not_change_are_not_told_anything():
    world = World(partitions=4)
    one = world.beat(world.request("m1"))
    two = world.beat(world.request("m2"))
    for _ in range(3):
        one = world.beat(world.request("m1", one, *flat(one.assignment)))
        two = world.beat(world.request("m2", two, *flat(two.assignment)))
    world.coordinator.take_news()
    world.beat(world.request("m3", topic="nothing"))
    assert world.coordinator.take_news() == set()
    heard = world.coordinator.heartbeat(world.request("m1", one, *flat(one.assignment)))
    assert not heard.has_news


def test_an_empty_group_is_forgotten_with_its_last_offset():
    world = World()
    world.coordinator.commit(CommitOffsetsRequest("g", "", 0, [OffsetCommit("t", 0, 1)]))
    world.now_ms = GroupLimits().offsets_retention_ms
    world.coordinator.expire_offsets()
    assert "g" in world.coordinator.groups
    world.now_ms += 1
    world.coordinator.expire_offsets()
    assert not world.coordinator.groups
    assert not world.disk


def test_who_takes_a_seat_over_has_nothing_to_give_up_and_gets_what_was_withheld():
    world = World(partitions=1)
    world.beat(world.request("old", instance_id="seat", topic="t,u"))
    world.coordinator.remove_topic("t")
    world.coordinator.set_topic("u", Topic("id-2", 1))
    world.coordinator.settle("g")
    assert world.coordinator.answer("g", "old").assignment == []  # it has to give t/0 up first
    new = world.beat(world.request("new", instance_id="seat", topic="t,u"))
    assert flat(new.assignment) == [("u", 0)]


def test_an_epoch_that_was_told_is_never_given_out_again():
    world = World()
    one = world.beat(world.request("m1"))
    before = world.disk[group_key("g")]
    world.coordinator.set_topic("t", Topic("id-1", 3))
    world.topics["t"] = Topic("id-1", 3)
    one = world.beat(world.request("m1", one, *flat(one.assignment)))
    world.disk[group_key("g")] = before  # the member's record reached the disk, the group's did not
    world.coordinator = world.start()
    again = world.beat(world.request("m1", one, *flat(one.assignment)))
    assert again.member_epoch > one.member_epoch
