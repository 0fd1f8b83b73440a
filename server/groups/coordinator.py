"""All groups: answers what members and tools ask, and says what must be saved and who must be told.

Nothing here waits, reads a clock or writes a file: two clocks and `save` are passed in. After each
call the caller makes what was saved durable before it answers, settles the groups in `unsettled`
when it suits, and wakes the members in `take_news()`. A heartbeat that finds nothing to tell may be
held back until then.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ...protocol.constants import JOIN_EPOCH
from ...protocol.errors import (
    GroupNotEmpty,
    LimitExceeded,
    NotOwner,
    SeglogError,
    UnknownGroup,
    UnknownMember,
)
from ...protocol.group_messages import (
    CommitOffsetsRequest,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    GroupLeaveRequest,
    OffsetCommit,
)
from . import records
from .assignors import Assignment
from .limits import (
    GroupLimits,
    check_assignor,
    check_epoch,
    check_group_name,
    check_not_fenced,
    check_seat,
)
from .loading import load_groups
from .offsets import Offsets, by_topic, flat
from .state import Group, Member, Plan, Topic

HEARTBEATS_PER_SESSION: Final = 3


class Heard(NamedTuple):
    """What became of a heartbeat."""

    has_news: bool  # answer now; else it may wait for something to tell
    needs_target: bool  # a new member: it is answered once its group is settled


class Coordinator:
    """See the module."""

    def __init__(
        self,
        limits: GroupLimits,
        clock_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        save: Callable[[bytes, bytes | None], None],
        topics_version: int = 1,
    ) -> None:
        self._limits = limits
        self._clock_ms = clock_ms  # never goes back: sessions
        self._wall_ms = wall_ms  # survives a restart: commit times and expiry
        self._save = save
        self._deadlines: list[tuple[int, str, str]] = []  # one for each member, perhaps too early
        self.topics_version = topics_version
        self.topics: dict[str, Topic] = {}
        self.offsets = Offsets(limits, self.topics, wall_ms, save)
        self.groups: dict[str, Group] = {}
        self.unsettled: dict[str, None] = {}
        self._news: set[tuple[str, str]] = set()

    # --- heartbeats ------------------------------------------------------------------------------

    def heartbeat(
        self, request: GroupHeartbeatRequest, client_name: str = "", address: str = ""
    ) -> Heard:
        """Take a heartbeat in; `answer` has what to say to it, now or later."""
        joins = request.member_epoch == JOIN_EPOCH
        group = self.find(request.group)
        if group is None:
            if not joins:
                raise _unknown(request.group, request.member_id)
            group = self._make_group(request.group)
        check_not_fenced(group, request.member_id)
        member = group.members.get(request.member_id)
        if member is None:
            if not joins:
                raise _unknown(request.group, request.member_id)
            member = self._join(group, request, client_name, address)
        else:
            check_seat(member, request.instance_id)
            if not joins:
                check_epoch(member, request.member_epoch)
            # Parked or not, early or late: the session counts from the arrival of a heartbeat.
            member.deadline_ms = self._clock_ms() + member.session_timeout_ms
            if not joins and request.assignment_version == member.version:
                self._hear(group, member, request)
        self._flush(group)
        return Heard(
            joins or request.assignment_version != member.version,
            member.acked_epoch < 0 and not group.is_settled,
        )

    def _hear(self, group: Group, member: Member, request: GroupHeartbeatRequest) -> None:
        """What counts of a heartbeat that has seen the member's current assignment."""
        member.acked_epoch = request.member_epoch
        if member.must_give_up:
            group.acknowledge(member, set(flat(request.owned)))
        self._subscribe(group, member, request)

    def _subscribe(self, group: Group, member: Member, request: GroupHeartbeatRequest) -> None:
        wanted = self._limits.member(request, member.joined)
        if member.session_timeout_ms != wanted.session_timeout_ms:
            member.session_timeout_ms = wanted.session_timeout_ms
            member.deadline_ms = self._clock_ms() + wanted.session_timeout_ms
            self._queue_deadline(group, member)
            group.unsaved.add(member.id)
        if (member.topics, member.assignors) == (wanted.topics, wanted.assignors):
            return
        check_assignor(group, wanted, replacing=member.id)
        member.topics, member.assignors = wanted.topics, wanted.assignors
        group.unsettle()
        group.tell(member)  # so that a late heartbeat does not bring the old subscription back

    def _join(
        self, group: Group, request: GroupHeartbeatRequest, client_name: str, address: str
    ) -> Member:
        joining = self._limits.member(request, group.stamp + 1)
        joining.client_name, joining.address = client_name, address
        seat = group.seats.get(request.instance_id or "")
        if seat is not None:
            joining.joined = group.members[seat].joined
            check_assignor(group, joining, replacing=seat)
            member = group.take_over(group.members[seat], joining.id)
            member.client_name, member.address = client_name, address
            member.session_timeout_ms = joining.session_timeout_ms
            if (member.topics, member.assignors) != (joining.topics, joining.assignors):
                member.topics, member.assignors = joining.topics, joining.assignors
                group.unsettle()
        else:
            check_assignor(group, joining)
            if len(group.members) >= self._limits.max_members_per_group:
                raise LimitExceeded(
                    f"max.members.per.group allows {self._limits.max_members_per_group}"
                )
            member = joining
            member.version = group.next_stamp()
            group.add(member)
        self.groups[group.name] = group
        member.deadline_ms = self._clock_ms() + member.session_timeout_ms
        self._queue_deadline(group, member)
        return member

    def answer(self, group_name: str, member_id: str) -> GroupHeartbeatResponse:
        """What a member is told now."""
        group, member = self._member(group_name, member_id)
        group.follow_epoch(member)
        self._flush(group)
        return GroupHeartbeatResponse(
            member.epoch,
            by_topic(member.assigned),
            member.version,
            max(1, member.session_timeout_ms // HEARTBEATS_PER_SESSION),
            self.topics_version,
        )

    def leave(self, request: GroupLeaveRequest) -> None:
        group, member = self._member(request.group, request.member_id)
        check_epoch(member, request.member_epoch)
        if member.instance_id is not None and request.keep_seat:
            member.deadline_ms = self._clock_ms() + member.session_timeout_ms
            group.acknowledge(member, set())
        else:
            group.remove(member, self._wall_ms())
        self._flush(group)

    # --- time ------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """When `expire` should be called next; there may be nothing to do then."""
        return self._deadlines[0][0] if self._deadlines else None

    def expire(self) -> list[tuple[str, str]]:
        """Remove the members whose session timed out: (group, member id) of each."""
        now_ms = self._clock_ms()
        gone: list[tuple[str, str]] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, group_name, member_id = heapq.heappop(self._deadlines)
            group = self.groups.get(group_name)
            member = None if group is None else group.members.get(member_id)
            if group is None or member is None:
                continue
            if member.deadline_ms > now_ms:
                self._queue_deadline(group, member)
                continue
            group.remove(member, self._wall_ms())
            self._flush(group)
            gone.append((group_name, member_id))
        return gone

    def postpone(self, by_ms: int) -> None:
        """The broker itself was held up, and could not hear anyone: nobody's session ran."""
        for group in self.groups.values():
            for member in group.members.values():
                member.deadline_ms += by_ms

    def expire_offsets(self) -> None:
        """Forget what groups without members committed long ago, and groups without anything."""
        for group in list(self.groups.values()):
            if not group.members:
                self.offsets.expire(group.name, group.empty_since_ms)
                if not self.offsets.has_any(group.name):
                    self._delete(group)

    # --- targets ---------------------------------------------------------------------------------

    def plan(self, group_name: str) -> Plan | None:
        """What to compute for a group; None where it is settled, or gone."""
        group = self.groups.get(group_name)
        if group is None or group.is_settled:
            self.unsettled.pop(group_name, None)
            return None
        return group.plan(self.topics)

    def settle(self, group_name: str, plan: Plan | None = None) -> bool:
        """Compute a group's target and let it count; False where it changed since the plan."""
        group = self.groups.get(group_name)
        plan = plan or self.plan(group_name)
        if group is None or plan is None:
            return True
        return self.apply(group_name, plan, plan.compute())

    def apply(self, group_name: str, plan: Plan, target: Assignment) -> bool:
        group = self.groups.get(group_name)
        if group is None or not group.apply(plan, target):
            return False
        self._flush(group)
        return True

    def take_news(self) -> set[tuple[str, str]]:
        """The members, as (group, member id), who have something to hear since the last call."""
        news, self._news = self._news, set()
        return news

    # --- topics ----------------------------------------------------------------------------------

    def set_topic(self, name: str, topic: Topic) -> None:
        """A topic was made, or has grown."""
        known = self.topics.get(name)
        if known == topic:
            return
        if known is None or known.id != topic.id:
            self.remove_topic(name)
            self.offsets.forget_topic(name)  # of a former one that could not be read
        self.topics[name] = topic
        self.topics_version += 1
        for group in self.groups.values():
            if not group.is_settled or name in group.subscribed:
                group.unsettle()
                self._flush(group)

    def remove_topic(self, name: str) -> None:
        """A topic was deleted: its offsets are forgotten, its partitions come back."""
        if self.topics.pop(name, None) is None:
            return
        self.topics_version += 1
        self.offsets.forget_topic(name)
        for group in self.groups.values():
            if group.orphan(name) or not group.is_settled or name in group.subscribed:
                group.unsettle()
                self._flush(group)

    # --- offsets ---------------------------------------------------------------------------------

    def commit(self, request: CommitOffsetsRequest) -> list[SeglogError | None]:
        """Take offsets in, each for itself; what refuses them all is raised."""
        member = None
        if request.has_member:
            group, member = self._member(request.group, request.member_id)
            check_epoch(member, request.member_epoch)
        else:
            group = self.find(request.group) or self._make_group(request.group)
            if group.members:
                raise GroupNotEmpty(
                    f"group {group.name} has {len(group.members)} members: only they may commit"
                )
            self.groups[group.name] = group
        results: list[SeglogError | None] = []
        for asked in request.offsets:
            try:
                self._commit(group, member, asked)
                results.append(None)
            except SeglogError as error:
                results.append(error)
        self._flush(group)
        return results

    def _commit(self, group: Group, member: Member | None, asked: OffsetCommit) -> None:
        if member is not None and not member.may_commit((asked.topic, asked.partition)):
            raise NotOwner(f"{member.id} does not own {asked.topic}/{asked.partition}")
        self.offsets.commit(group.name, asked)

    # --- groups ----------------------------------------------------------------------------------

    def group(self, name: str) -> Group:
        group = self.find(name)
        if group is None:
            raise UnknownGroup(f"no group {name}")
        return group

    def delete(self, name: str) -> None:
        group = self.group(name)
        if group.members:
            raise GroupNotEmpty(f"group {name} has {len(group.members)} members")
        self._delete(group)

    def load(self, table: Mapping[bytes, bytes]) -> None:
        """Take over what an earlier coordinator saved; the topics must be known.

        Every member has its whole session timeout to come back, and keeps what it owned.
        """
        self.groups, offsets = load_groups(table, self.topics)
        for saved in offsets:
            self.offsets.restore(*saved)
        for group in self.groups.values():
            for member in group.members.values():
                member.deadline_ms = self._clock_ms() + member.session_timeout_ms
                self._queue_deadline(group, member)
            if group.members:
                group.unsettle()
            elif not group.empty_since_ms:  # the last member's end was saved, the group's not
                group.empty_since_ms = self._wall_ms()
                group.is_header_unsaved = True
            self._flush(group)

    def find(self, name: str) -> Group | None:
        """The group, if there is one; BadGroupName where there can be none."""
        group = self.groups.get(name)
        if group is None:
            check_group_name(name)
        return group

    def _make_group(self, name: str) -> Group:
        """It counts once it is in `groups`."""
        if len(self.groups) >= self._limits.max_groups:
            raise LimitExceeded(f"max.groups allows {self._limits.max_groups}")
        return Group(name)

    def _delete(self, group: Group) -> None:
        self.offsets.forget_group(group.name)
        del self.groups[group.name]
        self.unsettled.pop(group.name, None)
        self._save(records.group_key(group.name), None)

    # --- what all share --------------------------------------------------------------------------

    def _member(self, group_name: str, member_id: str) -> tuple[Group, Member]:
        group = self.find(group_name)
        if group is None:
            raise _unknown(group_name, member_id)
        check_not_fenced(group, member_id)
        member = group.members.get(member_id)
        if member is None:
            raise _unknown(group_name, member_id)
        return group, member

    def _queue_deadline(self, group: Group, member: Member) -> None:
        heapq.heappush(self._deadlines, (member.deadline_ms, group.name, member.id))

    def _flush(self, group: Group) -> None:
        """Save what has changed, and note who is to be told and what is to be settled."""
        for member_id in group.unsaved:
            member = group.members.get(member_id)
            value = None
            if member is not None:
                value = records.encode_member(group, member, self.topics)
            self._save(records.member_key(group.name, member_id), value)
        group.unsaved.clear()
        if group.is_header_unsaved:
            group.is_header_unsaved = False
            self._save(records.group_key(group.name), records.encode_group(group))
        if group.news:
            self._news.update((group.name, member_id) for member_id in group.news)
            group.news.clear()
        if group.is_settled:
            self.unsettled.pop(group.name, None)
        else:
            self.unsettled[group.name] = None


def _unknown(group_name: str, member_id: str) -> UnknownMember:
    return UnknownMember(f"group {group_name} has no member {member_id}")
