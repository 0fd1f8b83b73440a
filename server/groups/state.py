"""One group: its members, who owns what, and how ownership moves without two owners ever.

    target     who should own which partition: computed by an assignor when something has changed
    assigned   what a member was last told that it may use
    revoking   what it was told to give up, and may still be using
    orphaned   the same, of a topic that was deleted: even a new topic of that name must wait for it

A partition is owned by the one member that has it in one of the three; it becomes free when that
member, in a heartbeat that has seen the current assignment (its `version`), no longer lists it, or
when the member goes. Only a free partition is granted. Every change of `assigned` has a new
version, so a heartbeat that was sent before it, however late it comes, frees nothing.

Epochs: the group's is raised with each new target. A member's follows once it has nothing to give
up; `acked_epoch` is the newest that the member itself has named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .assignors import ASSIGNORS, Assignment, Subscriber, TopicPartition

MAX_REPLACED: Final = 8  # former member ids of a seat that are remembered, to be fenced

EMPTY: Final = "empty"
REBALANCING: Final = "rebalancing"
STABLE: Final = "stable"


class Topic(NamedTuple):
    """What groups know of a topic. The id tells a topic from an earlier one of the same name."""

    id: str
    partitions: int


@dataclass(slots=True, eq=False)
class Member:
    """One seat in a group, and who sits on it."""

    id: str
    instance_id: str | None
    joined: int  # the group's stamp then: the lowest is the oldest member
    session_timeout_ms: int
    assignors: tuple[str, ...]
    topics: tuple[str, ...]
    client_name: str = ""
    address: str = ""
    epoch: int = 0
    acked_epoch: int = -1  # -1: not answered yet
    version: int = 0
    assigned: set[TopicPartition] = field(default_factory=set)
    revoking: set[TopicPartition] = field(default_factory=set)
    orphaned: set[TopicPartition] = field(default_factory=set)
    replaced: tuple[str, ...] = ()
    deadline_ms: int = 0

    @property
    def seat(self) -> str:
        """What the order of members follows: a static member's successor takes its place in it."""
        return self.instance_id or self.id

    @property
    def owned(self) -> set[TopicPartition]:
        return self.assigned | self.revoking | self.orphaned

    @property
    def must_give_up(self) -> bool:
        return bool(self.revoking or self.orphaned)

    def may_commit(self, partition: TopicPartition) -> bool:
        return partition in self.assigned or partition in self.revoking


class Plan(NamedTuple):
    """The question for an assignor. Nobody changes its parts: any thread may compute the answer."""

    generation: int
    assignor: str
    topics: set[str]  # that anyone wants, whether they exist or not
    members: list[Subscriber]
    counts: dict[str, int]
    current: dict[str, set[TopicPartition]]

    def compute(self) -> Assignment:
        if not self.members:
            return {}
        return ASSIGNORS[self.assignor](self.members, self.counts, self.current)


class Group:
    """See the module. The coordinator checks what is asked; this keeps the promises."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.stamp = 0  # raised with every change that a member is told of
        self.assignor = ""
        self.empty_since_ms = 0  # by the wall clock; 0: it has members
        self.members: dict[str, Member] = {}
        self.seats: dict[str, str] = {}  # instance id -> member id
        self.fenced: dict[str, str] = {}  # former member id of a seat -> instance id
        self.owners: dict[TopicPartition, str] = {}
        self.target: Assignment = {}
        self.wanted: dict[TopicPartition, str] = {}  # the target, by partition
        self.subscribed: set[str] = set()  # up to date where the group is settled
        self.generation = 0  # counts what a target depends on
        self.settled_generation = 0
        # What the coordinator has to save, and whom to tell.
        self.unsaved: set[str] = set()
        self.is_header_unsaved = True
        self.news: set[str] = set()

    @property
    def is_settled(self) -> bool:
        """Whether the target is up to date."""
        return self.generation == self.settled_generation

    @property
    def state(self) -> str:
        if not self.members:
            return EMPTY
        # Where all is settled a member's assignment is a part of its target.
        is_calm = self.is_settled and not any(
            member.must_give_up or len(member.assigned) != len(self.target.get(member.id, ()))
            for member in self.members.values()
        )
        return STABLE if is_calm else REBALANCING

    # --- members ---------------------------------------------------------------------------------

    def next_stamp(self) -> int:
        self.stamp += 1
        return self.stamp

    def unsettle(self) -> None:
        self.generation += 1

    def add(self, member: Member) -> None:
        self.members[member.id] = member
        if member.instance_id is not None:
            self.seats[member.instance_id] = member.id
            self.fenced.update(dict.fromkeys(member.replaced, member.instance_id))
        self.empty_since_ms = 0
        self.unsaved.add(member.id)
        self.unsettle()

    def remove(self, member: Member, wall_ms: int) -> None:
        """Everything the member had is free."""
        del self.members[member.id]
        for partition in member.owned:
            del self.owners[partition]
        self.target.pop(member.id, None)
        if member.instance_id is not None:
            del self.seats[member.instance_id]
            for replaced in member.replaced:
                del self.fenced[replaced]
        if not self.members:
            self.empty_since_ms = wall_ms
        self.unsaved.add(member.id)
        self.news.add(member.id)
        self.unsettle()

    def take_over(self, old: Member, member_id: str) -> Member:
        """Another process sits down on a static member's seat. The old one is held to be dead: what
        it had to give up is free, and what it used goes on with the new one.
        """
        assert old.instance_id is not None
        released = old.revoking | old.orphaned
        replaced = (*old.replaced, old.id)
        new = Member(
            member_id, old.instance_id, old.joined, old.session_timeout_ms, old.assignors,
            old.topics, assigned=old.assigned, replaced=replaced[-MAX_REPLACED:],
        )  # fmt: skip
        for forgotten in replaced[:-MAX_REPLACED]:
            del self.fenced[forgotten]
        self.fenced[old.id] = old.instance_id
        self.seats[old.instance_id] = member_id
        # In the same place among the members: their order stays.
        self.members = {
            (member_id if key == old.id else key): (new if key == old.id else member)
            for key, member in self.members.items()
        }
        for partition in new.assigned:
            self.owners[partition] = member_id
        if old.id in self.target:
            self.target[member_id] = self.target.pop(old.id)
            self.wanted.update(dict.fromkeys(self.target[member_id], member_id))
        new.epoch = self.epoch
        new.version = self.next_stamp()
        self.unsaved |= {old.id, member_id}
        self.news.add(old.id)
        if not self.is_settled:
            self.unsettle()  # a plan that is being computed does not know the new id
        self._free(released)
        if self.is_settled:
            self._reconcile(new)  # it has nothing to give up any more
        return new

    def acknowledge(self, member: Member, still_owned: set[TopicPartition]) -> None:
        """The member has seen its current assignment, and holds these partitions."""
        released = (member.revoking | member.orphaned) - still_owned
        if released:
            member.revoking -= released
            member.orphaned -= released
            self.unsaved.add(member.id)
            self._free(released)
            if self.is_settled:
                self._reconcile(member)

    def _free(self, partitions: Iterable[TopicPartition]) -> None:
        """Nobody has these any more: grant them to whom they are meant for, if that is known."""
        waiting: dict[str, None] = {}
        for partition in partitions:
            del self.owners[partition]
            if partition in self.wanted:
                waiting[self.wanted[partition]] = None
        if self.is_settled:
            for member_id in waiting:
                self._reconcile(self.members[member_id])

    def follow_epoch(self, member: Member) -> None:
        """Bring the member to the group's epoch, if it may be."""
        if not member.must_give_up and member.epoch != self.epoch:
            member.epoch = self.epoch
            self.unsaved.add(member.id)
        if member.acked_epoch < 0:
            member.acked_epoch = member.epoch

    def orphan(self, topic: str) -> bool:
        """A topic was deleted: what members have of it must come back first, then it is another."""
        found = False
        for member in self.members.values():
            gone = {place for place in member.assigned | member.revoking if place[0] == topic}
            if gone:
                found = True
                member.orphaned |= gone
                member.assigned -= gone
                member.revoking -= gone
                self.tell(member)
        return found

    def tell(self, member: Member) -> None:
        """The member's assignment, or what it depends on, is another one from here on."""
        member.version = self.next_stamp()
        self.unsaved.add(member.id)
        self.news.add(member.id)

    # --- the target ------------------------------------------------------------------------------

    def common_assignor(self, joining: Member | None = None, replacing: str = "") -> str | None:
        """What all support, the oldest member's favourite; also as it would be with another one."""
        members = [member for member in self.members.values() if member.id != replacing]
        if joining is not None:
            members.append(joining)
        oldest = min(members, key=lambda member: member.joined)
        for name in oldest.assignors:
            if name in ASSIGNORS and all(name in member.assignors for member in members):
                return name
        return None

    def plan(self, topics: Mapping[str, Topic]) -> Plan:
        ordered = sorted(self.members.values(), key=lambda member: (member.seat, member.id))
        assignor = self.common_assignor() if ordered else self.assignor
        assert assignor is not None, "a member without a common assignor is never let in"
        wanted = {topic for member in ordered for topic in member.topics}
        return Plan(
            self.generation,
            assignor,
            wanted,
            [Subscriber(member.id, member.topics) for member in ordered],
            {topic: topics[topic].partitions for topic in wanted if topic in topics},
            {member.id: self.target.get(member.id) or set(member.assigned) for member in ordered},
        )

    def apply(self, plan: Plan, target: Assignment) -> bool:
        """Let a new target count; False where the group has changed since the plan was made."""
        if plan.generation != self.generation:
            return False
        self.settled_generation = plan.generation
        self.epoch += 1
        self.assignor = plan.assignor
        self.subscribed = plan.topics
        self.target = target
        self.wanted = {place: member_id for member_id, mine in target.items() for place in mine}
        self.is_header_unsaved = True
        for member in self.members.values():
            self._reconcile(member)
        return True

    def _reconcile(self, member: Member) -> None:
        """Bring what the member is told nearer to its target, as far as partitions are free.

        While it has something to give up it gets nothing new.
        """
        target = self.target.get(member.id, set())
        if target == member.assigned and not member.must_give_up:
            return
        held = member.assigned | member.revoking
        revoking = held - target
        if revoking or member.orphaned:
            assigned = held & target
        else:
            owners, own_id = self.owners, member.id
            assigned = {place for place in target if owners.get(place, own_id) == own_id}
        if assigned == member.assigned and revoking == member.revoking:
            return
        for place in assigned - held:
            self.owners[place] = member.id
        member.assigned, member.revoking = assigned, revoking
        self.tell(member)
