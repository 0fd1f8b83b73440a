"""One client's connection: frames in, answers out, and every limit in between.

Reading stops, and with it what a client can make us hold, while

- too many of its requests, or bytes of them, wait for an answer;
- it does not take its answers (after `slow.reader.timeout.ms` the connection is closed);
- the writer's queue is full.

Answers may come in any order, but appends to one partition are done, and answered, in theirs.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

from ..protocol.api import encode_error
from ..protocol.constants import MIB
from ..protocol.errors import SeglogError
from ..protocol.frame import FrameReceiver, pack_frame
from ..protocol.header import Buffer
from ..protocol.messages import WireError
from .fetch_waiters import FetchWaiter
from .metrics import UNKNOWN_API

if TYPE_CHECKING:
    from .listener import Listener

logger = logging.getLogger(__name__)

NO_REQUEST: Final = -1  # the correlation id of an error that answers no request
_HIGH_WATER_BYTES: Final = 4 * MIB
_LINGER_S: Final = 1.0  # how long a refused client may take to read why


# Why a connection is not read; plain numbers, since an enum's `&` is a function in Python.
_IN_FLIGHT: Final = 1
_SLOW_READER: Final = 2
_WRITER: Final = 4
_CLOSING: Final = 8


class Connection(asyncio.BufferedProtocol):
    """Made by the listener for each client."""

    def __init__(self, listener: Listener) -> None:
        config = listener.config
        self._listener = listener
        self._config = config
        self._metrics = listener.metrics
        self._receiver = FrameReceiver(listener.receive_buffer, config.max_frame_bytes)
        self._loop = listener.loop
        self._backlog: deque[bytes | bytearray] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._paused = 0
        self._slow_reader: asyncio.TimerHandle | None = None
        self._unsent_when_watched = 0  # with what came since
        self._when_writable: list[Callable[[], None]] = []
        self._is_draining = False
        self._is_refused = False
        self._linger: asyncio.TimerHandle | None = None
        self._in_flight_bytes = 0
        self._in_flight: dict[int, tuple[int, float]] = {}  # a place -> bytes, when it was begun
        self._next_place = 0
        self._transport: asyncio.Transport | None = None
        self.waiters: set[FetchWaiter] = set()
        self.address = ""
        self.local_host = ""
        self.client_name = ""
        self.is_greeted = False
        self.last_active = 0.0

    # --- from the transport ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio.Transport by class, only by what they do.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else "local"
        own = transport.get_extra_info("sockname")
        self.local_host = str(own[0]) if own else self._config.host
        if self.local_host == self.address:
            _send_at_once(transport)
        self.last_active = self._loop.time()
        try:
            self._listener.admit(self)
        except SeglogError as error:
            self.refuse(error)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_refused:
            return
        self.last_active = self._loop.time()
        self._metrics.received_bytes += nbytes
        try:
            frames = self._receiver.received(nbytes)
        except SeglogError as error:
            self._metrics.failed(UNKNOWN_API, error.code)
            self._metrics.connections_closed["unreadable"] += 1
            self.refuse(error)  # where the next frame begins is not known any more
            return
        for frame in frames:
            if self._paused:
                self._backlog.append(frame)
            else:
                self._dispatch(frame)

    def eof_received(self) -> bool:
        return False  # close: nobody would read the answers

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._backlog.clear()
        self._when_writable.clear()
        for timer in (self._slow_reader, self._linger):
            if timer is not None:
                timer.cancel()
        for waiter in list(self.waiters):
            waiter.cancel()
        self.waiters.clear()
        for task in self._tasks:
            task.cancel()
        self._listener.forget(self)

    def pause_writing(self) -> None:
        self._pause(_SLOW_READER)
        self._watch_slow_reader()

    def resume_writing(self) -> None:
        if self._slow_reader is not None:
            self._slow_reader.cancel()
            self._slow_reader = None
        self._resume(_SLOW_READER)
        self._listener.progress.set()
        waiting, self._when_writable = self._when_writable, []
        for callback in waiting:  # one may fill the transport again: then the next waits again
            callback()

    def _watch_slow_reader(self) -> None:
        self._unsent_when_watched = self.unsent_bytes
        due_s = self._loop.time() + self._config.slow_reader_timeout_ms / 1000
        self._slow_reader = self._loop.call_at(due_s, self._look_at_slow_reader, due_s)

    def _look_at_slow_reader(self, due_s: float) -> None:
        is_going_on = self.unsent_bytes < self._unsent_when_watched  # slow, but not still
        if is_going_on or self._listener.stood_still(due_s, self._config.slow_reader_timeout_ms):
            self._watch_slow_reader()
            return
        logger.warning(
            "closing %s (%s): it took no answer for %d ms (slow.reader.timeout.ms)",
            self.address, self.client_name, self._config.slow_reader_timeout_ms,
        )  # fmt: skip
        self._metrics.connections_closed["slow_reader"] += 1
        self.abort()

    # --- requests --------------------------------------------------------------------------------

    def _dispatch(self, frame: bytes | bytearray) -> None:
        place = self._next_place
        self._next_place += 1
        self._in_flight[place] = len(frame), perf_counter()
        self._in_flight_bytes += len(frame)
        if (
            len(self._in_flight) >= self._config.max_in_flight_requests
            or self._in_flight_bytes >= self._config.max_in_flight_bytes
        ):
            self._pause(_IN_FLIGHT)
        self._listener.handle(self, place, frame)

    def respond(
        self, place: int, parts: Sequence[Buffer], api_key: int, waited_s: float = 0.0
    ) -> None:
        """Answer the request at `place`; called once for each, even if nobody reads it any more.

        `waited_s` is what it took because its client asked it to wait, not because of the broker.
        """
        taken = self._in_flight.pop(place, None)
        if taken is not None:
            length, begun = taken
            self._in_flight_bytes -= length
            self._metrics.requests[api_key].observe(perf_counter() - begun - waited_s)
        if self._transport is not None and not self._is_refused:
            frame = pack_frame(parts)
            length = sum(map(len, frame))
            self._metrics.sent_bytes += length
            if self._slow_reader is not None:
                self._unsent_when_watched += length
            self._transport.writelines(frame)
            self.last_active = self._loop.time()
        if self._paused & _CLOSING:
            self._listener.progress.set()
        if (
            self._paused & _IN_FLIGHT
            and len(self._in_flight) < self._config.max_in_flight_requests
            and self._in_flight_bytes < self._config.max_in_flight_bytes
        ):
            self._resume(_IN_FLIGHT)

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a request that takes its time; it is cancelled with the connection."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def wait_for_writer(self, when_room: Callable[[Callable[[], None]], None]) -> None:
        """Read no more until the writer's queue has room again."""
        if not self._paused & _WRITER:
            self._pause(_WRITER)
            when_room(lambda: self._resume(_WRITER))

    @property
    def is_choked(self) -> bool:
        """Whether answers wait to be taken: others should be made later, with `when_writable`."""
        return bool(self._paused & _SLOW_READER)

    def when_writable(self, callback: Callable[[], None]) -> None:
        self._when_writable.append(callback)

    # --- pausing and closing ---------------------------------------------------------------------

    def _pause(self, reason: int) -> None:
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._paused |= reason

    def _resume(self, reason: int) -> None:
        self._paused &= ~reason
        if self._is_draining:
            return  # answered at once, from the loop below: it goes on with the next by itself
        self._is_draining = True
        try:
            while self._backlog and not self._paused:
                self._dispatch(self._backlog.popleft())
        finally:
            self._is_draining = False
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer, or an answer waits to be taken."""
        return bool(self._in_flight or self._backlog or self.unsent_bytes)

    @property
    def in_flight_requests(self) -> int:
        return len(self._in_flight)

    @property
    def in_flight_bytes(self) -> int:
        """Of requests that wait for an answer."""
        return self._in_flight_bytes

    @property
    def unsent_bytes(self) -> int:
        """Of answers that the client has not taken, nor the system for it."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def is_stopping(self) -> bool:
        """Whether the broker stops, and nothing should wait that can be answered now."""
        return bool(self._paused & _CLOSING)

    def stop_reading(self) -> None:
        """Take no new request: what is begun is finished."""
        self._backlog.clear()
        self._pause(_CLOSING)
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=0)  # to hear when everything is sent
        for waiter in list(self.waiters):
            waiter.wake()

    def refuse(self, error: SeglogError) -> None:
        """Say why, and close: for a connection that is not taken, or a stream that cannot be read.

        A socket that is closed with bytes unread resets the connection, and the client may never
        see why. So what still comes is read and dropped for a moment.
        """
        if self._transport is None or self._is_refused:
            return
        self._is_refused = True
        self._backlog.clear()
        self._receiver = FrameReceiver(self._listener.receive_buffer)  # drops a frame half read
        said = encode_error(NO_REQUEST, WireError.of(error))
        self._transport.writelines(pack_frame([said]))
        if self._listener.may_linger(self):
            self._transport.write_eof()
            self._linger = self._loop.call_later(_LINGER_S, self.abort)
        else:
            self._transport.close()

    def close(self) -> None:
        """Close once what was written is sent. May be called twice."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()


def _send_at_once(transport: asyncio.Transport) -> None:
    """For a client on the same machine, where nothing can be congested.

    A system that is set to BBR would pace what is sent with timers: that delays answers, and costs
    half as much again as sending them.
    """
    if not hasattr(socket, "TCP_CONGESTION"):  # not Linux
        return
    try:
        transport.get_extra_info("socket").setsockopt(
            socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno"
        )
    except OSError as error:  # not built into this kernel, or closed already
        logger.debug("congestion control stays as it is: %s", error)
