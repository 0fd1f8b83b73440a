"""The part of Admin that looks after consumer groups."""

from __future__ import annotations

from collections.abc import Iterable

from ..protocol import api
from ..protocol.group_messages import (
    DeleteGroupRequest,
    DescribeGroupRequest,
    DescribeGroupResponse,
    GroupListing,
    ListGroupsRequest,
    ListGroupsResponse,
)
from .cluster import Cluster
from .group_lag import GroupDescription, to_description
from .group_offsets import Bookmark, Offsets, fetch_bookmarks, to_commits, write_bookmarks
from .group_reset import OffsetChange, ResetTo, reset_offsets
from .metadata import TopicPartition


class GroupAdmin:
    """Needs a `_cluster`."""

    _cluster: Cluster

    async def list_groups(self) -> list[GroupListing]:
        """All groups: name, state, number of members, assignor."""
        response: ListGroupsResponse = await self._cluster.retry(
            lambda: self._cluster.request_to_any(api.LIST_GROUPS, ListGroupsRequest())
        )
        return response.groups

    async def describe_group(self, group: str) -> GroupDescription:
        """Members and what they own; bookmarks and lag of each partition, `.lag_by_topic` and
        `.lag` in all, in records and in seconds."""
        response: DescribeGroupResponse = await self._cluster.retry(
            lambda: self._cluster.request_to_any(api.DESCRIBE_GROUP, DescribeGroupRequest(group))
        )
        return to_description(response)

    async def delete_group(self, group: str) -> None:
        """Forget a group without members, and its bookmarks; GroupNotEmpty where it has some."""
        request = DeleteGroupRequest(group)
        await self._cluster.retry(
            lambda: self._cluster.request_to_any(api.DELETE_GROUP, request), may_repeat=False
        )

    async def fetch_offsets(
        self, group: str, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, Bookmark]:
        """The bookmarks of these partitions, or of all (None); only those that there are."""
        names = None if partitions is None else [TopicPartition(*name) for name in partitions]
        return await fetch_bookmarks(self._cluster, group, names)

    async def commit_offsets(self, group: str, offsets: Offsets) -> None:
        """Write bookmarks without being a member: `{(topic, partition): offset of the next record,
        or (offset, metadata)}`. GroupNotEmpty while the group has members."""
        await write_bookmarks(self._cluster, group, to_commits(offsets))

    async def reset_offsets(
        self,
        group: str,
        to: ResetTo,
        *,
        topics: str | Iterable[str] | None = None,
        partitions: Iterable[tuple[str, int]] | None = None,
        dry_run: bool = True,
    ) -> list[OffsetChange]:
        """Move the bookmarks of a group; what that changes, partition by partition.

        Of these `topics` and `partitions`, or of all that the group has committed. Nothing changes
        unless `dry_run=False`, and then only while the group has no members (GroupNotEmpty). A
        target outside of what a log has becomes its start or its end.

        Example::

            await admin.reset_offsets("billing", datetime(2026, 1, 31, tzinfo=UTC))
            await admin.reset_offsets("billing", Shift(-100), topics="orders", dry_run=False)
        """
        return await reset_offsets(self._cluster, group, to, topics, partitions, dry_run)
