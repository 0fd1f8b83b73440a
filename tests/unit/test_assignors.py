"""Assignors: everything goes to one who wants it, evenly, and sticky moves as little as it can."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.server.groups.assignors import ASSIGNORS, Assignment, Subscriber, assign_sticky

TOPICS = ("a", "b", "c")

counts_of_topics = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 6))
subscriptions = st.lists(st.sets(st.sampled_from(TOPICS)), min_size=1, max_size=6)


def members_of(subscribed: list[set[str]]) -> list[Subscriber]:
    return [
        Subscriber(f"m{number}", tuple(sorted(topics))) for number, topics in enumerate(subscribed)
    ]


def same(count: int, *topics: str) -> list[Subscriber]:
    return members_of([set(topics)] * count)


def moves(before: Assignment, after: Assignment) -> int:
    """Partitions that somebody had, and somebody else has."""
    return sum(len(mine - after.get(member, set())) for member, mine in before.items())


def loads(target: Assignment) -> list[int]:
    return sorted(map(len, target.values()))


@pytest.mark.parametrize("name", ASSIGNORS)
@given(subscribed=subscriptions, counts=counts_of_topics)
def test_every_partition_goes_to_one_member_that_wants_it(name, subscribed, counts):
    members = members_of(subscribed)
    target = ASSIGNORS[name](members, counts, {})
    given_out = [place for mine in target.values() for place in mine]
    wanted = set().union(*subscribed)
    assert sorted(given_out) == sorted(
        (topic, number) for topic in counts if topic in wanted for number in range(counts[topic])
    )
    for member in members:
        assert {topic for topic, _ in target[member.member_id]} <= set(member.topics)


@pytest.mark.parametrize("name", ["sticky", "roundrobin"])
@given(count=st.integers(1, 7), counts=counts_of_topics)
def test_members_that_want_the_same_have_the_same_number(name, count, counts):
    target = ASSIGNORS[name](same(count, *TOPICS), counts, {})
    assert loads(target)[-1] - loads(target)[0] <= 1


def test_range_gives_neighbours_and_the_first_ones_get_one_more():
    target = ASSIGNORS["range"](same(2, "a", "b"), {"a": 3, "b": 2}, {})
    assert target["m0"] == {("a", 0), ("a", 1), ("b", 0)}
    assert target["m1"] == {("a", 2), ("b", 1)}


def test_roundrobin_deals_in_turn_and_passes_over_who_does_not_want():
    members = members_of([{"a"}, {"a", "b"}, {"a", "b"}])
    target = ASSIGNORS["roundrobin"](members, {"a": 4, "b": 3}, {})
    assert target["m0"] == {("a", 0), ("a", 3)}
    assert target["m1"] == {("a", 1), ("b", 0), ("b", 2)}
    assert target["m2"] == {("a", 2), ("b", 1)}


@given(subscribed=subscriptions, counts=counts_of_topics)
def test_sticky_changes_nothing_when_nothing_changed(subscribed, counts):
    members = members_of(subscribed)
    before = assign_sticky(members, counts, {})
    assert assign_sticky(members, counts, before) == before


def fewest_moves(before: Assignment, members: list[str], total: int) -> int:
    """By trying: the least that must leave its member until all are even."""
    quota, extra = divmod(total, len(members))
    return min(
        sum(max(0, len(before.get(member, ())) - quota - (member in larger)) for member in members)
        for larger in itertools.combinations(members, extra)
    )


@given(data=st.data(), partitions=st.integers(1, 12), count=st.integers(1, 5))
def test_sticky_moves_the_fewest_partitions_from_any_start(data, partitions, count):
    members = same(count, "a")
    owners = data.draw(
        st.lists(st.integers(0, count), min_size=partitions, max_size=partitions), label="owners"
    )
    before: Assignment = {member.member_id: set() for member in members}
    for number, owner in enumerate(owners):
        if owner < count:
            before[f"m{owner}"].add(("a", number))
    after = assign_sticky(members, {"a": partitions}, before)
    assert loads(after)[-1] - loads(after)[0] <= 1
    assert moves(before, after) == fewest_moves(before, list(before), partitions)


@given(count=st.integers(1, 6), partitions=st.integers(1, 20))
def test_who_joins_takes_only_its_share_and_who_leaves_moves_only_its_own(count, partitions):
    counts = {"a": partitions}
    before = assign_sticky(same(count, "a"), counts, {})
    joined = assign_sticky(same(count + 1, "a"), counts, before)
    assert moves(before, joined) == len(joined[f"m{count}"])
    left = assign_sticky(same(count, "a"), counts, joined)
    stayed = {member: mine for member, mine in joined.items() if member in left}
    assert moves(stayed, left) == 0


@given(before=subscriptions, after=subscriptions, counts=counts_of_topics)
def test_sticky_leaves_no_single_move_that_would_make_it_more_even(before, after, counts):
    had = assign_sticky(members_of(before), counts, {})
    members = members_of(after)
    target = assign_sticky(members, counts, had)
    for giver, taker in itertools.permutations(members, 2):
        mine, others = target[giver.member_id], target[taker.member_id]
        if len(mine) - len(others) >= 2:
            assert not {topic for topic, _ in mine} & set(taker.topics)


def test_who_falls_behind_by_giving_is_given_to_in_turn():
    # m1 has least of those who want b, and still gives of a to m2: then it has less than that.
    members = members_of([{"b"}, {"a", "b"}, {"a"}])
    had: Assignment = {
        "m0": {("b", number) for number in range(6)},
        "m1": {("a", number) for number in range(5)},
        "m2": set(),
    }
    target = assign_sticky(members, {"a": 5, "b": 6}, had)
    assert loads(target)[-1] - loads(target)[0] <= 1


def test_the_order_of_questions_does_not_matter():
    members = members_of([{"a", "b"}, {"b"}, {"a"}])
    counts = {"a": 5, "b": 4}
    for assign in ASSIGNORS.values():
        assert assign(members, counts, {}) == assign(members, dict(reversed(counts.items())), {})
