"""Committed offsets: who has which, for how long, and of which topic."""

from __future__ import annotations

import pytest

from seglog.protocol.errors import LimitExceeded, UnknownPartition, UnknownTopic
from seglog.protocol.group_messages import OffsetCommit, TopicPartitions
from seglog.server.groups.limits import GroupLimits
from seglog.server.groups.offsets import Offsets, by_topic, flat
from seglog.server.groups.records import Committed, decode_key, decode_offset
from seglog.server.groups.state import Topic

DAY_MS = 24 * 60 * 60 * 1000


class Kept:
    """Offsets, with the clock, the topics and the disk in hand."""

    def __init__(self, **limits: int) -> None:
        self.now_ms = 1_000 * DAY_MS
        self.topics = {"t": Topic("id-1", 2)}
        self.disk: dict[bytes, bytes | None] = {}
        self.offsets = Offsets(
            GroupLimits(**limits), self.topics, lambda: self.now_ms, self.disk.__setitem__
        )

    def saved(self) -> dict[tuple[str | int, ...], int | None]:
        return {
            tuple(decode_key(key)[1:]): None if value is None else decode_offset(value).offset
            for key, value in self.disk.items()
        }

    def found(self, group: str = "g") -> dict[tuple[str, int], int]:
        return {(one.topic, one.partition): one.offset for one in self.offsets.fetch(group)}


def test_the_last_commit_counts_and_is_saved_under_one_key():
    kept = Kept()
    kept.offsets.commit("g", OffsetCommit("t", 0, 5))
    kept.offsets.commit("g", OffsetCommit("t", 0, 3, "back", 7))
    assert kept.saved() == {("g", "t", 0): 3}
    (found,) = kept.offsets.fetch("g")
    assert (found.offset, found.metadata, found.log_epoch) == (3, "back", 7)
    assert found.commit_time_ms == kept.now_ms
    assert len(kept.offsets) == 1


def test_what_was_not_committed_is_said_in_its_place():
    kept = Kept()
    kept.offsets.commit("g", OffsetCommit("t", 1, 5))
    asked = [TopicPartitions("t", [1, 0]), TopicPartitions("other", [3])]
    found = kept.offsets.fetch("g", asked)
    assert [(one.topic, one.partition, one.offset) for one in found] == [
        ("t", 1, 5),
        ("t", 0, -1),
        ("other", 3, -1),
    ]


def test_only_partitions_that_exist_can_be_committed():
    kept = Kept()
    with pytest.raises(UnknownTopic):
        kept.offsets.commit("g", OffsetCommit("x", 0, 1))
    with pytest.raises(UnknownPartition):
        kept.offsets.commit("g", OffsetCommit("t", 2, 1))
    assert not kept.disk


def test_limits_refuse_new_offsets_and_never_those_that_are_there():
    kept = Kept(max_committed_offsets=1, max_metadata_length=4)
    kept.offsets.commit("g", OffsetCommit("t", 0, 1))
    with pytest.raises(LimitExceeded, match=r"max\.committed\.offsets"):
        kept.offsets.commit("h", OffsetCommit("t", 0, 1))
    kept.offsets.commit("g", OffsetCommit("t", 0, 2, "four"))
    with pytest.raises(LimitExceeded, match=r"group\.max\.metadata\.length"):
        kept.offsets.commit("g", OffsetCommit("t", 0, 3, "fives"))
    kept.offsets.forget_group("g")
    kept.offsets.commit("h", OffsetCommit("t", 0, 1))


def test_a_deleted_topic_takes_its_offsets_of_all_groups_with_it():
    kept = Kept()
    kept.topics["u"] = Topic("id-2", 1)
    for group in ("g", "h"):
        kept.offsets.commit(group, OffsetCommit("t", 0, 1))
        kept.offsets.commit(group, OffsetCommit("u", 0, 2))
    kept.offsets.forget_topic("t")
    assert kept.found("g") == kept.found("h") == {("u", 0): 2}
    assert kept.saved()["g", "t", 0] is None


def test_an_offset_of_a_former_topic_of_the_same_name_is_not_the_new_ones():
    kept = Kept()
    kept.offsets.restore("g", "t", 0, Committed("id-0", 99))
    assert kept.found() == {}
    assert kept.saved() == {("g", "t", 0): None}


def test_an_offset_of_a_topic_that_cannot_be_read_now_is_kept_for_its_return():
    kept = Kept()
    kept.offsets.restore("g", "u", 0, Committed("id-2", 5))
    assert kept.found() == {}
    assert not kept.disk
    kept.topics["u"] = Topic("id-2", 1)
    assert kept.found() == {("u", 0): 5}


def test_offsets_expire_after_the_last_member_and_the_last_commit():
    kept = Kept(offsets_retention_ms=7 * DAY_MS)
    kept.offsets.commit("g", OffsetCommit("t", 0, 1))
    kept.now_ms += 5 * DAY_MS
    kept.offsets.commit("g", OffsetCommit("t", 1, 2))
    emptied_ms = kept.now_ms - 4 * DAY_MS
    kept.now_ms += 1 * DAY_MS
    kept.offsets.expire("g", emptied_ms)
    assert len(kept.offsets) == 2
    kept.now_ms += 3 * DAY_MS  # 9 days after the first commit, 8 after the last member
    kept.offsets.expire("g", emptied_ms)
    assert kept.found() == {("t", 1): 2}
    kept.now_ms += 4 * DAY_MS
    kept.offsets.expire("g", kept.now_ms)
    assert kept.found() == {("t", 1): 2}  # it had a member a moment ago
    kept.offsets.expire("g", emptied_ms)
    assert not kept.offsets.has_any("g")
    assert len(kept.offsets) == 0


def test_partitions_are_grouped_by_topic_and_back():
    grouped = by_topic([("b", 1), ("a", 10), ("b", 0), ("a", 2)])
    assert grouped == [TopicPartitions("a", [2, 10]), TopicPartitions("b", [0, 1])]
    assert flat(grouped) == [("a", 2), ("a", 10), ("b", 0), ("b", 1)]
