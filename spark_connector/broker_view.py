"""What the driver's side of a query asks the broker: partitions, ends, times, bookmarks, sizes.

Blocking, and patient: a broker that is away is waited for (`retryTimeout`), since Spark ends a
query whose source fails.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from ..client.cluster import Cluster
from ..client.group_offsets import fetch_bookmarks
from ..client.log_ends import LogEnds, find_ends, wait_for_data
from ..client.metadata import TopicPartition
from ..client.offsets import find_offsets
from ..protocol import api
from ..protocol.constants import INTERNAL_TOPIC_PREFIX
from ..protocol.errors import SeglogError, UnknownPartition, UnknownTopic
from ..protocol.messages import (
    DescribeTopicRequest,
    DescribeTopicResponse,
    MetadataRequest,
    MetadataResponse,
)
from .connections import Link, link
from .limits import Segments, SegmentSize
from .offsets import Positions, topics_of
from .options import InvalidOption, Options
from .read_options import ASSIGN, SUBSCRIBE, SUBSCRIBE_PATTERN


class BrokerView:
    """Made anywhere; connects when first asked."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._topics = options.get(SUBSCRIBE)
        self._assigned = options.get(ASSIGN)
        self._pattern = _compiled(options.get(SUBSCRIBE_PATTERN))

    @property
    def link(self) -> Link:
        return link(self._options)

    def names(self, *, must_exist: bool) -> list[TopicPartition]:
        """The partitions that the query subscribes to now, sorted.

        What is subscribed to by name and is not there is an error, or is left out.
        """
        wanted = self._topics if self._assigned is None else topics_of(self._assigned)
        response: MetadataResponse = self.link.ask(
            lambda cluster: cluster.request_to_any(api.METADATA, MetadataRequest(wanted))
        )
        found: list[TopicPartition] = []
        for topic in response.topics:
            error = None if topic.error is None else topic.error.to_exception()
            if isinstance(error, UnknownTopic) and not must_exist:
                continue
            if error is not None:
                raise error
            if self._pattern is None or self._matches(topic.name):
                found += [
                    TopicPartition(topic.name, number) for number in range(len(topic.leaders))
                ]
        if self._assigned is not None:
            missing = sorted(set(self._assigned) - set(found))
            if missing and must_exist:
                raise UnknownPartition(
                    f"{missing[0].topic} has no partition {missing[0].partition}"
                )
            found = [name for name in found if name in self._assigned]
        return sorted(found)

    def _matches(self, topic: str) -> bool:
        assert self._pattern is not None
        is_internal = topic.startswith(INTERNAL_TOPIC_PREFIX)
        return not is_internal and self._pattern.fullmatch(topic) is not None

    def ends(self, names: Iterable[TopicPartition]) -> dict[TopicPartition, LogEnds]:
        """Of those that there are."""
        names = list(names)
        return self.link.ask(lambda cluster: find_ends(cluster, names)) if names else {}

    def wait(self, positions: Positions, max_wait_ms: int) -> None:
        """Return once something is behind one of the positions, or after `max_wait_ms`."""
        if positions:
            self.link.ask(lambda cluster: wait_for_data(cluster, positions, max_wait_ms))
        else:  # no topic matches yet: nobody could tell
            time.sleep(max_wait_ms / 1000)

    def at_times(self, times_ms: Mapping[TopicPartition, int]) -> Positions:
        """The first record with this time or a later one; -1 where there is none."""
        wanted = {name: time_ms * 1000 for name, time_ms in times_ms.items()}
        found = self.link.ask(lambda cluster: find_offsets(cluster, wanted))
        return {name: each.offset for name, each in found.items()}

    def at_time_us(self, names: Iterable[TopicPartition], time_us: int) -> Positions:
        """The same, of all at one time in microseconds."""
        wanted = dict.fromkeys(names, time_us)
        found = self.link.ask(lambda cluster: find_offsets(cluster, wanted))
        return {name: each.offset for name, each in found.items()}

    def bookmarks(self, group: str, names: Iterable[TopicPartition]) -> Positions:
        """Of those that have one."""
        names = list(names)
        found = self.link.ask(lambda cluster: fetch_bookmarks(cluster, group, names))
        return {name: bookmark.offset for name, bookmark in found.items()}

    def segments(self, names: Iterable[TopicPartition]) -> Segments:
        """Their sizes, oldest first; none for a partition that cannot be looked at."""
        wanted = set(names)
        found: dict[TopicPartition, list[SegmentSize]] = {name: [] for name in wanted}
        for topic in topics_of(wanted):
            for each in self._describe(topic).partitions:
                name = TopicPartition(topic, each.partition)
                if name in wanted:
                    found[name] = [
                        SegmentSize(part.start_offset, part.end_offset, part.size_bytes)
                        for part in each.segments
                    ]
        return found

    def was_cut(self, name: TopicPartition) -> bool:
        """Whether this log was ever cut back; a new topic of the same name was not."""
        return any(
            each.partition == name.partition and each.epoch > 0
            for each in self._describe(name.topic).partitions
        )

    def _describe(self, topic: str) -> DescribeTopicResponse:
        async def described(cluster: Cluster) -> Any:
            return await cluster.request_to_any(api.DESCRIBE_TOPIC, DescribeTopicRequest(topic))

        try:
            response: DescribeTopicResponse = self.link.ask(described)
        except SeglogError as error:
            if not isinstance(error, UnknownTopic):
                raise
            return DescribeTopicResponse(topic, "", {}, [])
        return response


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    try:
        return None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise InvalidOption(
            f"option subscribePattern is no regular expression ({error}): {pattern!r}"
        ) from None
