"""How far each group has read: its committed offsets. Who may commit, the coordinator decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from ...protocol.constants import NO_OFFSET
from ...protocol.errors import LimitExceeded, UnknownPartition, UnknownTopic
from ...protocol.group_messages import CommittedOffset, OffsetCommit, TopicPartitions
from .assignors import TopicPartition
from .limits import GroupLimits
from .records import Committed, encode_offset, offset_key
from .state import Topic

_Bookmarks = dict[str, dict[int, Committed]]  # of one group, by topic and partition


class Offsets:
    """The bookmarks of all groups. Shares the coordinator's `topics`, which it only reads."""

    def __init__(
        self,
        limits: GroupLimits,
        topics: Mapping[str, Topic],
        wall_ms: Callable[[], int],
        save: Callable[[bytes, bytes | None], None],
    ) -> None:
        self._limits = limits
        self._topics = topics
        self._wall_ms = wall_ms
        self._save = save
        self._groups: dict[str, _Bookmarks] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def commit(self, group: str, asked: OffsetCommit) -> None:
        topic = self._topics.get(asked.topic)
        limits = self._limits
        if topic is None:
            raise UnknownTopic(f"no topic {asked.topic}")
        if asked.partition >= topic.partitions:
            raise UnknownPartition(f"{asked.topic} has no partition {asked.partition}")
        if len(asked.metadata) > limits.max_metadata_length:
            raise LimitExceeded(f"group.max.metadata.length allows {limits.max_metadata_length}")
        known = self._groups.get(group, {}).get(asked.topic, {})
        if asked.partition not in known and self._count >= limits.max_committed_offsets:
            raise LimitExceeded(f"max.committed.offsets allows {limits.max_committed_offsets}")
        committed = Committed(
            topic.id, asked.offset, asked.metadata, asked.log_epoch, self._wall_ms()
        )
        self._put(group, asked.topic, asked.partition, committed)
        self._save(offset_key(group, asked.topic, asked.partition), encode_offset(committed))

    def fetch(
        self, group: str, grouped: Iterable[TopicPartitions] | None = None
    ) -> list[CommittedOffset]:
        """What was committed for these partitions, in their order, or all that was, sorted."""
        found = dict(self.of_group(group))
        asked = sorted(found) if grouped is None else flat(grouped)
        return [_to_message(place, found.get(place)) for place in asked]

    def of_group(self, group: str) -> Iterator[tuple[TopicPartition, Committed]]:
        """What counts now: not what was committed to a former topic of the same name."""
        for name, bookmarks in self._groups.get(group, {}).items():
            topic = self._topics.get(name)
            for number, committed in bookmarks.items():
                if topic is not None and committed.topic_id == topic.id:
                    yield (name, number), committed

    def snapshot(self, group: str) -> dict[str, dict[int, Committed]]:
        """As `of_group`, by topic and partition. Each copy is one step: any thread may ask."""
        found = {}
        for name, bookmarks in self._groups.get(group, {}).copy().items():
            topic = self._topics.get(name)
            if topic is not None:
                found[name] = {
                    number: committed
                    for number, committed in bookmarks.copy().items()
                    if committed.topic_id == topic.id
                }
        return found

    def restore(self, group: str, topic: str, number: int, committed: Committed) -> None:
        """As it was saved. What belongs to a former topic goes; of a topic that is not there it
        stays, unseen: perhaps the topic only cannot be read now.
        """
        known = self._topics.get(topic)
        if known is not None and known.id != committed.topic_id:
            self._save(offset_key(group, topic, number), None)
        else:
            self._put(group, topic, number, committed)

    def has_any(self, group: str) -> bool:
        return group in self._groups

    def forget_group(self, group: str) -> None:
        for topic in list(self._groups.get(group, ())):
            self._forget_topic(group, topic)

    def forget_topic(self, topic: str) -> None:
        """The topic is gone, or another now."""
        for group in list(self._groups):
            self._forget_topic(group, topic)

    def expire(self, group: str, empty_since_ms: int) -> None:
        """Forget what had its time since it was committed and the group lost its last member."""
        oldest_ms = self._wall_ms() - self._limits.offsets_retention_ms
        if empty_since_ms >= oldest_ms:
            return
        for topic, bookmarks in list(self._groups.get(group, {}).items()):
            for number, committed in list(bookmarks.items()):
                if committed.commit_time_ms < oldest_ms:
                    self._forget(group, topic, number)

    def _put(self, group: str, topic: str, number: int, committed: Committed) -> None:
        bookmarks = self._groups.setdefault(group, {}).setdefault(topic, {})
        self._count += number not in bookmarks
        bookmarks[number] = committed

    def _forget_topic(self, group: str, topic: str) -> None:
        for number in list(self._groups[group].get(topic, ())):
            self._forget(group, topic, number)

    def _forget(self, group: str, topic: str, number: int) -> None:
        bookmarks = self._groups[group]
        del bookmarks[topic][number]
        if not bookmarks[topic]:
            del bookmarks[topic]
        if not bookmarks:
            del self._groups[group]
        self._count -= 1
        self._save(offset_key(group, topic, number), None)


def flat(grouped: Iterable[TopicPartitions]) -> list[TopicPartition]:
    """`[[topic, [numbers]], …]` as single partitions, in the same order."""
    return [(topic.topic, number) for topic in grouped for number in topic.partitions]


def by_topic(partitions: Iterable[TopicPartition]) -> list[TopicPartitions]:
    """The way back, sorted."""
    grouped: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        grouped.setdefault(topic, []).append(number)
    return [TopicPartitions(topic, numbers) for topic, numbers in grouped.items()]


def _to_message(place: TopicPartition, committed: Committed | None) -> CommittedOffset:
    if committed is None:
        return CommittedOffset(*place, NO_OFFSET)
    return CommittedOffset(
        *place,
        committed.offset,
        committed.metadata,
        committed.log_epoch,
        committed.commit_time_ms,
    )
