"""Who should own which partition: pure functions, the same answer for the same question.

    sticky      as even as can be, and from there with the fewest moves
    range       of each topic a run of neighbours for each member: same numbers of several topics
                meet in one member
    roundrobin  all partitions dealt in turn, as cards
    exclusive   all to the only member: who offers it shares the group with nobody (limits.py)

Members come in a fixed order (by their seat's name) and everything follows it. A partition goes to
one member that subscribes to its topic; where nobody does, to nobody.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ...protocol.constants import (
    ASSIGNOR_EXCLUSIVE,
    ASSIGNOR_RANGE,
    ASSIGNOR_ROUNDROBIN,
    ASSIGNOR_STICKY,
)

TopicPartition = tuple[str, int]
Assignment = dict[str, set[TopicPartition]]

MAX_BALANCE_ROUNDS: Final = 10  # of sticky, where members subscribe to different topics


class Subscriber(NamedTuple):
    """A member as an assignor sees it; `topics` sorted, each once."""

    member_id: str
    topics: tuple[str, ...]


#: (members in order, partitions of each topic that exists, what each member has now) -> the target.
Assignor = Callable[
    [Sequence[Subscriber], Mapping[str, int], Mapping[str, set[TopicPartition]]], Assignment
]


def assign_range(
    members: Sequence[Subscriber],
    counts: Mapping[str, int],
    current: Mapping[str, set[TopicPartition]],
) -> Assignment:
    target: Assignment = {member.member_id: set() for member in members}
    for topic, subscribers in _subscribers(members, counts).items():
        share, extra = divmod(counts[topic], len(subscribers))
        first = 0
        for place, member_id in enumerate(subscribers):
            end = first + share + (place < extra)
            target[member_id].update((topic, number) for number in range(first, end))
            first = end
    return target


def assign_roundrobin(
    members: Sequence[Subscriber],
    counts: Mapping[str, int],
    current: Mapping[str, set[TopicPartition]],
) -> Assignment:
    target: Assignment = {member.member_id: set() for member in members}
    places = {member_id: place for place, member_id in enumerate(target)}
    turn = 0  # the place of who is next
    for topic, wanting in _subscribers(members, counts).items():
        first = bisect_left(wanting, turn, key=places.__getitem__)
        for number in range(counts[topic]):
            member_id = wanting[(first + number) % len(wanting)]
            target[member_id].add((topic, number))
        turn = places[member_id] + 1
    return target


def assign_sticky(
    members: Sequence[Subscriber],
    counts: Mapping[str, int],
    current: Mapping[str, set[TopicPartition]],
) -> Assignment:
    subscribers = _subscribers(members, counts)
    kept, free = _keep(members, counts, current, subscribers)
    if len({member.topics for member in members}) <= 1:
        _fill_evenly(kept, free)
    else:
        _fill_least_loaded(kept, free, subscribers)
        _balance(kept, subscribers)
    return kept


ASSIGNORS: Final[dict[str, Assignor]] = {
    ASSIGNOR_STICKY: assign_sticky,
    ASSIGNOR_RANGE: assign_range,
    ASSIGNOR_ROUNDROBIN: assign_roundrobin,
    ASSIGNOR_EXCLUSIVE: assign_range,  # of one member
}


def _subscribers(members: Sequence[Subscriber], counts: Mapping[str, int]) -> dict[str, list[str]]:
    """The members of each topic that exists and is wanted; topics sorted, members in order."""
    wanting: dict[str, list[str]] = {}
    for member in members:
        for topic in member.topics:
            wanting.setdefault(topic, []).append(member.member_id)
    return {topic: wanting[topic] for topic in sorted(wanting) if counts.get(topic)}


def _keep(
    members: Sequence[Subscriber],
    counts: Mapping[str, int],
    current: Mapping[str, set[TopicPartition]],
    subscribers: Mapping[str, Sequence[str]],
) -> tuple[Assignment, list[TopicPartition]]:
    """What everyone has and may keep, and what nobody has."""
    kept: Assignment = {}
    taken: set[TopicPartition] = set()
    for member in members:
        topics = set(member.topics)
        mine = {
            (topic, number)
            for topic, number in current.get(member.member_id, ())
            if topic in topics and number < counts.get(topic, 0)
        }
        mine -= taken
        taken |= mine
        kept[member.member_id] = mine
    free = [place for place in _places(subscribers, counts) if place not in taken]
    return kept, free


def _places(topics: Mapping[str, object], counts: Mapping[str, int]) -> Iterator[TopicPartition]:
    for topic in topics:
        for number in range(counts[topic]):
            yield topic, number


def _fill_evenly(kept: Assignment, free: list[TopicPartition]) -> None:
    """All want the same. Each has its quota, the larger ones for those who have most: then nobody
    gives up more than it must, and what moves is the least that any even assignment moves.
    """
    if not kept:
        return
    total = len(free) + sum(map(len, kept.values()))
    quota, extra = divmod(total, len(kept))
    by_load = sorted(kept, key=lambda member_id: -len(kept[member_id]))
    open_seats: deque[tuple[str, int]] = deque()
    for place, member_id in enumerate(by_load):
        mine = kept[member_id]
        room = quota + (place < extra) - len(mine)
        if room < 0:
            surplus = sorted(mine)[room:]
            mine.difference_update(surplus)
            free += surplus
        elif room > 0:
            open_seats.append((member_id, room))
    for partition in free:  # dealt in turn: a topic's partitions spread
        member_id, room = open_seats.popleft()
        kept[member_id].add(partition)
        if room > 1:
            open_seats.append((member_id, room - 1))


def _fill_least_loaded(
    kept: Assignment, free: list[TopicPartition], subscribers: Mapping[str, Sequence[str]]
) -> None:
    """Topics that few want first, so that those who want many make up for it."""
    order = {member_id: place for place, member_id in enumerate(kept)}
    free.sort(key=lambda partition: (len(subscribers[partition[0]]), partition))
    heap: list[tuple[int, int, str]] = []
    topic = None
    for partition in free:
        if partition[0] != topic:
            topic = partition[0]
            heap = [(len(kept[who]), order[who], who) for who in subscribers[topic]]
            heapq.heapify(heap)
        load, place, member_id = heap[0]
        kept[member_id].add(partition)
        heapq.heapreplace(heap, (load + 1, place, member_id))


def _balance(kept: Assignment, subscribers: Mapping[str, Sequence[str]]) -> None:
    """Move single partitions from who has more to who has at least two less, while that helps."""
    for _ in range(MAX_BALANCE_ROUNDS):
        moved = False
        # The least that any subscriber of a topic has, so that most are passed over at a glance. It
        # falls where the one that has it gives something away: the next round sees that.
        least = dict.fromkeys(subscribers, 0)
        for giver in sorted(kept, key=lambda member_id: -len(kept[member_id])):
            mine = kept[giver]
            by_topic: dict[str, list[TopicPartition]] = {}
            for partition in sorted(mine):
                by_topic.setdefault(partition[0], []).append(partition)
            for topic, movable in by_topic.items():
                while movable and len(mine) - 2 >= least[topic]:
                    taker = min(subscribers[topic], key=lambda member_id: len(kept[member_id]))
                    least[topic] = len(kept[taker])
                    if len(mine) - 2 < least[topic]:
                        break
                    partition = movable.pop()
                    mine.remove(partition)
                    kept[taker].add(partition)
                    moved = True
        if not moved:
            return
