"""The part of SyncAdmin that looks after consumer groups: as Admin's, but it blocks."""

from __future__ import annotations

from collections.abc import Iterable

from ..protocol.group_messages import GroupListing
from .group_admin import GroupAdmin
from .group_lag import GroupDescription
from .group_offsets import Bookmark, Offsets
from .group_reset import OffsetChange, ResetTo
from .loop_thread import LoopThread
from .metadata import TopicPartition


class SyncGroupAdmin:
    """Needs a `_client` and the `_thread` of its loop."""

    _thread: LoopThread

    @property
    def _groups(self) -> GroupAdmin:
        raise NotImplementedError

    def list_groups(self) -> list[GroupListing]:
        """All groups: name, state, number of members, assignor."""
        return self._thread.call(self._groups.list_groups())

    def describe_group(self, group: str) -> GroupDescription:
        """Members, bookmarks and lag."""
        return self._thread.call(self._groups.describe_group(group))

    def delete_group(self, group: str) -> None:
        """Forget a group without members, and its bookmarks."""
        self._thread.call(self._groups.delete_group(group))

    def fetch_offsets(
        self, group: str, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, Bookmark]:
        """The bookmarks of these partitions, or of all; only those that there are."""
        return self._thread.call(self._groups.fetch_offsets(group, partitions))

    def commit_offsets(self, group: str, offsets: Offsets) -> None:
        """Write bookmarks without being a member."""
        self._thread.call(self._groups.commit_offsets(group, offsets))

    def reset_offsets(
        self,
        group: str,
        to: ResetTo,
        *,
        topics: str | Iterable[str] | None = None,
        partitions: Iterable[tuple[str, int]] | None = None,
        dry_run: bool = True,
    ) -> list[OffsetChange]:
        """Move the bookmarks of a group, or only tell what that would change."""
        work = self._groups.reset_offsets(
            group, to, topics=topics, partitions=partitions, dry_run=dry_run
        )
        return self._thread.call(work)
