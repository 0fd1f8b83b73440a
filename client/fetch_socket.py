"""Fetches over a socket of their own, in the thread that wants the bytes: for reading in bulk.

    ask ────► the request is on its way, and the broker sends what it can before anybody waits
    answer ◄── the whole frame, received in place

An event loop in a thread beside would take each answer on one core and hand it over to another. For
whoever has nothing else to wait for that costs as much again as the receiving itself.

Nothing is tried again: what goes wrong is a SeglogError, and then the socket is of no more use.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any, Final, Self

from .. import __version__
from ..protocol import api
from ..protocol.constants import FRAME_PREFIX_BYTES, MAX_CLIENT_NAME_LENGTH
from ..protocol.errors import BadRequest, ConnectionLost, RequestTimeout
from ..protocol.frame import pack_frame
from ..protocol.messages import (
    FetchRequest,
    FetchResponse,
    HelloRequest,
    HelloResponse,
    Message,
)
from .connection import MAX_RESPONSE_BYTES, check_versions
from .metadata import Address

#: Memory of so many bytes that can be written to, whatever is in it.
Allocate = Callable[[int], bytearray | memoryview]

_TIMEVAL: Final = struct.Struct("ll")  # of the system: seconds and microseconds


class FetchSocket:
    """Made by `FetchSocket.open`, which also says hello. One request at a time."""

    def __init__(self, connected: socket.socket, address: Address, allocate: Allocate) -> None:
        self._socket = connected
        self._address = address
        self._allocate = allocate
        self._last_id = 0

    @classmethod
    def open(
        cls,
        address: Address,
        broker_id: int,
        *,
        client_name: str,
        connect_timeout_s: float,
        timeout_s: float,
        allocate: Allocate = bytearray,
    ) -> Self:
        """Connect to this broker, which was reached at this address before."""
        try:
            connected = socket.create_connection((address.host, address.port), connect_timeout_s)
        except OSError as error:
            raise ConnectionLost(f"{address}: {error}") from None
        found = cls(connected, address, allocate)
        try:
            found._prepare(timeout_s)
            found._send(api.HELLO, HelloRequest(client_name[:MAX_CLIENT_NAME_LENGTH], __version__))
            hello: HelloResponse = found._receive(api.HELLO)
            check_versions(str(address), hello)
            if hello.broker_id != broker_id:
                raise ConnectionLost(f"{address} is broker {hello.broker_id}, not {broker_id}")
        except BaseException:
            found.close()
            raise
        return found

    def ask(self, request: FetchRequest) -> None:
        """Send a request; its `answer` must be taken before the next one."""
        self._send(api.FETCH, request)

    def answer(self) -> FetchResponse:
        """Wait for the answer to what was asked last; the error that the broker told is raised."""
        response: FetchResponse = self._receive(api.FETCH)
        return response

    def close(self) -> None:
        """May be called twice."""
        self._socket.close()

    def _prepare(self, timeout_s: float) -> None:
        # The system keeps the time: a socket with a timeout of Python's own does not block, and
        # would come back for every piece of an answer.
        self._socket.settimeout(None)
        whole_s = int(timeout_s)
        timeval = _TIMEVAL.pack(whole_s, max(1, int((timeout_s - whole_s) * 1_000_000)))
        try:
            for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self._socket.setsockopt(socket.SOL_SOCKET, direction, timeval)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:  # macOS refuses it where the other side has gone meanwhile
            raise self._lost(error) from None

    def _send(self, which: api.Api, message: Message) -> None:
        self._last_id += 1
        frame = b"".join(pack_frame([api.encode_request(which, self._last_id, message)]))
        try:
            self._socket.sendall(frame)
        except OSError as error:
            raise self._lost(error) from None

    def _receive(self, which: api.Api) -> Any:
        length = int.from_bytes(self._whole(bytearray(FRAME_PREFIX_BYTES)), "big")
        if not 0 < length <= MAX_RESPONSE_BYTES:
            raise ConnectionLost(f"{self._address} sent what is no answer: {length} bytes")
        frame = self._whole(self._allocate(length))
        try:
            envelope = api.decode_response_envelope(frame)
            if envelope.error is not None:
                raise envelope.error.to_exception()
            if envelope.correlation_id != self._last_id:
                raise BadRequest(f"answer {envelope.correlation_id} to request {self._last_id}")
            return api.decode_response(which, envelope.body)
        except BadRequest as error:
            raise ConnectionLost(f"{self._address} sent what is no answer: {error.what}") from None

    def _whole(self, buffer: bytearray | memoryview) -> bytearray | memoryview:
        """The buffer, filled."""
        rest = memoryview(buffer)
        while rest:
            try:
                count = self._socket.recv_into(rest, 0, socket.MSG_WAITALL)
            except OSError as error:
                raise self._lost(error) from None
            if not count:
                raise ConnectionLost(f"{self._address}: the broker closed it")
            rest = rest[count:]
        return buffer

    def _lost(self, error: OSError) -> ConnectionLost | RequestTimeout:
        if isinstance(error, BlockingIOError):  # how the system says that the time is over
            return RequestTimeout(f"{self._address} did not answer in time")
        return ConnectionLost(f"{self._address}: {error}")
