"""Groups as tables and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from .common import Table, on_terminal

if TYPE_CHECKING:
    from ..client.group_lag import GroupDescription, Lag, PartitionLag


def listed(found: list[GroupDescription]) -> Table:
    return Table(
        ["group", "state", "members", "lag", "lag time", "unknown"],
        [
            (g.group, g.state, len(g.members), _number(g.lag.records), _seconds(g.lag.seconds),
             g.lag.unknown)
            for g in found
        ],
    )  # fmt: skip


def listed_json(found: list[GroupDescription]) -> list[dict[str, Any]]:
    return [
        {
            "group": g.group,
            "state": g.state,
            "members": len(g.members),
            "assignor": g.assignor,
            "lag": g.lag._asdict(),
        }
        for g in found
    ]


def described(found: GroupDescription) -> list[Table]:
    total = found.lag
    summary = Table(
        ["", "group", "state", "members", "assignor", "lag", "lag time", "unknown"],
        [
            ("group", found.group, found.state, len(found.members), found.assignor or "-",
             _number(total.records), _seconds(total.seconds), total.unknown)
        ],
    )  # fmt: skip
    members = Table(
        ["", "member", "instance", "client", "address", "partitions"],
        [
            ("member", m.member_id, m.instance_id or "-", m.client_name, m.address,
             sum(len(owned.partitions) for owned in m.owned))
            for m in found.members
        ],
    )  # fmt: skip
    partitions = Table(
        ["", "topic", "partition", "bookmark", "log start", "end", "lag", "lag time", "owner",
         "error"],
        [
            ("partition", p.name.topic, p.name.partition, _maybe(p.offset), p.log_start,
             p.durable_end, *_lag_cells(p.lag), p.owner or "-", p.error or "")
            for p in found.partitions
        ],
    )  # fmt: skip
    return [each for each in (summary, members, partitions) if each.rows]


def described_json(found: GroupDescription) -> dict[str, Any]:
    return {
        "group": found.group,
        "state": found.state,
        "epoch": found.epoch,
        "assignor": found.assignor,
        "lag": found.lag._asdict(),
        "lag_by_topic": {topic: lag._asdict() for topic, lag in found.lag_by_topic.items()},
        "members": [
            {
                **{
                    name: value
                    for name, value in msgspec.structs.asdict(member).items()
                    if name != "owned"
                },
                "owned": [[o.topic, number] for o in member.owned for number in o.partitions],
            }
            for member in found.members
        ],
        "partitions": [_partition_json(partition) for partition in found.partitions],
    }


def _partition_json(found: PartitionLag) -> dict[str, Any]:
    return {
        "topic": found.name.topic,
        "partition": found.name.partition,
        "offset": found.offset,
        "metadata": found.metadata,
        "log_start": found.log_start,
        "durable_end": found.durable_end,
        "lag_records": None if found.lag is None else found.lag.records,
        "lag_seconds": None if found.lag is None else found.lag.seconds,
        "owner": found.owner or None,
        "error": found.error,
    }


def _lag_cells(lag: Lag | None) -> tuple[object, object]:
    return ("-", "-") if lag is None else (_number(lag.records), _seconds(lag.seconds))


def _maybe(offset: int | None) -> object:
    return "-" if offset is None else offset


def _number(number: int) -> str:
    return f"{number:,}" if on_terminal() else str(number)


def _seconds(seconds: float) -> str:
    """To read on a terminal (3d 4h), to calculate with elsewhere (273600.000)."""
    if not on_terminal():
        return f"{seconds:.3f}"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest_s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h"
    return f"{hours}h {minutes}m" if hours else f"{minutes}m {rest_s}s"
