"""Fetching ahead of the application, within bounded memory.

One task a broker asks for all partitions that have room, in one long poll, and asks again while the
application works on what came. Partitions that get room while a poll waits for others are asked for
in a second one. Batches stay views of the received frame; they are decoded when the application
takes them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

from ..protocol import api
from ..protocol.constants import KIB, MAX_ARRAY_LENGTH, MAX_FETCH_BYTES
from ..protocol.errors import InternalError, SeglogError, UnknownPartition, UnknownTopic
from ..protocol.header import hop
from ..protocol.messages import FetchPartition, FetchRequest, FetchResponse, FetchResult
from .backoff import backoff_s
from .cluster import Cluster
from .fetch_state import FetchState, Jump, RawBatch, resume_offset
from .metadata import TopicPartition

logger = logging.getLogger(__name__)

OnReset = Literal["earliest", "latest", "error"]

#: Fetches of one broker under way at once.
MAX_POLLS: Final = 2
_LEAST_ASKED_BYTES: Final = 64 * KIB


class _Poll(NamedTuple):
    """A fetch under way: whom it asks, and for what, each state at the version it had."""

    broker_id: int
    asked: list[tuple[FetchState, int]]
    size: int

    @property
    def is_wanted(self) -> bool:
        return any(state.version == version for state, version in self.asked)


class Fetcher:
    """Owns the tasks of a consumer."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        on_reset: OnReset,
        max_buffer_bytes: int,
        fetch_max_bytes: int,
        partition_max_bytes: int,
        max_wait_ms: int,
        min_bytes: int,
    ) -> None:
        self._cluster = cluster
        self._on_reset = on_reset
        self._max_buffer_bytes = max_buffer_bytes
        self._fetch_max_bytes = min(fetch_max_bytes, MAX_FETCH_BYTES)
        self._partition_max_bytes = partition_max_bytes
        self._max_wait_ms = max_wait_ms
        self._min_bytes = min_bytes
        self.states: dict[TopicPartition, FetchState] = {}
        self._buffered_bytes = 0
        self._asked_bytes = 0
        self._ready: deque[FetchState] = deque()  # something is pending, in turn
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._polls: dict[asyncio.Task[None], _Poll] = {}
        self._dispatcher: asyncio.Task[None] | None = None
        self._failure: SeglogError | None = None
        #: A topic that was deleted is no error: who assigns partitions will take them back.
        self.waits_for_missing = False

    def start(self) -> None:
        self._dispatcher = asyncio.create_task(self._dispatch())
        self._dispatcher.add_done_callback(self._ended)

    async def close(self) -> None:
        """End all tasks; may be called twice."""
        tasks: list[asyncio.Task[None]] = [*self._polls]
        if self._dispatcher is not None:
            tasks.append(self._dispatcher)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._arrived.set()  # who still waits shall see that nothing comes

    # --- the application's side ---

    def assign(self, offsets: dict[TopicPartition, int], *, withheld: bool = False) -> None:
        """Read these too, each from its offset; withheld, once they are released."""
        for name, offset in offsets.items():
            self.states[name] = FetchState(name, offset)
            self.states[name].is_withheld = withheld
        self._room.set()

    def release(self, state: FetchState) -> None:
        """Hand out what was withheld."""
        state.is_withheld = False
        if state.pending:
            self._announce(state)
        self._room.set()

    def fail(self, error: SeglogError) -> None:
        """Nothing more comes: whoever asks gets the error."""
        self._failure = error
        self._arrived.set()

    def unassign(self, names: Iterable[TopicPartition]) -> None:
        """Read these no more."""
        for name in names:
            self._buffered_bytes -= self.states.pop(name).seek(0)
        self._drop_polls()

    def seek(self, name: TopicPartition, offset: int) -> None:
        self._buffered_bytes -= self.states[name].seek(offset)
        self._drop_polls()

    def _drop_polls(self) -> None:
        """End those that nobody wants any more: at the end of a log they would wait for nothing."""
        for task, poll in self._polls.items():
            if not poll.is_wanted:
                task.cancel()
        self._room.set()

    def pause(self, name: TopicPartition) -> None:
        self.states[name].is_paused = True

    def resume(self, name: TopicPartition) -> None:
        state = self.states[name]
        state.is_paused = False
        if state.pending:
            self._announce(state)
        self._room.set()

    def take(self) -> tuple[FetchState, RawBatch | Jump | SeglogError] | None:
        """The next thing of the partition whose turn it is; None where nothing is there."""
        if self._failure is not None:
            raise self._failure
        while self._ready:
            state = self._ready.popleft()
            is_ours = self.states.get(state.name) is state
            if not state.pending or state.is_paused or state.is_withheld or not is_ours:
                continue
            item = state.pending.popleft()
            if state.pending:
                self._ready.append(state)
            if isinstance(item, RawBatch):
                state.buffered_bytes -= len(item.data)
                self._buffered_bytes -= len(item.data)
            elif isinstance(item, SeglogError):
                state.is_halted = False
            self._room.set()
            return state, item
        self._arrived.clear()
        return None

    async def wait(self) -> None:
        """Until `take` may have something; may be cancelled."""
        await self._arrived.wait()

    def _announce(self, state: FetchState) -> None:
        if state not in self._ready:
            self._ready.append(state)
        self._arrived.set()

    # --- asking ---

    async def _dispatch(self) -> None:
        """Start polls whenever there is room for what they may bring."""
        while True:
            await self._room.wait()
            self._room.clear()
            try:
                wanted = await self._wanted_by_broker()
            except SeglogError as error:
                logger.warning("consumer: %s", error)
                await asyncio.sleep(backoff_s(3))
                self._room.set()
                continue
            for broker_id, states in wanted.items():
                room = self._max_buffer_bytes - self._buffered_bytes - self._asked_bytes
                size = min(self._fetch_max_bytes, room)
                busy = sum(1 for poll in self._polls.values() if poll.broker_id == broker_id)
                if busy < MAX_POLLS and size >= min(_LEAST_ASKED_BYTES, self._max_buffer_bytes):
                    self._start_poll(broker_id, states[:MAX_ARRAY_LENGTH], size)

    async def _wanted_by_broker(self) -> dict[int, list[FetchState]]:
        wanted: dict[int, list[FetchState]] = {}
        for state in list(self.states.values()):
            if (
                not state.is_fetching
                and not state.is_paused
                and not state.is_withheld
                and not state.is_halted
                and state.buffered_bytes < self._partition_max_bytes
            ):
                try:
                    leader = await self._cluster.leader(*state.name)
                except (UnknownTopic, UnknownPartition) as error:
                    self._halt(state, error)
                    continue
                wanted.setdefault(leader, []).append(state)
        return wanted

    def _start_poll(self, broker_id: int, states: list[FetchState], size: int) -> None:
        for state in states:
            state.is_fetching = True
        self._asked_bytes += size
        poll = _Poll(broker_id, [(state, state.version) for state in states], size)
        task = asyncio.create_task(self._poll(poll))
        self._polls[task] = poll
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        poll = self._polls.pop(task, None)
        if poll is not None:  # here, since a task that is cancelled early never runs
            self._asked_bytes -= poll.size
            for state, version in poll.asked:
                if state.version == version:
                    state.is_fetching = False
        self._room.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            # A defect of ours: better a consumer that says so than one that hangs.
            logger.error("a fetch task failed", exc_info=error)
            self._failure = InternalError(f"the consumer failed: {error!r}")
            self._arrived.set()

    async def _poll(self, poll: _Poll) -> None:
        states = [state for state, _ in poll.asked]
        try:
            response = await self._fetch(poll.broker_id, states, poll.size)
            for (state, version), result in zip(poll.asked, response.results, strict=True):
                if state.version == version and self.states.get(state.name) is state:
                    self._take_result(state, result)
        except SeglogError as error:
            await self._wait_to_retry(states, error)

    async def _fetch(self, broker_id: int, states: list[FetchState], size: int) -> FetchResponse:
        request = FetchRequest(
            self._max_wait_ms,
            self._min_bytes,
            size,
            [
                FetchPartition(*s.name, s.fetch_offset, self._partition_max_bytes, s.epoch)
                for s in states
            ],
        )
        connection = await self._cluster.connection(broker_id)
        response: Any = await connection.request(
            api.FETCH, request, extra_s=self._max_wait_ms / 1000
        )
        assert isinstance(response, FetchResponse)
        # The first partition of a request is served first: next time it is another's turn.
        if states and states[0].name in self.states:
            self.states[states[0].name] = self.states.pop(states[0].name)
        return response

    async def _wait_to_retry(self, states: list[FetchState], error: SeglogError) -> None:
        """What may pass is waited for; anything else goes to the application."""
        if not error.retriable:
            for state in states:
                self._halt(state, error)
            return
        attempt = max(state.attempt for state in states)
        if attempt == 0:
            logger.warning("fetching again: %s", error)
        for state in states:
            state.attempt = attempt + 1
        await asyncio.sleep(backoff_s(attempt))
        try:
            await self._cluster.refresh([state.name.topic for state in states])
        except SeglogError as failure:
            logger.debug("metadata: %s", failure)

    # --- what came ---

    def _take_result(self, state: FetchState, result: FetchResult) -> None:
        if result.error is not None:
            self._take_error(state, result.error.to_exception())
            return
        state.attempt = 0
        state.log_start, state.durable_end = result.log_start, result.durable_end
        if not result.batches:
            return
        try:
            self._queue_batches(state, result.batches)
        except SeglogError as error:
            self._halt(state, error)
        self._announce(state)

    def _queue_batches(self, state: FetchState, batches: memoryview) -> None:
        position = 0
        while position < len(batches):
            found = hop(batches, position)
            data = batches[position : position + found.length]
            position += found.length
            state.pending.append(RawBatch(data, found.next_offset))
            state.buffered_bytes += len(data)
            self._buffered_bytes += len(data)
            state.fetch_offset = found.next_offset
            state.epoch = found.log_epoch

    def _take_error(self, state: FetchState, error: SeglogError) -> None:
        target = resume_offset(state, error, self._on_reset)
        if target is not None and target != state.fetch_offset:
            state.pending.append(Jump(error, state.fetch_offset, target))
            state.fetch_offset = target
            state.epoch = -1
            self._announce(state)
        elif error.retriable:
            self._retry_one(state, error)
        else:
            self._halt(state, error)

    def _retry_one(self, state: FetchState, error: SeglogError) -> None:
        """The others of its request go on; this one waits for its own time."""
        if state.attempt == 0:
            logger.warning("%s/%d: fetching again: %s", *state.name, error)
        state.is_halted = True
        version = state.version

        def again() -> None:
            if state.version == version:
                state.is_halted = False
                self._room.set()

        asyncio.get_running_loop().call_later(backoff_s(state.attempt), again)
        state.attempt += 1

    def _halt(self, state: FetchState, error: SeglogError) -> None:
        """Nothing more is asked of this partition until the application was told."""
        if self.waits_for_missing and isinstance(error, UnknownTopic | UnknownPartition):
            self._retry_one(state, error)
            return
        state.is_halted = True
        state.pending.append(error)
        self._announce(state)
