"""Groups in a running broker: time, durability and waiting around the pure coordinator.

    request ► coordinator (at once) ► [wait for news] ► answer made ► saved ► sent

Heartbeats are taken in the order of their arrival, before anything is awaited. One that finds
nothing to tell is parked, until its member's assignment changes or its time is up: nothing polls.
Targets are computed one group at a time, with a pause after each in proportion to what it cost, and
large ones in a reader thread: a storm of joins takes a share of the loop, not all of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from ..protocol.errors import DamagedLog, SeglogError
from ..protocol.group_messages import (
    CommitOffsetsRequest,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    GroupLeaveRequest,
)
from .group_store import GroupStore
from .groups.coordinator import HEARTBEATS_PER_SESSION, Coordinator
from .groups.limits import GroupLimits
from .groups.state import Plan, Topic
from .topics import is_internal

if TYPE_CHECKING:
    from .app import Broker
    from .config import BrokerConfig
    from .connection import Connection
    from .storage.folder import Topic as StoredTopic

logger = logging.getLogger(__name__)

_SETTLE_SHARE: Final = 0.2  # of the loop's time may go into targets
_LARGE_PLAN: Final = 5_000  # members and partitions: more are computed in a thread
_MAX_STALE_PLANS: Final = 3  # then the target is computed at once, whatever it costs
_HELD_UP_MS: Final = 500  # a timer that is later than this tells that the broker stood still


class _Parked(NamedTuple):
    """A heartbeat that waits for something to tell."""

    woken: asyncio.Future[None]
    topics_version: int  # 0: it does not wait for topics


class GroupService:
    """Owned by the broker; belongs to the loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = GroupStore(broker.topics, broker.writer)
        self.coordinator = Coordinator(
            group_limits(broker.config),
            clock_ms=lambda: time.monotonic_ns() // 1_000_000,
            wall_ms=lambda: time.time_ns() // 1_000_000,
            save=self._store.put,
            # By the clock, so that it grows across restarts as well.
            topics_version=time.time_ns() // 1000,
        )
        self._failure: SeglogError | None = None
        self._parked: dict[tuple[str, str], _Parked] = {}
        self._settled_waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._settler: asyncio.Task[None] | None = None
        self._expirer: asyncio.Task[None] | None = None
        self._has_unsettled = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None
        self._is_stopping = False

    # --- starting and stopping -------------------------------------------------------------------

    def load(self) -> None:
        """Take over what was saved; called before the first connection."""
        topics = self._broker.topics
        for name in topics.names():
            self.coordinator.set_topic(name, _as_known(topics.describe(name)[0]))
        topics.on_change = self._topic_changed
        try:
            self.coordinator.load(self._store.load())
        except (SeglogError, msgspec.MsgspecError) as error:
            # Better no groups than wrong ones: a member that is forgotten would have a second one
            # beside it. Everything else is served.
            logger.error("groups cannot be served: %s", error)
            self._failure = DamagedLog(f"groups cannot be served: {error}")

    def start(self) -> None:
        self._store.start()
        self._settler = asyncio.create_task(self._settle_for_ever())
        self._expirer = asyncio.create_task(self._expire_offsets_for_ever())
        self._after_change()

    def release_waiters(self) -> None:
        """Answer every heartbeat that waits, and let none wait from now on."""
        self._is_stopping = True
        for parked in self._parked.values():
            _wake(parked.woken)

    async def stop(self) -> None:
        """The writer must still run. May be called twice."""
        self.release_waiters()
        if self._deadline is not None:
            self._deadline.cancel()
        tasks = [task for task in (self._settler, self._expirer) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._store.stop()

    # --- requests --------------------------------------------------------------------------------

    async def heartbeat(
        self, connection: Connection, request: GroupHeartbeatRequest
    ) -> GroupHeartbeatResponse:
        self.check_served()
        heard = self.coordinator.heartbeat(request, connection.client_name, connection.address)
        self._after_change()
        place = (request.group, request.member_id)
        self._unpark(place)
        if heard.needs_target:
            await self._until_settled(request.group)
        elif not heard.has_news:
            await self._park(place, request)
        answer = self.coordinator.answer(*place)
        await self._store.saved()
        return answer

    async def leave(self, request: GroupLeaveRequest) -> None:
        self.check_served()
        self.coordinator.leave(request)
        self._after_change()
        await self._store.saved()

    async def commit(self, request: CommitOffsetsRequest) -> list[SeglogError | None]:
        self.check_served()
        results = self.coordinator.commit(request)
        await self._store.saved()
        return results

    async def fetch_offsets(self, request: FetchOffsetsRequest) -> FetchOffsetsResponse:
        self.check_served()
        self.coordinator.find(request.group)  # checks the name
        found = self.coordinator.offsets.fetch(request.group, request.partitions)
        await self._store.saved()
        return FetchOffsetsResponse(found)

    async def delete(self, name: str) -> None:
        self.check_served()
        self.coordinator.delete(name)
        await self._store.saved()

    async def saved(self) -> None:
        """Return once everything that was known when this was called may be told."""
        await self._store.saved()

    @property
    def parked_heartbeats(self) -> int:
        """How many heartbeats wait for something to tell."""
        return len(self._parked)

    def check_served(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- waiting ---------------------------------------------------------------------------------

    async def _park(self, place: tuple[str, str], request: GroupHeartbeatRequest) -> None:
        wait_ms = min(request.max_wait_ms, request.session_timeout_ms // HEARTBEATS_PER_SESSION)
        knows_topics = request.topics_version in {0, self.coordinator.topics_version}
        if wait_ms <= 0 or self._is_stopping or not knows_topics:
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        parked = self._parked[place] = _Parked(woken, request.topics_version)
        timer = asyncio.get_running_loop().call_later(wait_ms / 1000, _wake, woken)
        try:
            await woken
        finally:
            timer.cancel()
            if self._parked.get(place) is parked:
                del self._parked[place]

    def _unpark(self, place: tuple[str, str]) -> None:
        parked = self._parked.get(place)
        if parked is not None:
            _wake(parked.woken)

    async def _until_settled(self, group: str) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settled_waiters.setdefault(group, []).append(future)
        await future

    def _after_change(self) -> None:
        """Wake who has news, and arrange for what the coordinator has left to do."""
        for place in self.coordinator.take_news():
            self._unpark(place)
        if self.coordinator.unsettled:
            self._has_unsettled.set()
        self._set_deadline()

    # --- targets ---------------------------------------------------------------------------------

    async def _settle_for_ever(self) -> None:
        while True:
            await self._has_unsettled.wait()
            self._has_unsettled.clear()
            while self.coordinator.unsettled:
                group = next(iter(self.coordinator.unsettled))
                started = time.perf_counter()
                try:
                    await self._settle(group)
                except Exception as error:
                    logger.exception("the target of group %s failed", group)
                    self.coordinator.unsettled.pop(group, None)
                    self._tell_settled(group, error)
                else:
                    self._tell_settled(group, None)
                self._after_change()
                cost_s = time.perf_counter() - started
                # Also lets what has arrived meanwhile in: many joins share one target.
                await asyncio.sleep(cost_s * (1 - _SETTLE_SHARE) / _SETTLE_SHARE)

    async def _settle(self, group: str) -> None:
        for _ in range(_MAX_STALE_PLANS):
            plan = self.coordinator.plan(group)
            if plan is None or not _is_large(plan):
                break
            target = await asyncio.get_running_loop().run_in_executor(
                self._broker.readers, plan.compute
            )
            if self.coordinator.apply(group, plan, target):
                return
        self.coordinator.settle(group)

    def _tell_settled(self, group: str, failure: Exception | None) -> None:
        for waiter in self._settled_waiters.pop(group, ()):
            if not waiter.done():
                if failure is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(failure)

    # --- time ------------------------------------------------------------------------------------

    def _set_deadline(self) -> None:
        due_ms = self.coordinator.next_deadline_ms()
        if due_ms is None or self._is_stopping:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + max(0.0, due_ms - time.monotonic_ns() // 1_000_000) / 1000 + 0.001
        if self._deadline is not None and not self._deadline.cancelled():
            if self._deadline.when() <= when:
                return
            self._deadline.cancel()
        self._deadline = loop.call_at(when, self._expire)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._deadline is not None
        late_ms = int((loop.time() - self._deadline.when()) * 1000)
        self._deadline = None
        if late_ms > _HELD_UP_MS:
            # The machine slept, or the loop was held up: heartbeats may lie in the sockets unread.
            logger.warning("the broker was held up for %d ms: sessions are longer by it", late_ms)
            self.coordinator.postpone(late_ms + _HELD_UP_MS)
        for group, member_id in self.coordinator.expire():
            logger.info("member %s of group %s timed out", member_id, group)
        self._after_change()

    async def _expire_offsets_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._broker.config.housekeeping_interval_ms / 1000)
            self.coordinator.expire_offsets()

    # --- topics ----------------------------------------------------------------------------------

    def _topic_changed(self, name: str, topic: StoredTopic | None) -> None:
        """Called by Topics once the change is on disk."""
        if is_internal(name):
            return
        if topic is None:
            self.coordinator.remove_topic(name)
        else:
            self.coordinator.set_topic(name, _as_known(topic))
        version = self.coordinator.topics_version
        for parked in list(self._parked.values()):
            if parked.topics_version not in {0, version}:
                _wake(parked.woken)
        self._after_change()


def group_limits(config: BrokerConfig) -> GroupLimits:
    return GroupLimits(
        max_groups=config.max_groups,
        max_members_per_group=config.max_members_per_group,
        max_subscribed_topics=config.group_max_subscribed_topics,
        max_committed_offsets=config.max_committed_offsets,
        max_metadata_length=config.group_max_metadata_length,
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        offsets_retention_ms=config.group_offsets_retention_ms,
    )


def _as_known(topic: StoredTopic) -> Topic:
    return Topic(topic.id, topic.partitions)


def _is_large(plan: Plan) -> bool:
    return len(plan.members) + sum(plan.counts.values()) > _LARGE_PLAN


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
