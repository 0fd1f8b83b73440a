"""A member of a group: it heartbeats, and brings what it holds to what the broker assigns.

    wanted   what the last answer assigns
    held     what is used, and what is being given up and not finished with

Two tasks. One heartbeats: a long poll, one at a time, which says what is held and brings what is
wanted; it is cut short when there is something to say. The other brings `held` to `wanted`, step by
step, and may take its time while the heartbeats go on.

The session runs from the moment a heartbeat was sent that was answered later: so it ends here
before it can end at the broker, and nobody goes on with partitions that are another's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol
from uuid import uuid4

from ..protocol import api
from ..protocol.constants import JOIN_EPOCH
from ..protocol.errors import (
    CallbackFailed,
    InternalError,
    RequestTimeout,
    SeglogError,
    StaleMemberEpoch,
    UnknownMember,
    UnknownPartition,
    UnknownTopic,
)
from ..protocol.group_messages import (
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    GroupLeaveRequest,
)
from .backoff import backoff_s
from .cluster import Cluster
from .group_offsets import Identity, flat, grouped
from .group_options import GroupOptions, Subscription
from .metadata import TopicPartition

logger = logging.getLogger(__name__)

Partitions = set[TopicPartition]

_LEAST_INTERVAL_S: Final = 0.05  # between heartbeats, where there is nothing to tell
#: What taking a partition may meet when the group or its topics have changed meanwhile.
_AS_WE_SHALL_HEAR: Final = (UnknownTopic, UnknownPartition, UnknownMember, StaleMemberEpoch)

#: False once everything was lost: what was begun before does not count any more.
IsCurrent = Callable[[], bool]


class Holder(Protocol):
    """Who uses the partitions."""

    def withhold(self, names: Partitions) -> None:
        """They are to be given up: hand out no more of them."""

    async def take(self, names: Partitions, is_current: IsCurrent) -> None:
        """Begin to use them."""

    async def give_up(self, names: Partitions, is_current: IsCurrent) -> None:
        """Finish with them; may take its time."""

    def drop(self, names: Partitions) -> None:
        """They are another's now: stop at once."""

    async def tell_lost(self, names: Partitions) -> None:
        """After `drop`, when there is time."""

    def fail(self, error: SeglogError) -> None:
        """It cannot go on."""


class GroupMember:
    """Owns its two tasks and the session's timer."""

    def __init__(
        self, cluster: Cluster, options: GroupOptions, subscription: Subscription, holder: Holder
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._subscription = subscription
        self._holder = holder
        self._loop = asyncio.get_running_loop()
        self.id = str(uuid4())
        self.epoch = JOIN_EPOCH
        self._generation = 0  # raised with each loss
        self._version = 0
        self._topics_version = 0
        self._is_resolved = False
        self._wanted: Partitions = set()
        self._held: Partitions = set()
        self._lost: Partitions = set()
        self._has_news = asyncio.Event()  # for the broker
        self._has_work = asyncio.Event()  # to reconcile
        self._settled: asyncio.Future[None] = self._loop.create_future()
        self._session: asyncio.TimerHandle | None = None
        self._failure: SeglogError | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_joined(self) -> bool:
        return self.epoch != JOIN_EPOCH

    @property
    def deadline(self) -> float:
        """When the session ends unless the broker answers before, in the loop's time."""
        return self._session.when() if self._session is not None else float("inf")

    def identity(self) -> Identity:
        """For a commit; UnknownMember, or what ended it, where it is no member now."""
        if self._failure is not None:
            raise self._failure
        if not self.is_joined:
            raise UnknownMember(f"{self.id} is no member of {self._options.group} (any more)")
        return Identity(self.id, self.epoch)

    async def start(self) -> None:
        """Join, and take what there is to have at once."""
        self._tasks = [asyncio.create_task(self._live()), asyncio.create_task(self._reconcile())]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(self._cluster.request_timeout_s):
                await asyncio.shield(self._settled)
        except TimeoutError:
            raise RequestTimeout(f"group {self._options.group} could not be joined") from None

    async def stop(self) -> None:
        """Heartbeat no more, change nothing any more; may be called twice."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end_session()
        self._settled.cancel()

    async def leave(self, *, keeps_seat: bool = True) -> None:
        """Tell the broker, if it can be reached; else the session timeout tells it."""
        if not self.is_joined or self._failure is not None:
            return
        keep_seat = keeps_seat and self._options.instance_id is not None
        request = GroupLeaveRequest(self._options.group, self.id, self.epoch, keep_seat)
        self.epoch = JOIN_EPOCH
        try:
            await self._cluster.retry(
                lambda: self._cluster.request_to_any(api.GROUP_LEAVE, request),
                timeout_s=min(self._options.session_s, self._cluster.request_timeout_s) / 3,
            )
        except SeglogError as error:
            logger.info("group %s was left without a word: %s", self._options.group, error)

    def lose(self, why: str) -> None:
        """Whatever was held may be another's now. The next heartbeat joins again."""
        names, self._held, self._wanted = self._held, set(), set()
        self._generation += 1
        self.epoch = JOIN_EPOCH
        self._version = 0
        self._end_session()
        if names:
            logger.warning(
                "group %s: %d partitions are lost: %s", self._options.group, len(names), why
            )
            self._holder.drop(names)
            self._lost |= names
        self._has_news.set()
        self._has_work.set()

    def lose_if_late(self) -> None:
        """For one who comes when the loop may not have run for a while."""
        if self._loop.time() >= self.deadline:
            self._time_out()

    def fail(self, error: SeglogError) -> None:
        """An end that the application must hear of."""
        if self._failure is None:
            self._failure = error
            self.lose(str(error))
            self._holder.fail(error)
        if not self._settled.done():
            self._settled.set_exception(error)

    # --- heartbeats ---

    async def _live(self) -> None:
        attempt = 0
        while self._failure is None:
            was_joined = self.is_joined
            try:
                await self._beat()
                attempt = 0
                continue
            except (UnknownMember, StaleMemberEpoch) as error:
                self.lose(str(error))
                if was_joined:
                    continue
            except SeglogError as error:
                if not error.retriable:
                    self.fail(error)
                    return
                level = logging.WARNING if attempt == 0 else logging.DEBUG
                logger.log(level, "group %s: heartbeat again: %s", self._options.group, error)
            await asyncio.sleep(min(backoff_s(attempt), self._options.session_s / 10))
            attempt += 1

    async def _beat(self) -> None:
        """One heartbeat: until it is answered, or there is something newer to say."""
        if not self._is_resolved:
            await self._subscription.resolve(self._cluster)
            self._is_resolved = True
        connection = await self._cluster.any_connection()
        generation = self._generation
        self._has_news.clear()
        request = self._request()
        sent_at = self._loop.time()
        wait_s = request.max_wait_ms / 1000
        answer = asyncio.ensure_future(
            connection.request(api.GROUP_HEARTBEAT, request, extra_s=wait_s)
        )
        news = asyncio.ensure_future(self._has_news.wait())
        try:
            await asyncio.wait(
                {answer, news},
                timeout=wait_s + self._options.session_s / 3,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if answer.done():
                response = answer.result()
                if self._generation == generation:
                    self._hear(response, sent_at)
                    if self._version == request.assignment_version and not self._has_news.is_set():
                        await self._pace(sent_at, wait_s)
            elif not news.done():
                # Nothing tells a slow broker from one that is gone: the next one goes another way.
                error = RequestTimeout(f"no answer to a heartbeat of group {self._options.group}")
                connection.abort(error)
                raise error
        finally:
            answer.cancel()
            news.cancel()

    async def _pace(self, sent_at: float, wait_s: float) -> None:
        """A broker that answers early with nothing new (it stops, say) is not asked in a circle."""
        if self._loop.time() - sent_at < wait_s / 2:
            await asyncio.sleep(min(_LEAST_INTERVAL_S, wait_s / 2))

    def _request(self) -> GroupHeartbeatRequest:
        options = self._options
        joins = not self.is_joined
        return GroupHeartbeatRequest(
            group=options.group,
            member_id=self.id,
            member_epoch=self.epoch,
            instance_id=options.instance_id,
            session_timeout_ms=options.session_timeout_ms,
            assignors=list(options.assignors),
            topics=self._subscription.topics,
            owned=[] if joins else grouped(self._held),
            max_wait_ms=0 if joins else options.session_timeout_ms // 3,
            assignment_version=self._version,
            topics_version=self._topics_version if self._subscription.has_pattern else 0,
        )

    def _hear(self, response: GroupHeartbeatResponse, sent_at: float) -> None:
        self._end_session()
        self._session = self._loop.call_at(sent_at + self._options.session_s, self._time_out)
        self.epoch = response.member_epoch
        self._version = response.assignment_version
        if response.topics_version != self._topics_version:
            self._topics_version = response.topics_version
            self._is_resolved = not self._subscription.has_pattern
        self._wanted = flat(response.assignment)
        self._holder.withhold(self._held - self._wanted)
        self._has_work.set()

    def _time_out(self) -> None:
        self.lose(f"no heartbeat was answered for {self._options.session_timeout_ms} ms")

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.cancel()
            self._session = None

    # --- bringing `held` to `wanted` ---

    async def _reconcile(self) -> None:
        attempt = 0
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            try:
                while await self._step():
                    attempt = 0
            except SeglogError as error:
                if not (error.retriable or isinstance(error, _AS_WE_SHALL_HEAR)):
                    self.fail(error)
                    return
                logger.warning("group %s: taking again: %s", self._options.group, error)
                await asyncio.sleep(backoff_s(attempt))
                attempt += 1
                self._has_work.set()
                continue
            if self.is_joined and not self._settled.done():
                self._settled.set_result(None)

    async def _step(self) -> bool:
        """Do the next thing that is to be done; False where all is as it should be."""
        generation = self._generation

        def is_current() -> bool:
            return self._generation == generation

        if self._lost:
            names, self._lost = self._lost, set()
            await self._holder.tell_lost(names)
        elif new := self._wanted - self._held:
            self._held |= new
            try:
                await self._holder.take(new, is_current)
            except SeglogError:
                if is_current():
                    self._held -= new
                raise
        elif gone := self._held - self._wanted:
            await self._holder.give_up(gone, is_current)
            if is_current():
                self._held -= gone
            self._has_news.set()
        else:
            return False
        return True

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, CallbackFailed):
                # A defect of ours: better a consumer that says so than one that hangs.
                logger.error("group %s: a task failed", self._options.group, exc_info=error)
                error = InternalError(f"group {self._options.group}: {error!r}")
            self.fail(error)
