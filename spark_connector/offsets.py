"""How far a query has read, as Spark keeps it in its checkpoint.

    {"orders": {"0": 1200, "1": 1180},           the next offset of each partition
     "@from": {"orders": {"1": 0}},              where partitions are begun with in this batch
     "@reader": "spark-…"}                       who reads, with `group.id`

The first line is what Spark's Kafka source keeps. A name of a topic never begins with @.

`@from` makes a replay read the same rows. Spark writes down the end of a batch before it runs, and
takes its start from the end of the one before; but the first batch has none before it, a partition
that was added is not in it, and after data loss it is not true any more. Asked for again after a
crash, the answer would be another one (`latest` above all). So the end says where the batch begins.
`@reader` lets a query that is started again know its own seat in the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ..client.metadata import TopicPartition

_FROM: Final = "@from"
_READER: Final = "@reader"

Positions = dict[TopicPartition, int]


class Span(NamedTuple):
    """The offsets first_offset up to end_offset of one partition."""

    name: TopicPartition
    first_offset: int
    end_offset: int

    @property
    def offset_count(self) -> int:
        return max(0, self.end_offset - self.first_offset)


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """One offset of the stream."""

    positions: Positions
    begins: Positions = field(default_factory=dict)
    reader: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The same text for the same offset: Spark compares it."""
        found: dict[str, Any] = _nested(self.positions)
        if self.begins:
            found[_FROM] = _nested(self.begins)
        if self.reader is not None:
            found[_READER] = self.reader
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> StreamOffset:
        positions = {name: each for name, each in found.items() if not name.startswith("@")}
        return cls(_flat(positions), _flat(found.get(_FROM, {})), found.get(_READER))


def spans(start: StreamOffset, end: StreamOffset) -> list[Span]:
    """What lies between two offsets, sorted; nothing where the end is not behind the start."""
    if start == end:  # a batch without news: where its end was begun with counts no more
        return []
    found = []
    for name, end_offset in sorted(end.positions.items()):
        first = end.begins.get(name, start.positions.get(name, 0))
        if first < end_offset:
            found.append(Span(name, first, end_offset))
    return found


def _nested(positions: Mapping[TopicPartition, int]) -> dict[str, Any]:
    topics: dict[str, Any] = {}
    for (topic, partition), offset in sorted(positions.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return topics


def _flat(topics: Mapping[str, Mapping[str, int]]) -> Positions:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in topics.items()
        for partition, offset in partitions.items()
    }


def topics_of(names: Iterable[TopicPartition]) -> list[str]:
    """Each once, sorted."""
    return sorted({name.topic for name in names})
