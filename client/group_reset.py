"""Moving a group's bookmarks: what it would do, partition by partition, before it is done."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal, NamedTuple

from ..protocol.constants import EARLIEST, LATEST
from ..protocol.errors import BadConfig, UnknownGroup
from ..protocol.group_messages import OffsetCommit
from .cells import to_time_sought
from .cluster import Cluster
from .group_offsets import fetch_bookmarks, write_bookmarks
from .metadata import TopicPartition
from .offsets import find_positions


class Shift(NamedTuple):
    """So many offsets on from the bookmark, or back."""

    offsets: int


class SameAs(NamedTuple):
    """Where another group is; partitions for which that one has no bookmark are left out."""

    group: str


#: Where bookmarks go. A time: to the first record with that time or a later one.
ResetTo = Literal["earliest", "latest"] | int | datetime | Shift | SameAs


class OffsetChange(NamedTuple):
    """What a reset does to one partition. `from_offset` None: there was no bookmark."""

    topic: str
    partition: int
    from_offset: int | None
    to_offset: int

    @property
    def difference(self) -> int | None:
        """Negative: so many offsets are read again; positive: skipped; None: there was none."""
        return None if self.from_offset is None else self.to_offset - self.from_offset


async def reset_offsets(
    cluster: Cluster,
    group: str,
    to: ResetTo,
    topics: str | Iterable[str] | None,
    partitions: Iterable[tuple[str, int]] | None,
    dry_run: bool,
) -> list[OffsetChange]:
    """See Admin.reset_offsets."""
    _check(to)
    before = {name: mark.offset for name, mark in (await fetch_bookmarks(cluster, group)).items()}
    names = await _named(cluster, topics, partitions)
    if names is None:
        names = list(before)
        if isinstance(to, SameAs):
            names += list(await fetch_bookmarks(cluster, to.group))
    names = sorted(set(names))
    if not names:
        raise UnknownGroup(f"nothing was committed in {group!r}, and no topics are named")
    targets = await _targets(cluster, names, to, before)
    changes = [
        OffsetChange(*name, before.get(name), offset) for name, offset in sorted(targets.items())
    ]
    if not dry_run:
        commits = [
            OffsetCommit(each.topic, each.partition, each.to_offset)
            for each in changes
            if each.difference != 0
        ]
        await write_bookmarks(cluster, group, commits)
    return changes


def _check(to: ResetTo) -> None:
    is_known = to in ("earliest", "latest") if isinstance(to, str) else True
    if not is_known or (isinstance(to, int) and to < 0):
        raise BadConfig(
            f"to={to!r}: earliest, latest, an offset, a time, Shift(n) or SameAs(group)"
        )


async def _named(
    cluster: Cluster,
    topics: str | Iterable[str] | None,
    partitions: Iterable[tuple[str, int]] | None,
) -> list[TopicPartition] | None:
    if topics is None and partitions is None:
        return None
    names = [TopicPartition(*name) for name in partitions or ()]
    for topic in [topics] if isinstance(topics, str) else topics or ():
        await cluster.retry(lambda topic=topic: cluster.refresh([topic]))  # type: ignore[misc]
        count = await cluster.partition_count(topic)
        names += [TopicPartition(topic, number) for number in range(count)]
    return names


async def _targets(
    cluster: Cluster,
    names: list[TopicPartition],
    to: ResetTo,
    before: dict[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Each within what its log has: between the log start and the durable end."""
    if isinstance(to, datetime):
        return await find_positions(cluster, dict.fromkeys(names, to_time_sought(to)))
    starts = await find_positions(cluster, dict.fromkeys(names, EARLIEST))
    ends = await find_positions(cluster, dict.fromkeys(names, LATEST))
    if to == "earliest":
        return starts
    if to == "latest":
        return ends
    if isinstance(to, SameAs):
        marks = await fetch_bookmarks(cluster, to.group, names)
        wanted = {name: mark.offset for name, mark in marks.items()}
    elif isinstance(to, Shift):
        missing = [name for name in names if name not in before]
        if missing:
            raise BadConfig(f"{missing[0].topic}/{missing[0].partition} has no bookmark to shift")
        wanted = {name: before[name] + to.offsets for name in names}
    else:
        assert isinstance(to, int)
        wanted = dict.fromkeys(names, to)
    return {name: min(max(offset, starts[name]), ends[name]) for name, offset in wanted.items()}
