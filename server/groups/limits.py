"""What a group's request may ask for, before anything is done about it."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from ...protocol.constants import (
    ASSIGNOR_EXCLUSIVE,
    GROUP_NAME_PATTERN,
    JOIN_EPOCH,
    MAX_COMMIT_METADATA_LENGTH,
    MAX_GROUP_NAME_LENGTH,
)
from ...protocol.errors import (
    BadGroupName,
    BadRequest,
    GroupTaken,
    LimitExceeded,
    MemberFenced,
    NoCommonAssignor,
    StaleMemberEpoch,
)
from ...protocol.group_messages import GroupHeartbeatRequest
from .state import Group, Member


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The broker's settings of the same names."""

    max_groups: int = 1_000
    max_members_per_group: int = 1_000
    max_subscribed_topics: int = 1_000
    max_committed_offsets: int = 1_000_000
    max_metadata_length: int = MAX_COMMIT_METADATA_LENGTH
    min_session_timeout_ms: int = 1_000
    max_session_timeout_ms: int = 30 * 60 * 1000
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000

    def member(self, request: GroupHeartbeatRequest, joined: int) -> Member:
        """What a heartbeat asks for, as the member would be."""
        low, high = self.min_session_timeout_ms, self.max_session_timeout_ms
        if not low <= request.session_timeout_ms <= high:
            raise LimitExceeded(
                f"session_timeout_ms: {request.session_timeout_ms}, group.min.session.timeout.ms "
                f"and group.max.session.timeout.ms allow {low} to {high}"
            )
        # Interned: many members of many groups name the same topics.
        topics = tuple(sorted(map(sys.intern, set(request.topics))))
        if len(topics) > self.max_subscribed_topics:
            raise LimitExceeded(
                f"topics: {len(topics)}, group.max.subscribed.topics allows "
                f"{self.max_subscribed_topics}"
            )
        return Member(
            request.member_id,
            request.instance_id,
            joined,
            request.session_timeout_ms,
            tuple(request.assignors),
            topics,
        )


def check_group_name(name: str) -> None:
    if len(name) > MAX_GROUP_NAME_LENGTH or not GROUP_NAME_PATTERN.fullmatch(name):
        shown = name if len(name) <= 64 else name[:64] + "…"
        raise BadGroupName(f"{shown!r} cannot name a group")


def check_epoch(member: Member, epoch: int) -> None:
    """From the newest that the member has named itself, up to the one it may not have heard of."""
    if not member.acked_epoch <= epoch <= member.epoch or epoch == JOIN_EPOCH:
        raise StaleMemberEpoch(f"{member.id}: epoch {epoch}, it is at {member.epoch}")


def check_seat(member: Member, instance_id: str | None) -> None:
    if member.instance_id != instance_id:
        raise BadRequest(f"instance_id: {member.id} joined with {member.instance_id!r}")


def check_not_fenced(group: Group, member_id: str) -> None:
    if member_id in group.fenced:
        raise MemberFenced(
            f"{member_id}: another process is {group.fenced[member_id]} in group {group.name}"
        )


def check_assignor(group: Group, joining: Member, replacing: str = "") -> None:
    """All members of a group must have one in common, also with the one who joins; and who offers
    `exclusive` must be alone.
    """
    for other in group.members.values():
        if other.id != replacing and ASSIGNOR_EXCLUSIVE in (*joining.assignors, *other.assignors):
            raise GroupTaken(
                f"group {group.name} is in use by {other.client_name or 'a client'} at"
                f" {other.address or 'an unknown address'} (member {other.id}),"
                f" and {'that one' if ASSIGNOR_EXCLUSIVE in other.assignors else 'this one'}"
                " does not share it"
            )
    if group.common_assignor(joining, replacing) is None:
        offered = ", ".join(joining.assignors)
        raise NoCommonAssignor(f"group {group.name}: not all support one of {offered}")
