"""Topics and their settings, offsets and deletion, groups: what is not sending or reading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, Self

from ..protocol import api
from ..protocol import messages as m
from ..protocol.constants import EARLIEST, LATEST
from .cells import Timestamp, to_time_sought
from .cluster import Cluster
from .connection import DEFAULT_REQUEST_TIMEOUT_S
from .group_admin import GroupAdmin
from .metadata import TopicPartition
from .offsets import FoundOffset, find_offsets

Settings = Mapping[str, str | int]


class Admin(GroupAdmin):
    """Example::

        async with Admin("127.0.0.1:7400") as admin:
            await admin.create_topic("orders", partitions=3, config={"retention.ms": 86_400_000})
            print(await admin.list_topics())

    A call that may be repeated is, while the broker cannot be reached, for `request_timeout_s`. Of
    the others ConnectionLost says that the outcome is not known: look, then call again.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] = "127.0.0.1:7400",
        *,
        client_name: str = "seglog-python",
        request_timeout_s: float = DEFAULT_REQUEST_TIMEOUT_S,
    ) -> None:
        self._cluster = Cluster(
            bootstrap, client_name=client_name, request_timeout_s=request_timeout_s
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Reach a broker."""
        try:
            await self._cluster.start()
        except BaseException:
            await self._cluster.close()
            raise

    async def close(self) -> None:
        """Close the connections; may be called twice."""
        await self._cluster.close()

    # --- topics ---

    async def create_topic(
        self, name: str, partitions: int | None = None, config: Settings | None = None
    ) -> int:
        """Create a topic; how many partitions it has. None: the broker's default."""
        request = m.CreateTopicRequest(name, partitions, dict(config or {}))
        response: m.CreateTopicResponse = await self._cluster.retry(
            lambda: self._cluster.request_to_any(api.CREATE_TOPIC, request), may_repeat=False
        )
        return response.partitions

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records."""
        request = m.DeleteTopicRequest(name)
        await self._cluster.retry(
            lambda: self._cluster.request_to_any(api.DELETE_TOPIC, request), may_repeat=False
        )

    async def alter_topic(
        self, name: str, partitions: int | None = None, config: Settings | None = None
    ) -> None:
        """Add partitions (up to `partitions` in all), or change settings; the rest stays."""
        request = m.AlterTopicRequest(name, partitions, dict(config or {}))
        await self._cluster.retry(lambda: self._cluster.request_to_any(api.ALTER_TOPIC, request))

    async def list_topics(self) -> list[str]:
        """The names of all topics but internal ones, sorted."""
        return sorted(topic.name for topic in (await self.metadata()).topics)

    async def describe_topic(self, name: str) -> m.DescribeTopicResponse:
        """Settings, and of each partition its log start, ends, size and segments."""
        request = m.DescribeTopicRequest(name)
        response: m.DescribeTopicResponse = await self._cluster.retry(
            lambda: self._cluster.request_to_any(api.DESCRIBE_TOPIC, request)
        )
        return response

    async def metadata(self, topics: Iterable[str] | None = None) -> m.MetadataResponse:
        """Brokers, topics and leaders; None: all topics."""
        request = m.MetadataRequest(None if topics is None else list(topics))
        response: m.MetadataResponse = await self._cluster.retry(
            lambda: self._cluster.request_to_any(api.METADATA, request)
        )
        return response

    # --- records ---

    async def list_offsets(
        self,
        topic: str,
        at: Literal["earliest", "latest"] | Timestamp = "latest",
        partitions: Iterable[int] | None = None,
    ) -> dict[int, FoundOffset]:
        """For each partition the log start, the durable end, or the first record at a time or
        later (offset -1 where there is none). None: all partitions."""
        if isinstance(at, str):
            time_us = EARLIEST if at == "earliest" else LATEST
        else:
            time_us = to_time_sought(at)
        if partitions is None:
            await self._cluster.refresh([topic])
            partitions = range(await self._cluster.partition_count(topic))
        wanted = {TopicPartition(topic, number): time_us for number in partitions}
        found = await find_offsets(self._cluster, wanted)
        return {name.partition: offset for name, offset in found.items()}

    async def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """Delete what lies before an offset (-1: everything there is now); the new log start."""
        request = m.DeleteRecordsRequest(
            [m.DeleteRecordsPartition(topic, partition, before_offset)]
        )
        response: m.DeleteRecordsResponse = await self._cluster.retry(
            lambda: self._cluster.request_to_leader(topic, partition, api.DELETE_RECORDS, request),
            may_repeat=before_offset >= 0,
        )
        result = response.results[0]
        if result.error is not None:
            raise result.error.to_exception()
        return result.log_start
