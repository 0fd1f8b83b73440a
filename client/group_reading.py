"""What a group's assignment means to a consumer: where reading begins and how it ends, and commits.

A partition comes: its bookmark is looked up (without one, the start is found and committed at once,
so that whoever gets the partition next begins there too), `on_assigned` is called, its records are
handed out. A partition goes: nothing more is handed out, the application finishes what it has in
hand, that is committed, `on_revoked` is called. A partition is lost: it is dropped at once, nothing
is committed, `on_lost` is called.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Final

from ..protocol.errors import (
    MemberFenced,
    NotOwner,
    SeglogError,
    StaleMemberEpoch,
    UnknownMember,
)
from ..protocol.group_messages import OffsetCommit
from .cluster import Cluster
from .cursor import Cursor
from .fetch_state import FetchState
from .fetcher import Fetcher
from .group_member import GroupMember, IsCurrent, Partitions
from .group_offsets import Bookmark, Offsets, fetch_bookmarks, to_commits, write_bookmarks
from .group_options import GroupOptions, Subscription, tell
from .hand import Hand
from .metadata import TopicPartition
from .offsets import Start, find_start

logger = logging.getLogger(__name__)

#: An application that takes records without ever waiting lets others run this often, and for so
#: many turns of the loop: enough for a heartbeat to go out and to come back.
YIELD_EVERY_S: Final = 0.05
TURNS: Final = 10


class GroupReading:
    """The consumer's side of a GroupMember; owns it, and the task that commits."""

    def __init__(
        self,
        cluster: Cluster,
        fetcher: Fetcher,
        cursor: Cursor,
        hand: Hand,
        options: GroupOptions,
        subscription: Subscription,
        start: Start,
    ) -> None:
        self._cluster = cluster
        self._fetcher = fetcher
        self._cursor = cursor
        self._hand = hand
        self._options = options
        self._subscription = subscription
        self._start = start
        self._member = GroupMember(cluster, options, subscription, self)
        self._committed: dict[TopicPartition, int] = {}  # of what is held, as far as we know
        self._said: dict[TopicPartition, int] = {}  # what the application committed itself
        self._announced: Partitions = set()
        self._lost_work: Partitions = set()  # lost with records that were taken, not committed
        self._lock = asyncio.Lock()
        self._committer: asyncio.Task[None] | None = None
        #: The application should call `breathe` when time.monotonic() is past this.
        self.yield_at = 0.0

    async def start(self) -> None:
        """Join the group. Raises what the broker has against it."""
        try:
            await self._member.start()
        except BaseException:
            await self._member.stop()
            await self._member.leave()
            raise
        if self._options.auto_commit:
            self._committer = asyncio.create_task(self._commit_by_time())

    async def close(self) -> None:
        """Commit what the application has moved past, and leave; may be called twice."""
        await self._member.stop()
        if self._committer is not None:
            self._committer.cancel()
            await asyncio.gather(self._committer, return_exceptions=True)
        if self._member.is_joined:
            names, self._announced = self._announced, set()
            try:
                await self._commit_finished(self._states(names))
                await tell(self._options.on_revoked, names)
            finally:
                await self._member.leave()

    async def breathe(self) -> None:
        """Let the heartbeats run; what is overdue ends here."""
        self._member.lose_if_late()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self.yield_at = time.monotonic() + YIELD_EVERY_S

    def check(self) -> None:
        """Before records are handed out: a session that is over must not go on."""
        self._member.lose_if_late()

    # --- what the member asks for ---

    def withhold(self, names: Partitions) -> None:
        states = self._states(names)
        for state in states:
            state.is_withheld = True
        if self._cursor.state in states:
            self._hand.keep(self._cursor.leave)
        elif self._hand.holds_any(states):
            # From here on every step of the application is seen, so that we hear when it moves on.
            self._hand.keep(self._cursor.put_back)

    async def take(self, names: Partitions, is_current: IsCurrent) -> None:
        bookmarks = await fetch_bookmarks(self._cluster, self._options.group, names)
        missing = [name for name in names if name not in bookmarks]
        starts = await self._find_start(missing)
        offsets = {name: mark.offset for name, mark in bookmarks.items()} | starts
        if not is_current():
            return
        await self._pin(starts)
        if not is_current():
            return
        self._committed |= offsets
        self._fetcher.assign(offsets, withheld=True)
        states = self._states(names)
        for state in states:
            if state.name in bookmarks:
                state.epoch = state.taken_epoch = bookmarks[state.name].log_epoch
        self._announced |= names
        await tell(self._options.on_assigned, names)
        for state in states:
            self._fetcher.release(state)

    async def _find_start(self, names: list[TopicPartition]) -> dict[TopicPartition, int]:
        """A partition that appeared while we were here is read whole, also by who wants the latest:
        nobody could have read what it got before we heard of it."""
        newer = [
            name for name in names if self._start == "latest" and self._subscription.is_newer(name)
        ]
        found = await find_start(self._cluster, newer, "earliest")
        others = [name for name in names if name not in found]
        return found | await find_start(self._cluster, others, self._start)

    async def _pin(self, starts: dict[TopicPartition, int]) -> None:
        if starts:
            try:
                await self._write([OffsetCommit(*name, offset) for name, offset in starts.items()])
            except NotOwner as error:  # given to us and taken from us again, as we shall hear
                logger.debug("%s", error)

    async def give_up(self, names: Partitions, is_current: IsCurrent) -> None:
        states = self._states(names)
        try:
            async with asyncio.timeout(self._options.max_hold_ms / 1000):
                await self._hand.wait_without(states)
        except TimeoutError:
            logger.warning(
                "group %s: records of %s are in hand for more than %d ms (max_hold_ms): others get "
                "them again", self._options.group, sorted(names), self._options.max_hold_ms,
            )  # fmt: skip
        if not is_current():
            return
        await self._commit_finished(states)
        if is_current():
            self._announced -= names
            await tell(self._options.on_revoked, names)
        if is_current():
            self._lost_work |= {state.name for state in states if self._hand.holds_any([state])}
            self._unassign(states)

    def drop(self, names: Partitions) -> None:
        states = self._states(names)
        self._lost_work |= {state.name for state in states if self._has_work(state)}
        self._unassign(states)

    async def tell_lost(self, names: Partitions) -> None:
        lost = names & self._announced
        self._announced -= lost
        await tell(self._options.on_lost, lost)

    def fail(self, error: SeglogError) -> None:
        self._fetcher.fail(error)

    def _states(self, names: Iterable[TopicPartition]) -> list[FetchState]:
        """Those that are read: what was just assigned may not be yet."""
        states = self._fetcher.states
        return [states[name] for name in names if name in states]

    def _unassign(self, states: list[FetchState]) -> None:
        if self._cursor.state in states:
            self._cursor.leave()
        self._hand.drop(states)
        self._fetcher.unassign([state.name for state in states])
        for state in states:
            self._committed.pop(state.name, None)
            self._said.pop(state.name, None)

    def _has_work(self, state: FetchState) -> bool:
        return self._cursor.position(state) != self._committed.get(state.name)

    # --- commits ---

    async def commit_taken(self) -> None:
        """The positions of all that was taken, also what is in hand."""
        lost, self._lost_work = self._lost_work, set()
        states = list(self._fetcher.states.values())
        await self._write_said(
            [
                OffsetCommit(*state.name, self._cursor.position(state), "", state.taken_epoch)
                for state in states
                if self._has_work(state)
            ]
        )
        if lost:
            shown = ", ".join(f"{topic}/{number}" for topic, number in sorted(lost))
            raise NotOwner(f"{shown}: lost since the records were taken")

    async def commit(self, offsets: Offsets) -> None:
        """These; NotOwner where a partition is not ours."""
        commits = to_commits(offsets)
        for commit in commits:
            state = self._fetcher.states.get(TopicPartition(commit.topic, commit.partition))
            if state is not None and commit.offset <= self._cursor.position(state):
                commit.log_epoch = state.taken_epoch
        await self._write_said(commits)

    async def _write_said(self, commits: list[OffsetCommit]) -> None:
        await self._write(commits)
        for commit in commits:
            self._said[TopicPartition(commit.topic, commit.partition)] = commit.offset

    async def committed(
        self, names: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, Bookmark]:
        """The bookmarks, asked of the broker."""
        wanted = list(self._fetcher.states) if names is None else names
        return await fetch_bookmarks(self._cluster, self._options.group, wanted)

    async def _commit_finished(self, states: Iterable[FetchState]) -> None:
        """What the application has moved past, of these. What fails is logged, and tried again with
        the next one; in the end the records come again."""
        if not self._options.auto_commit:
            return
        # What the application has said itself stands: also of a record that it still has in hand.
        found = [
            (state, max(self._hand.finished(state), self._said.get(state.name, 0)))
            for state in states
        ]
        try:
            await self._write(
                [
                    OffsetCommit(*state.name, offset, "", state.taken_epoch)
                    for state, offset in found
                    if self._committed.get(state.name) != offset
                ]
            )
        except SeglogError as error:
            logger.warning("group %s: offsets not committed: %s", self._options.group, error)

    async def _commit_by_time(self) -> None:
        while True:
            await asyncio.sleep(self._options.auto_commit_interval_ms / 1000)
            self._lost_work.clear()
            await self._commit_finished(list(self._fetcher.states.values()))

    async def _write(self, commits: list[OffsetCommit]) -> None:
        if not commits:
            return
        self.check()
        member = self._member
        async with self._lock:
            sent = member.identity()
            left_s = max(0.0, member.deadline - asyncio.get_running_loop().time())
            try:
                await write_bookmarks(
                    self._cluster,
                    self._options.group,
                    commits,
                    member.identity,
                    min(left_s, self._cluster.request_timeout_s),
                )
            except (UnknownMember, StaleMemberEpoch) as error:
                if member.is_joined and member.epoch == sent.member_epoch:
                    member.lose(str(error))
                raise
            except MemberFenced as error:
                member.fail(error)
                raise
            for commit in commits:
                name = TopicPartition(commit.topic, commit.partition)
                if name in self._fetcher.states or name in self._committed:
                    self._committed[name] = commit.offset
