"""One TCP connection to a broker: requests out, each answered by its correlation id.

Any number of requests may be under way. A cancelled request leaves the connection as it is: its
answer is dropped when it comes. A request that is not answered in time ends the connection, since
nothing tells a slow broker from one that is gone. When the connection ends, for whatever reason,
every waiting request gets ConnectionLost (or RequestTimeout), and every later one too.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

from .. import __version__
from ..protocol import api
from ..protocol.constants import MAX_CLIENT_NAME_LENGTH, MAX_FRAME_BYTES
from ..protocol.errors import (
    ConnectionLost,
    NoBroker,
    RequestTimeout,
    SeglogError,
    UnsupportedVersion,
)
from ..protocol.frame import SHARED_BUFFER_BYTES, Buffer, FrameReceiver, pack_frame
from ..protocol.messages import HelloRequest, HelloResponse, Message
from ..protocol.produce_frame import encode_produce

DEFAULT_CONNECT_TIMEOUT_S: Final = 10.0
DEFAULT_REQUEST_TIMEOUT_S: Final = 30.0

#: Answers may be larger than requests: a batch that a fetch must return whole, whatever was asked.
MAX_RESPONSE_BYTES: Final = 4 * MAX_FRAME_BYTES

# An idle connection needs no receive buffer: all of a loop take turns with one.
_shared_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview] = WeakKeyDictionary()


#: Called once, in the loop, with the typed response or with the error; must not raise.
Done = Callable[[Any, SeglogError | None], None]


class _Waiting(NamedTuple):
    api: api.Api
    done: Done
    deadline: float


class Connection(asyncio.BufferedProtocol):
    """Made by `Connection.open`, which also says hello.

    Example::

        connection = await Connection.open("127.0.0.1", 7400)
        answer = await connection.request(api.METADATA, MetadataRequest())
        await connection.close()
    """

    def __init__(self, address: str, request_timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._request_timeout_s = request_timeout_s
        self._receiver = FrameReceiver(
            _shared_buffer(self._loop), MAX_RESPONSE_BYTES, trusts_lengths=True
        )
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._last_id = 0
        # One for all requests, at the first deadline or before it: most are answered long before.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._end: SeglogError | None = None
        self._ended = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self.hello = HelloResponse("", -1, "", [], {})

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_name: str = "seglog-python",
        connect_timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S,
        request_timeout_s: float = DEFAULT_REQUEST_TIMEOUT_S,
    ) -> Connection:
        """Connect and say hello. NoBroker where nobody answers, UnsupportedVersion where the two
        sides do not speak the same version of an api."""
        address = f"{host}:{port}"
        loop = asyncio.get_running_loop()
        connection = cls(address, request_timeout_s)
        try:
            async with asyncio.timeout(connect_timeout_s):
                await loop.create_connection(lambda: connection, host, port)
                hello = HelloRequest(client_name[:MAX_CLIENT_NAME_LENGTH], __version__)
                connection.hello = await connection.request(api.HELLO, hello)
                check_versions(address, connection.hello)
        except TimeoutError:
            connection.abort()
            raise NoBroker(f"{address} did not answer in {connect_timeout_s:g} s") from None
        except ConnectionLost as error:
            connection.abort()
            raise NoBroker(error.what) from None
        except OSError as error:
            connection.abort()
            raise NoBroker(f"{address}: {error}") from None
        except BaseException:
            connection.abort()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        return self._end is None

    def limit(self, name: str, default: int) -> int:
        """A limit of the broker by its dotted name, as hello told it."""
        return self.hello.limits.get(name, default)

    # --- requests ---

    async def request(self, which: api.Api, message: Message, *, extra_s: float = 0) -> Any:
        """The typed response, or the error that the broker answered.

        `extra_s` is for requests that the broker may hold back on purpose (a long poll).
        """
        await self.writable()
        answer: asyncio.Future[Any] = self._loop.create_future()

        def done(response: Any, error: SeglogError | None) -> None:
            if answer.done():  # cancelled
                return
            if error is None:
                answer.set_result(response)
            else:
                answer.set_exception(error)

        self._send(
            which,
            lambda number: pack_frame([api.encode_request(which, number, message)]),
            done,
            extra_s,
        )
        return await answer

    def produce(self, batches: Iterable[tuple[bytes, Buffer]], done: Done) -> None:
        """Write a produce request, its batches uncopied; `done` gets its ProduceResponse.

        Does not wait for the transport: see `is_writable` first.
        """
        self._send(api.PRODUCE, lambda number: encode_produce(number, batches), done)

    @property
    def is_writable(self) -> bool:
        """Whether the transport wants more bytes, or has ended."""
        return self._writable.is_set()

    async def writable(self) -> None:
        """Return once it is."""
        if not self._writable.is_set():
            await self._writable.wait()

    def _send(
        self, which: api.Api, frame: Callable[[int], list[Buffer]], done: Done, extra_s: float = 0
    ) -> None:
        if self._end is not None or self._transport is None:
            done(None, self._end or ConnectionLost(f"{self._address}: not connected"))
            return
        self._last_id = number = self._last_id + 1
        parts = frame(number)
        deadline = self._loop.time() + self._request_timeout_s + extra_s
        if deadline < self._timer_at:
            self._set_timer(deadline)
        self._waiting[number] = _Waiting(which, done, deadline)
        self._transport.writelines(parts)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = None if at == math.inf else self._loop.call_at(at, self._look_at_deadlines)

    def _look_at_deadlines(self) -> None:
        first = min(self._waiting.values(), key=attrgetter("deadline"), default=None)
        if first is None:
            self._set_timer(math.inf)
        elif first.deadline > self._loop.time():
            self._set_timer(first.deadline)
        else:
            late = f"{self._address} did not answer {first.api.name} in time"
            self.abort(RequestTimeout(late))

    # --- the end ---

    def abort(self, reason: SeglogError | None = None) -> None:
        """End now: what was not written is not written."""
        if self._transport is not None:
            self._transport.abort()
        self._finish(reason or ConnectionLost(f"{self._address}: the connection was closed"))

    async def close(self) -> None:
        """End now and wait until the socket is closed; may be called twice."""
        was_connected = self._transport is not None
        self.abort()
        if was_connected:
            await self._ended.wait()

    def _finish(self, reason: SeglogError) -> None:
        if self._end is None:
            self._end = reason
        self._set_timer(math.inf)
        self._writable.set()
        waiting, self._waiting = self._waiting, {}
        for entry in waiting.values():
            entry.done(None, reason)

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio.Transport by class, only by what they do.
        self._transport = transport = cast(asyncio.Transport, transport)
        if self._end is not None:  # given up while connecting
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(ConnectionLost(f"{self._address}: {exc or 'the broker closed it'}"))
        self._ended.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._receiver.received(nbytes):
                self._take(frame)
        except SeglogError as error:
            # What follows an answer that cannot be read cannot be read either.
            self.abort(ConnectionLost(f"{self._address} sent what is no answer: {error.what}"))

    def _take(self, frame: bytes | bytearray) -> None:
        envelope = api.decode_response_envelope(frame)
        entry = self._waiting.get(envelope.correlation_id)
        if entry is None:
            # The broker refuses a connection (too many, shutting down) under no request's number.
            if envelope.error is not None:
                self.abort(envelope.error.to_exception())
            return
        # Decoded while it still waits: if that fails, it ends with the connection as all others do.
        body = error = None
        if envelope.error is None:
            body = api.decode_response(entry.api, envelope.body)
        else:
            error = envelope.error.to_exception()
        del self._waiting[envelope.correlation_id]
        entry.done(body, error)


def _shared_buffer(loop: asyncio.AbstractEventLoop) -> memoryview:
    buffer = _shared_buffers.get(loop)
    if buffer is None:
        buffer = _shared_buffers[loop] = memoryview(bytearray(SHARED_BUFFER_BYTES))
    return buffer


def check_versions(address: str, hello: HelloResponse) -> None:
    """Refuse a broker that lacks a version which this client sends."""
    offered = {entry.key: entry for entry in hello.apis}
    for mine in api.APIS.values():
        theirs = offered.get(mine.key)
        if theirs is not None and not theirs.lowest <= mine.highest_version <= theirs.highest:
            raise UnsupportedVersion(
                f"{address} speaks {mine.name} {theirs.lowest} to {theirs.highest}, "
                f"this client {mine.highest_version}"
            )
