"""Groups as keyed records of the compacted topic `__groups`: the last record of a key counts.

    ["g", group]                    -> [1, stamp, epoch, assignor, empty_since_ms]
    ["m", group, member]            -> [1, stamp, …]          the fields of MemberRecord
    ["o", group, topic, partition]  -> [1, topic_id, offset, metadata, log_epoch, commit_time_ms]

A null value deletes. A change of several records may reach the disk in part: where two members then
seem to own a partition, the record with the higher stamp was written later, and it is right, since
a partition is granted only after it was released.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from ...protocol.constants import UNKNOWN_EPOCH
from .assignors import TopicPartition
from .state import Group, Member, Topic

GROUP: Final = "g"
MEMBER: Final = "m"
OFFSET: Final = "o"
_FORMAT: Final = 1
_NO_TOPIC: Final = ""  # the id of a topic that was deleted: no topic has it

Holding = tuple[str, str, list[int]]  # topic, its id, partitions


class Committed(NamedTuple):
    """One bookmark. The topic's id keeps it from meaning a later topic of the same name."""

    topic_id: str
    offset: int
    metadata: str = ""
    log_epoch: int = UNKNOWN_EPOCH
    commit_time_ms: int = 0


class GroupRecord(msgspec.Struct, array_like=True):
    format: int
    stamp: int
    epoch: int
    assignor: str
    empty_since_ms: int


class MemberRecord(msgspec.Struct, array_like=True):
    format: int
    stamp: int
    epoch: int
    acked_epoch: int
    version: int
    joined: int
    instance_id: str | None
    session_timeout_ms: int
    assignors: list[str]
    topics: list[str]
    assigned: list[Holding]
    revoking: list[Holding]
    orphaned: list[Holding]
    client_name: str
    address: str
    replaced: list[str]


class OffsetRecord(msgspec.Struct, array_like=True):
    format: int
    topic_id: str
    offset: int
    metadata: str
    log_epoch: int
    commit_time_ms: int


_encode = msgspec.msgpack.Encoder().encode
decode_key = msgspec.msgpack.Decoder(list[str | int]).decode
decode_group = msgspec.msgpack.Decoder(GroupRecord).decode
decode_member = msgspec.msgpack.Decoder(MemberRecord).decode
_decode_offset = msgspec.msgpack.Decoder(OffsetRecord).decode


def group_key(group: str) -> bytes:
    return _encode([GROUP, group])


def member_key(group: str, member_id: str) -> bytes:
    return _encode([MEMBER, group, member_id])


def offset_key(group: str, topic: str, partition: int) -> bytes:
    return _encode([OFFSET, group, topic, partition])


def encode_group(group: Group) -> bytes:
    return _encode(
        GroupRecord(_FORMAT, group.stamp, group.epoch, group.assignor, group.empty_since_ms)
    )


def encode_member(group: Group, member: Member, topics: Mapping[str, Topic]) -> bytes:
    return _encode(
        MemberRecord(
            _FORMAT,
            group.stamp,
            member.epoch,
            member.acked_epoch,
            member.version,
            member.joined,
            member.instance_id,
            member.session_timeout_ms,
            list(member.assignors),
            list(member.topics),
            _holdings(member.assigned, topics),
            _holdings(member.revoking, topics),
            _holdings(member.orphaned, {}),
            member.client_name,
            member.address,
            list(member.replaced),
        )
    )


def encode_offset(committed: Committed) -> bytes:
    return _encode(OffsetRecord(_FORMAT, *committed))


def decode_offset(value: bytes) -> Committed:
    record = _decode_offset(value)
    return Committed(
        record.topic_id, record.offset, record.metadata, record.log_epoch, record.commit_time_ms
    )


def restore_member(member_id: str, record: MemberRecord, topics: Mapping[str, Topic]) -> Member:
    """The member as it was; what it had of topics that are gone is orphaned."""
    member = Member(
        member_id,
        record.instance_id,
        record.joined,
        record.session_timeout_ms,
        tuple(record.assignors),
        tuple(record.topics),
        record.client_name,
        record.address,
        record.epoch,
        record.acked_epoch,
        record.version,
        replaced=tuple(record.replaced),
    )
    for holdings, into in (
        (record.assigned, member.assigned),
        (record.revoking, member.revoking),
        (record.orphaned, member.orphaned),
    ):
        for name, topic_id, numbers in holdings:
            topic = topics.get(name)
            is_there = topic is not None and topic.id == topic_id
            (into if is_there else member.orphaned).update((name, number) for number in numbers)
    return member


def _holdings(partitions: Iterable[TopicPartition], topics: Mapping[str, Topic]) -> list[Holding]:
    grouped: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        grouped.setdefault(topic, []).append(number)
    return [
        (name, topics[name].id if name in topics else _NO_TOPIC, numbers)
        for name, numbers in grouped.items()
    ]
