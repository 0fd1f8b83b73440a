"""The query as a consumer group: its bookmark in the broker, and nobody else in its group.

The query is the only member of its group (`exclusive`), with a seat of its own: started again from
its checkpoint it takes its seat back at once, and a former run that still lives is fenced. Another
query, or any other consumer, is refused by the broker; it may be that the one who is there has
crashed, so that is waited for, a little longer than a session lasts.

The checkpoint says where the query goes on; the bookmark only shows it. So a commit that fails is
logged, and the next one makes up for it. But a query that lost its group must stop: somebody else
goes by the same name now.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ..client.cluster import Cluster
from ..client.group_member import GroupMember, IsCurrent, Partitions
from ..client.group_offsets import write_bookmarks
from ..client.group_options import GroupOptions, Subscription
from ..protocol.constants import ASSIGNOR_EXCLUSIVE
from ..protocol.errors import GroupTaken, MemberFenced, SeglogError
from ..protocol.group_messages import OffsetCommit
from .connections import Link
from .offsets import Positions, topics_of
from .options import Options
from .read_options import ASSIGN, GROUP_ID, SESSION_TIMEOUT, SUBSCRIBE, SUBSCRIBE_PATTERN

logger = logging.getLogger(__name__)

#: A commit is waited for this long: the query has more to do than to be seen.
COMMIT_TIMEOUT_S: Final = 5.0
_TRY_AGAIN_S: Final = 0.25
_LONGER_THAN_A_SESSION_S: Final = 2.0


class GroupUnavailable(Exception):
    """The query's group.id belongs to somebody else."""


class _Held:
    """The partitions that the broker lets this member commit; a Holder of the client's."""

    def __init__(self) -> None:
        self.names: Partitions = set()
        self.failure: SeglogError | None = None

    def withhold(self, names: Partitions) -> None:
        """Nothing is handed out here."""

    async def take(self, names: Partitions, is_current: IsCurrent) -> None:
        self.names |= names

    async def give_up(self, names: Partitions, is_current: IsCurrent) -> None:
        self.names -= names

    def drop(self, names: Partitions) -> None:
        self.names -= names

    async def tell_lost(self, names: Partitions) -> None:
        """It joins again by itself; the next commit shows whether it may."""

    def fail(self, error: SeglogError) -> None:
        self.failure = error


class Bookmark:
    """One for each query, in the process that plans it. Blocking, but for `_` methods."""

    def __init__(self, options: Options, seat: str) -> None:
        self._group = options[GROUP_ID]
        self._options = GroupOptions(
            group=self._group,
            instance_id=seat,
            assignors=(ASSIGNOR_EXCLUSIVE,),
            session_timeout_ms=options[SESSION_TIMEOUT],
        )
        assigned = options.get(ASSIGN)
        topics = options.get(SUBSCRIBE) if assigned is None else topics_of(assigned)
        self._subscription = Subscription(topics or [], options.get(SUBSCRIBE_PATTERN))
        self._held = _Held()
        self._member: GroupMember | None = None
        self._committed: Positions = {}

    def join(self, link: Link) -> None:
        """Be the group's only member; GroupUnavailable where another one is and stays."""
        if self._member is None:
            self._member = link.thread.call(self._join(link.cluster, link.patience_s))
        if self._held.failure is not None:
            raise self._unavailable(self._held.failure)

    async def _join(self, cluster: Cluster, patience_s: float) -> GroupMember:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            self._held = _Held()
            member = GroupMember(cluster, self._options, self._subscription, self._held)
            try:
                await member.start()
                return member
            except BaseException as error:
                await member.stop()
                if isinstance(error, GroupTaken):
                    if loop.time() - began > self._options.session_s + _LONGER_THAN_A_SESSION_S:
                        raise self._unavailable(error) from None
                    logger.info("group %s: %s; it is waited for", self._group, error.what)
                elif not (
                    isinstance(error, SeglogError)
                    and error.retriable
                    and loop.time() - began < patience_s
                ):
                    raise
            await asyncio.sleep(_TRY_AGAIN_S)

    def _unavailable(self, error: SeglogError) -> GroupUnavailable:
        if isinstance(error, MemberFenced):
            return GroupUnavailable(
                f"group.id {self._group!r}: this query was started a second time from the same"
                f" checkpoint, and that run has taken over ({error.what}); stop this one"
            )
        return GroupUnavailable(
            f"group.id {self._group!r} cannot be used: {error.what}. A query has its group for"
            " itself: stop the other one, or give this query a group.id of its own"
        )

    def commit(self, link: Link, positions: Positions) -> None:
        """Show that everything before these positions is done. Failures are logged."""
        member = self._member
        # What was added just now is the member's a moment later: then it is committed.
        due = {
            name: offset
            for name, offset in positions.items()
            if self._committed.get(name) != offset and name in self._held.names
        }
        if member is None or not due:
            return
        commits = [OffsetCommit(*name, offset) for name, offset in sorted(due.items())]
        try:
            link.thread.call(
                write_bookmarks(
                    link.cluster, self._group, commits, member.identity, COMMIT_TIMEOUT_S
                )
            )
        except SeglogError as error:
            logger.warning(
                "group %s: the bookmark could not be written, the query goes on: %s",
                self._group,
                error,
            )
        else:
            self._committed |= due

    def close(self, link: Link) -> None:
        """Leave, so that the group is free at once."""
        member, self._member = self._member, None
        if member is not None:
            link.thread.call(_close(member))


async def _close(member: GroupMember) -> None:
    await member.stop()
    await member.leave(keeps_seat=False)
