"""One TCP connection to a broker: requests out, each answered by its correlation id.

Any number of requests may be under way. A cancelled request leaves the connection as it is: its
answer is dropped when it comes. A request that is not answered in time ends the connection, since
nothing tells a slow broker from one that is gone. When the connection ends, for whatever reason,
every waiting request gets ConnectionLost (or RequestTimeout), and every later one too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
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


class _Waiting(NamedTuple):
    api: api.Api
    answer: asyncio.Future[Any]
    timer: asyncio.TimerHandle


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
                _check_versions(address, connection.hello)
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
        return await self._send(
            which, lambda number: pack_frame([api.encode_request(which, number, message)]), extra_s
        )

    def produce(self, batches: Iterable[tuple[bytes, Buffer]]) -> asyncio.Future[Any]:
        """Write a produce request, its batches uncopied; the future is of a ProduceResponse.

        Does not wait for the transport: see `writable` first.
        """
        return self._send(api.PRODUCE, lambda number: encode_produce(number, batches), 0)

    async def writable(self) -> None:
        """Return once the transport wants more bytes, or has ended."""
        if not self._writable.is_set():
            await self._writable.wait()

    def _send(
        self, which: api.Api, frame: Callable[[int], list[Buffer]], extra_s: float
    ) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self._end is not None or self._transport is None:
            answer.set_exception(self._end or ConnectionLost(f"{self._address}: not connected"))
            return answer
        self._last_id = number = self._last_id + 1
        parts = frame(number)
        timer = self._loop.call_later(
            self._request_timeout_s + extra_s, self._time_out, which, number
        )
        self._waiting[number] = _Waiting(which, answer, timer)
        self._transport.writelines(parts)
        return answer

    def _time_out(self, which: api.Api, number: int) -> None:
        if number in self._waiting:
            self.abort(RequestTimeout(f"{self._address} did not answer {which.name} in time"))

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
        waiting, self._waiting = self._waiting, {}
        for entry in waiting.values():
            entry.timer.cancel()
            if not entry.answer.done():
                entry.answer.set_exception(reason)
                # Who stopped listening, on the way out of a producer for example, may do so.
                entry.answer.exception()
        self._writable.set()

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
        body = None
        if envelope.error is None:
            body = api.decode_response(entry.api, envelope.body)
        del self._waiting[envelope.correlation_id]
        entry.timer.cancel()
        if entry.answer.done():  # cancelled
            return
        if envelope.error is not None:
            entry.answer.set_exception(envelope.error.to_exception())
        else:
            entry.answer.set_result(body)


def _shared_buffer(loop: asyncio.AbstractEventLoop) -> memoryview:
    buffer = _shared_buffers.get(loop)
    if buffer is None:
        buffer = _shared_buffers[loop] = memoryview(bytearray(SHARED_BUFFER_BYTES))
    return buffer


def _check_versions(address: str, hello: HelloResponse) -> None:
    """Refuse a broker that lacks a version which this client sends."""
    offered = {entry.key: entry for entry in hello.apis}
    for mine in api.APIS.values():
        theirs = offered.get(mine.key)
        if theirs is not None and not theirs.lowest <= mine.highest_version <= theirs.highest:
            raise UnsupportedVersion(
                f"{address} speaks {mine.name} {theirs.lowest} to {theirs.highest}, "
                f"this client {mine.highest_version}"
            )
