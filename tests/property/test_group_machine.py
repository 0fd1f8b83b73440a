"""Groups under every order of joins, leaves, crashes, lost and late messages, and broker restarts.

The model is what each client believes that it may use. A message that was sent may arrive, arrive
again later, or be lost. What the coordinator saves is durable only when an answer is sent; a crash
of the broker keeps any first part of what was not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from seglog.protocol.errors import (
    GroupNotEmpty,
    MemberFenced,
    SeglogError,
    StaleMemberEpoch,
    UnknownMember,
)
from seglog.protocol.group_messages import (
    CommitOffsetsRequest,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    GroupLeaveRequest,
    OffsetCommit,
)
from seglog.server.groups.coordinator import Coordinator
from seglog.server.groups.limits import GroupLimits
from seglog.server.groups.offsets import by_topic, flat
from seglog.server.groups.state import STABLE, Plan, Topic

GROUP = "readers"
TOPICS = ("a", "b")
SESSION_MS = 1_000
Place = tuple[str, int]


class Client:
    """A well-behaved member, as a client library would be."""

    def __init__(self, number: int, instance_id: str | None, topics: tuple[str, ...]) -> None:
        self.id = f"client-{number}"
        self.instance_id = instance_id
        self.topics = topics
        self.is_alive = True
        self.is_superseded = False  # another one was started on its seat, while it ran
        self.epoch = 0
        self.version = 0
        self.incarnation = 0
        self.lease_until_ms = 0
        self.holds: set[Place] = set()
        self.assignment: set[Place] = set()

    def __repr__(self) -> str:
        return self.id

    def request(self) -> GroupHeartbeatRequest:
        return GroupHeartbeatRequest(
            GROUP,
            self.id,
            self.epoch,
            self.instance_id,
            SESSION_MS,
            ["sticky"],
            list(self.topics),
            by_topic(self.holds),
            0,
            self.version,
        )

    def hear(self, answer: GroupHeartbeatResponse, sent_ms: int) -> None:
        if answer.assignment_version < self.version or answer.member_epoch < self.epoch:
            return  # to an earlier heartbeat, and late
        self.epoch, self.version = answer.member_epoch, answer.assignment_version
        self.assignment = set(flat(answer.assignment))
        self.holds |= self.assignment
        self.lease_until_ms = max(self.lease_until_ms, sent_ms + SESSION_MS)

    def finish(self) -> None:
        """Be done with what must be given up."""
        self.holds &= self.assignment

    def drop_everything(self) -> None:
        self.incarnation += 1
        self.epoch = self.version = self.lease_until_ms = 0
        self.holds, self.assignment = set(), set()

    def stop(self) -> None:
        self.drop_everything()
        self.is_alive = False


indexes = st.integers(0, 7)
subscriptions = st.sampled_from([TOPICS, TOPICS, ("a",), ("b",)])
T = TypeVar("T")


def pick(things: Sequence[T], which: int) -> T | None:
    """One of them, the latest first."""
    return things[-1 - which % len(things)] if things else None


class Sent(NamedTuple):
    """A message under way, from or to a client, in one of its lives."""

    client: Client
    incarnation: int
    sent_ms: int
    content: Any


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_000
        self.disk: dict[bytes, bytes] = {}
        self.unsaved: dict[bytes, bytes | None] = {}
        self.topics: dict[str, Topic] = {}
        self.all: list[Client] = []
        self.requests: list[Sent] = []  # all that were ever sent: each may come again, much later
        self.answers: list[Sent] = []
        self.last_heartbeats: dict[Client, GroupHeartbeatRequest] = {}
        self.removed_at: dict[str, int] = {}  # how many requests there were then
        self.planned: Plan | None = None
        self.topic_number = 0
        self.newest_epoch = 0
        self.coordinator = self.start_broker()

    @initialize(partitions=st.integers(1, 5), clients=st.integers(0, 3))
    def begin(self, partitions: int, clients: int) -> None:
        self.make_or_grow_topic("a", partitions)
        for _ in range(clients):
            self.started(None, TOPICS)
        self.all_becomes_calm()

    # --- the broker ------------------------------------------------------------------------------

    def start_broker(self) -> Coordinator:
        coordinator = Coordinator(
            GroupLimits(), lambda: self.now_ms, lambda: self.now_ms, self.unsaved.__setitem__
        )
        for name, topic in self.topics.items():
            coordinator.set_topic(name, topic)
        coordinator.load(self.disk)
        return coordinator

    def persist(self, count: int | None = None) -> None:
        for key, value in list(self.unsaved.items())[:count]:
            if value is None:
                self.disk.pop(key, None)
            else:
                self.disk[key] = value
        self.unsaved.clear()

    @rule(kept=st.integers(0, 6))
    def broker_is_killed(self, kept: int) -> None:
        self.persist(kept)
        self.coordinator = self.start_broker()
        self.planned = None
        group = self.coordinator.groups.get(GROUP)
        if group is not None and group.members:
            assert group.epoch >= self.newest_epoch

    @rule(which=indexes, kept=st.integers(0, 6))
    def broker_is_killed_before_it_answers(self, which: int, kept: int) -> None:
        request = pick(self.requests, which)
        if request is not None:
            self.take_in(request.content)
            self.broker_is_killed(kept)

    @rule(kept=st.integers(0, 4), joins=st.booleans())
    def broker_is_killed_while_partitions_move(self, kept: int, joins: bool) -> None:
        if joins:
            self.start_client(TOPICS)
        self.everyone_talks()
        for client in self.live():
            client.finish()
            self.take_in(client.request())
        self.broker_is_killed(kept)

    @rule()
    def plan(self) -> None:
        self.planned = self.coordinator.plan(GROUP)

    @rule()
    def apply_plan(self) -> None:
        if self.planned is not None:
            self.coordinator.settle(GROUP, self.planned)
            self.planned = None

    @rule()
    def settle(self) -> None:
        self.coordinator.settle(GROUP)

    @rule()
    def expire(self) -> None:
        for _, member_id in self.coordinator.expire():
            self.removed_at[member_id] = len(self.requests)

    @rule(ms=st.integers(1, SESSION_MS // 2))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        for client in self.all:
            # A client that heard nothing for a session stops by itself: it may have been removed.
            if client.holds and self.now_ms >= client.lease_until_ms:
                client.drop_everything()

    # --- topics ----------------------------------------------------------------------------------

    @rule(name=st.sampled_from(TOPICS), partitions=st.integers(1, 3))
    def make_or_grow_topic(self, name: str, partitions: int) -> None:
        known = self.topics.get(name)
        if known is None:
            self.topic_number += 1
            self.topics[name] = Topic(f"id-{self.topic_number}", partitions)
        else:
            self.topics[name] = Topic(known.id, known.partitions + partitions)
        self.coordinator.set_topic(name, self.topics[name])

    @rule(name=st.sampled_from(TOPICS))
    def delete_topic(self, name: str) -> None:
        if self.topics.pop(name, None) is not None:
            self.coordinator.remove_topic(name)

    # --- clients ---------------------------------------------------------------------------------

    def live(self) -> list[Client]:
        return [client for client in self.all if client.is_alive]

    def started(self, seat: str | None, topics: tuple[str, ...]) -> Client:
        client = Client(len(self.all), seat, topics)
        self.all.append(client)
        return client

    @rule(topics=subscriptions)
    def start_client(self, topics: tuple[str, ...]) -> None:
        if len(self.live()) < 6:
            self.talk_with(self.started(None, topics))

    @rule(seat=st.sampled_from(["i1", "i2"]), old_is_dead=st.booleans(), topics=subscriptions)
    def start_static_client(self, seat: str, old_is_dead: bool, topics: tuple[str, ...]) -> None:
        for other in self.live():
            if other.instance_id == seat:
                if old_is_dead:
                    other.stop()
                else:
                    other.is_superseded = True
        self.talk_with(self.started(seat, topics))

    @rule(who=indexes)
    def client_crashes(self, who: int) -> None:
        client = pick(self.live(), who)
        if client is not None:
            client.stop()

    @rule(who=indexes, topics=subscriptions)
    def subscribe(self, who: int, topics: tuple[str, ...]) -> None:
        client = pick(self.live(), who)
        if client is not None:
            client.topics = topics

    @rule(who=indexes)
    def finish_what_is_lost(self, who: int) -> None:
        client = pick(self.live(), who)
        if client is not None:
            client.finish()

    @rule(who=indexes)
    def send_heartbeat(self, who: int) -> None:
        client = pick(self.live(), who)
        if client is not None:
            self.send(client, client.request())

    @rule(who=indexes)
    def talk(self, who: int) -> None:
        client = pick(self.live(), who)
        if client is not None:
            self.talk_with(client)

    @rule()
    def everyone_talks(self) -> None:
        for client in self.live():
            self.talk_with(client)

    def talk_with(self, client: Client) -> None:
        """A heartbeat and its answer, at once."""
        sent = Sent(client, client.incarnation, self.now_ms, client.request())
        if sent.content != self.last_heartbeats.get(client):
            self.last_heartbeats[client] = sent.content
            self.requests.append(sent)
        self.hear(sent._replace(content=self.handle(sent.content)))

    @rule(who=indexes, keep_seat=st.booleans())
    def client_leaves(self, who: int, keep_seat: bool) -> None:
        client = pick(self.live(), who)
        if client is not None:
            self.send(client, GroupLeaveRequest(GROUP, client.id, client.epoch, keep_seat))
            client.stop()

    @rule(who=indexes, place=st.tuples(st.sampled_from(TOPICS), st.integers(0, 3)))
    def send_commit(self, who: int, place: Place) -> None:
        client = pick(self.live(), who)
        if client is not None:
            offset = OffsetCommit(*place, 1)
            self.send(client, CommitOffsetsRequest(GROUP, client.id, client.epoch, [offset]))

    # --- messages --------------------------------------------------------------------------------

    def send(self, client: Client, content: Any) -> Sent:
        sent = Sent(client, client.incarnation, self.now_ms, content)
        self.requests.append(sent)
        return sent

    @rule(which=st.integers(0, 30))
    def deliver(self, which: int) -> None:
        request = pick(self.requests, which)
        if request is not None:
            self.answers.append(request._replace(content=self.handle(request.content)))

    @rule(which=indexes)
    def deliver_answer(self, which: int) -> None:
        answer = pick(self.answers, which)
        if answer is not None:
            self.hear(answer)

    def hear(self, answer: Sent) -> None:
        client = answer.client
        if not client.is_alive or answer.incarnation != client.incarnation:
            return
        match answer.content:
            case GroupHeartbeatResponse() as told:
                if answer.sent_ms + SESSION_MS > self.now_ms:
                    client.hear(told, answer.sent_ms)
            case UnknownMember() | StaleMemberEpoch():
                client.drop_everything()
            case MemberFenced():
                # By one that was started later; or by the join, long under way, of an earlier one.
                assert client.instance_id is not None
                client.stop()

    def handle(self, request: Any) -> Any:
        """The answer, sent when all that it tells is on disk."""
        answer = self.take_in(request)
        self.persist()
        if isinstance(answer, GroupHeartbeatResponse):
            self.newest_epoch = max(self.newest_epoch, answer.member_epoch)
        return answer

    def take_in(self, request: Any) -> Any:
        coordinator = self.coordinator
        try:
            match request:
                case GroupHeartbeatRequest():
                    heard = coordinator.heartbeat(request)
                    if heard.needs_target:
                        coordinator.settle(GROUP)
                    return coordinator.answer(GROUP, request.member_id)
                case GroupLeaveRequest():
                    return coordinator.leave(request)
                case CommitOffsetsRequest():
                    return self.take_in_commit(request)
        except SeglogError as error:
            return error

    def take_in_commit(self, request: CommitOffsetsRequest) -> list[SeglogError | None]:
        asked = request.offsets[0]
        place = (asked.topic, asked.partition)
        results = self.coordinator.commit(request)
        if results[0] is None:
            others = [client for client in self.using(place) if client.id != request.member_id]
            assert not others, f"{request.member_id} committed {place}, which {others} uses"
            group = self.coordinator.groups[GROUP]
            assert group.owners.get(place) == request.member_id
            assert place not in group.members[request.member_id].orphaned
            number = next(n for n, sent in enumerate(self.requests) if sent.content is request)
            assert number >= self.removed_at.get(request.member_id, 0), "from a former life"
        return results

    @rule()
    def commit_without_membership(self) -> None:
        group = self.coordinator.groups.get(GROUP)
        has_members = group is not None and bool(group.members)
        try:
            asked = [OffsetCommit("a", 0, 1)]
            self.coordinator.commit(CommitOffsetsRequest(GROUP, "", 0, asked))
            assert not has_members
        except GroupNotEmpty:
            assert has_members

    # --- what must hold --------------------------------------------------------------------------

    def using(self, place: Place) -> list[Client]:
        return [
            client
            for client in self.all
            if place in client.holds and client.is_alive and not client.is_superseded
        ]

    @invariant()
    def no_partition_has_two_users(self) -> None:
        used: dict[Place, Client] = {}
        for client in self.all:
            if client.is_alive and not client.is_superseded:
                for place in client.holds:
                    other = used.setdefault(place, client)
                    assert other is client, f"{place} is used by {other} and {client}"

    @invariant()
    def owners_and_members_agree(self) -> None:
        group = self.coordinator.groups.get(GROUP)
        if group is None:
            return
        owned = {place: member.id for member in group.members.values() for place in member.owned}
        assert owned == group.owners
        assert sum(len(m.owned) for m in group.members.values()) == len(owned)

    @rule()
    def all_becomes_calm(self) -> None:
        """Dead members time out, live ones talk: then every partition is used, fairly."""
        for _ in range(12):
            self.time_passes(SESSION_MS // 4)
            for client in self.live():
                if client.is_superseded:
                    client.stop()
                else:
                    self.talk_with(client)
                    client.finish()
            self.expire()
            self.coordinator.settle(GROUP)
        live = self.live()
        for name, topic in self.topics.items():
            wanting = [client for client in live if name in client.topics]
            for number in range(topic.partitions):
                users = self.using((name, number))
                assert len(users) == bool(wanting), f"{name}/{number} is used by {users}"
                assert all(user in wanting for user in users)
        if live:
            assert self.coordinator.groups[GROUP].state == STABLE
            self.check_balance(live)

    def check_balance(self, live: list[Client]) -> None:
        if len({client.topics for client in live}) == 1:
            loads = [len(client.holds) for client in live]
            assert max(loads) - min(loads) <= 1


GroupMachine.TestCase.settings = settings(stateful_step_count=60)
TestGroups = pytest.mark.timeout(1200)(GroupMachine.TestCase)
