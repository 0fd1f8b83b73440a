"""Groups from their records, at the start of a broker; a crash may have kept a change in part."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

from .records import (
    GROUP,
    MEMBER,
    Committed,
    MemberRecord,
    decode_group,
    decode_key,
    decode_member,
    decode_offset,
    restore_member,
)
from .state import Group, Topic


class SavedOffset(NamedTuple):
    group: str
    topic: str
    number: int
    committed: Committed


def load_groups(
    table: Mapping[bytes, bytes], topics: Mapping[str, Topic]
) -> tuple[dict[str, Group], list[SavedOffset]]:
    """The groups as they were; what two members seem to own has the one that was saved last."""
    groups: dict[str, Group] = {}
    members: dict[str, list[tuple[str, MemberRecord]]] = {}
    offsets: list[SavedOffset] = []
    for key, value in table.items():
        kind, name, *rest = decode_key(key)
        group = groups.setdefault(str(name), Group(str(name)))
        if kind == GROUP:
            header = decode_group(value)
            group.stamp, group.epoch = header.stamp, header.epoch
            group.assignor, group.empty_since_ms = header.assignor, header.empty_since_ms
            group.is_header_unsaved = False
        elif kind == MEMBER:
            members.setdefault(group.name, []).append((str(rest[0]), decode_member(value)))
        else:
            saved = SavedOffset(group.name, str(rest[0]), int(rest[1]), decode_offset(value))
            offsets.append(saved)
    for group_name, group_members in members.items():
        _seat(groups[group_name], group_members, topics)
    return groups, offsets


def _seat(group: Group, saved: list[tuple[str, MemberRecord]], topics: Mapping[str, Topic]) -> None:
    newest_first = sorted(saved, key=lambda entry: -entry[1].stamp)
    group.stamp = max(group.stamp, newest_first[0][1].stamp)
    group.epoch = max(group.epoch, *(record.epoch for _, record in saved))
    taken_over = set(chain.from_iterable(record.replaced for _, record in saved))
    for member_id, record in newest_first:
        if member_id in taken_over or (record.instance_id or "") in group.seats:
            group.unsaved.add(member_id)  # its tombstone was lost
            continue
        member = restore_member(member_id, record, topics)
        lost = {place for place in member.owned if place in group.owners}
        was_orphaned = len(member.orphaned)
        member.assigned -= lost
        member.revoking -= lost
        member.orphaned -= lost
        group.add(member)
        group.owners.update(dict.fromkeys(member.owned, member_id))
        if lost or was_orphaned:
            group.tell(member)
    group.unsaved -= set(group.members) - group.news
    group.news.clear()
    # The order in which they joined, as before.
    group.members = dict(sorted(group.members.items(), key=lambda entry: entry[1].joined))
