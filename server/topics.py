"""The topics and their partitions while the broker runs. Belongs to the loop; files are the
writer's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from ..protocol.constants import INTERNAL_TOPIC_PREFIX
from ..protocol.errors import (
    LimitExceeded,
    ProtectedTopic,
    SeglogError,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from .config import BrokerConfig
from .metrics import Metrics, TopicTraffic
from .partition import Partition
from .storage.config import config_values
from .storage.folder import DataFolder, Topic
from .storage.log import Log
from .storage.names import check_topic_name
from .writer import Writer

logger = logging.getLogger(__name__)

T = TypeVar("T")


def is_internal(name: str) -> bool:
    """Internal topics are the broker's own: hidden from listings, closed to clients' changes."""
    return name.startswith(INTERNAL_TOPIC_PREFIX)


class Topics:
    """Every topic that can be served now."""

    def __init__(
        self, folder: DataFolder, writer: Writer, config: BrokerConfig, metrics: Metrics
    ) -> None:
        self._folder = folder
        self._writer = writer
        self._config = config
        self._metrics = metrics
        self._partitions: dict[str, list[Partition]] = {}
        self._changing = asyncio.Lock()  # one topic is made, changed or deleted at a time
        self._changes: set[asyncio.Task[Any]] = set()
        #: Called with a topic that was made or changed, or None for one that is gone, once that is
        #: on disk.
        self.on_change: Callable[[str, Topic | None], None] = lambda name, topic: None

    def open_all(self) -> None:
        """Open every log, recovering what needs it. A log that cannot be opened fails alone."""
        for topic in self._folder.topics.values():
            traffic = self._new_traffic(topic.name)
            self._partitions[topic.name] = [
                self._open(topic, number, traffic) for number in range(topic.partitions)
            ]

    def close_all(self) -> None:
        """Close every log; the writer must have stopped."""
        for partition in self.all_partitions():
            if partition.log_or_none is not None:
                try:
                    partition.log_or_none.close()
                except SeglogError as error:
                    logger.error("%s", error.what)

    # --- looking up ------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._partitions)

    def names(self, *, internal: bool = False) -> list[str]:
        return sorted(name for name in self._partitions if internal or not is_internal(name))

    def describe(self, name: str) -> tuple[Topic, list[Partition]]:
        return self._folder.topic(name), self.partitions(name)

    def partitions(self, name: str) -> list[Partition]:
        try:
            return self._partitions[name]
        except KeyError:
            check_topic_name(name)
            self._folder.topic(name)  # says why a damaged topic is not served
            raise UnknownTopic(f"no topic {name}") from None

    def partition(self, name: str, number: int) -> Partition:
        partitions = self._partitions.get(name) or self.partitions(name)
        if number >= len(partitions):
            raise UnknownPartition.beyond(name, number, len(partitions))
        return partitions[number]

    def snapshot(self) -> dict[str, list[Partition]]:
        """All topics as they are now. One step, and its lists never change: any thread may ask."""
        return self._partitions.copy()

    def all_partitions(self) -> Iterator[Partition]:
        for partitions in list(self._partitions.values()):
            yield from partitions

    # --- changing --------------------------------------------------------------------------------

    async def create(
        self, name: str, partitions: int | None = None, settings: dict[str, Any] | None = None
    ) -> Topic:
        return await self._to_the_end(self._create(name, partitions, settings))

    async def alter(
        self, name: str, partitions: int | None = None, settings: dict[str, Any] | None = None
    ) -> Topic:
        return await self._to_the_end(self._alter(name, partitions, settings))

    async def delete(self, name: str) -> None:
        """Take a topic away. Readers that hold a slice keep it; those who wait are told."""
        await self._to_the_end(self._delete(name))

    async def settle(self) -> None:
        """Wait for the changes that are under way; the writer must still run."""
        await asyncio.gather(*self._changes, return_exceptions=True)

    async def _to_the_end(self, change: Coroutine[Any, Any, T]) -> T:
        """A change goes on when the one who asked for it has gone: the writer does its part in any
        case, and what is served must not differ from what is on disk.
        """
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._forget_change)
        return await asyncio.shield(task)

    def _forget_change(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("a change failed: %s", error)  # told to who asked, if he is still there

    async def _create(
        self, name: str, partitions: int | None, settings: dict[str, Any] | None
    ) -> Topic:
        async with self._changing:
            check_topic_name(name)
            if name in self._partitions:
                raise TopicExists(f"topic {name} exists")
            count = self._config.default_partitions if partitions is None else partitions
            if not is_internal(name):  # what users may have must not keep groups from working
                self._check_limits(new_topics=1, new_partitions=count)
            chosen = {**config_values(self._config.topic), **(settings or {})}

            def create() -> tuple[Topic, list[Log]]:
                topic = self._folder.create_topic(name, count, chosen)
                logs: list[Log] = []
                try:
                    for number in range(count):
                        logs.append(self._folder.open_log(name, number))  # noqa: PERF401 - see except
                except SeglogError:
                    for log in logs:
                        log.abandon()
                    self._folder.discard(self._folder.delete_topic(name))
                    raise
                return topic, logs

            topic, logs = await self._writer.run(create)
            traffic = self._new_traffic(name)
            self._partitions[name] = [
                Partition(name, topic.id, number, log, traffic) for number, log in enumerate(logs)
            ]
            self.on_change(name, topic)
            return topic

    async def _alter(
        self, name: str, partitions: int | None, settings: dict[str, Any] | None
    ) -> Topic:
        async with self._changing:
            current = self.partitions(name)
            if partitions is not None:
                self._check_limits(new_partitions=partitions - len(current))

            logs = [p.log_or_none for p in current if p.log_or_none is not None]

            def alter() -> tuple[Topic, list[Partition]]:
                if self._folder.topic(name).config.with_changes(settings or {}).syncs_before_ack:
                    # With durability=os until now, what was written may not be on disk; what comes
                    # behind it would then be acked, and lost with it.
                    for log in logs:
                        if not log.offline_reason:
                            log.sync()
                topic = self._folder.alter_topic(name, settings, partitions)
                for log in logs:
                    log.config = topic.config
                numbers = range(len(current), topic.partitions)
                traffic = current[0].traffic
                return topic, [self._open(topic, number, traffic) for number in numbers]

            topic, added = await self._writer.run(alter)
            self._partitions[name] = [*current, *added]
            self.on_change(name, topic)
            return topic

    async def _delete(self, name: str) -> None:
        async with self._changing:
            doomed_partitions = self.partitions(name)
            for partition in doomed_partitions:
                partition.is_deleted = True
            del self._partitions[name]

            def delete() -> str:
                try:
                    return self._folder.delete_topic(name)
                finally:
                    if name not in self._folder.topics:
                        for partition in doomed_partitions:
                            if partition.log_or_none is not None:
                                partition.log_or_none.abandon()

            try:
                doomed = await self._writer.run(delete)
            finally:
                if name in self._folder.topics:  # it could not be deleted: it is served as before
                    for partition in doomed_partitions:
                        partition.is_deleted = False
                    self._partitions[name] = doomed_partitions
                else:
                    self.on_change(name, None)
                for partition in doomed_partitions:
                    partition.wake_all()
        await asyncio.to_thread(self._folder.discard, doomed)

    def _check_limits(self, new_topics: int = 0, new_partitions: int = 0) -> None:
        config = self._config
        if len(self._partitions) + new_topics > config.max_topics:
            raise LimitExceeded(f"max.topics allows {config.max_topics}")
        in_use = sum(map(len, self._partitions.values()))
        if in_use + new_partitions > config.max_partitions:
            raise LimitExceeded(
                f"max.partitions allows {config.max_partitions}, {in_use} are in use"
            )

    def _new_traffic(self, name: str) -> TopicTraffic:
        return TopicTraffic(None if is_internal(name) else self._metrics.traffic)

    def _open(self, topic: Topic, number: int, traffic: TopicTraffic) -> Partition:
        opened: Log | SeglogError
        try:
            opened = self._folder.open_log(topic.name, number)
        except SeglogError as error:
            logger.error("%s/%d cannot be served: %s", topic.name, number, error.what)
            opened = error
        return Partition(topic.name, topic.id, number, opened, traffic)


def check_not_internal(name: str) -> None:
    if is_internal(name):
        raise ProtectedTopic(f"{name} is an internal topic")
