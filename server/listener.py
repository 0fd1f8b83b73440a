"""The listening socket and the connections it made: how many there may be, and how long idle ones
stay.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from ..protocol.errors import CannotListen, ShuttingDown, TooManyConnections
from ..protocol.frame import SHARED_BUFFER_BYTES
from .config import BrokerConfig
from .connection import Connection
from .metrics import Metrics

logger = logging.getLogger(__name__)

_LATE_PART: Final = 0.25  # of a timeout: a look that comes later says nothing of a client
_MAX_LINGERING: Final = 100  # refused connections that are still open, beside max.connections


class RequestHandler(Protocol):
    """What becomes of a frame: server/router.py."""

    def __call__(self, connection: Connection, place: int, frame: bytes | bytearray) -> None: ...


class Listener:
    """Takes connections until it is closed."""

    def __init__(self, config: BrokerConfig, handle: RequestHandler, metrics: Metrics) -> None:
        self.config = config
        self.metrics = metrics
        self.handle = handle
        self.loop = asyncio.get_running_loop()
        # One for all: it is filled and emptied without a wait in between.
        self.receive_buffer = memoryview(bytearray(SHARED_BUFFER_BYTES))
        self.connections: set[Connection] = set()
        self._lingering: set[Connection] = set()
        self._by_address: Counter[str] = Counter()
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closing = False
        self.progress = asyncio.Event()  # a connection has answered or gone

    async def start(self) -> int:
        """Listen; returns the port."""
        try:
            self._server = await self.loop.create_server(
                lambda: Connection(self), self.config.host, self.config.port, backlog=1024
            )
        except OSError as error:
            where = f"{self.config.host}:{self.config.port}"
            raise CannotListen(f"cannot listen on {where}: {error.strerror or error}") from error
        self._sweep_later()
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def admit(self, connection: Connection) -> None:
        """Count a new connection, or refuse it."""
        config = self.config
        refused = self.metrics.connections_refused
        if self._is_closing:
            refused["shutting_down"] += 1
            raise ShuttingDown("the broker is stopping")
        if len(self.connections) >= config.max_connections:
            refused["max.connections"] += 1
            raise TooManyConnections(f"max.connections allows {config.max_connections}")
        if self._by_address[connection.address] >= config.max_connections_per_address:
            refused["max.connections.per.address"] += 1
            raise TooManyConnections(
                f"max.connections.per.address allows {config.max_connections_per_address}"
            )
        self.metrics.connections_accepted += 1
        self.connections.add(connection)
        self._by_address[connection.address] += 1

    def may_linger(self, connection: Connection) -> bool:
        """Whether a refused connection may stay open until its client has read why."""
        if self._is_closing or len(self._lingering) >= _MAX_LINGERING:
            return False
        self._lingering.add(connection)
        return True

    def forget(self, connection: Connection) -> None:
        self.progress.set()
        self._lingering.discard(connection)
        if connection in self.connections:
            self.connections.discard(connection)
            self._by_address[connection.address] -= 1
            if not self._by_address[connection.address]:
                del self._by_address[connection.address]

    def stood_still(self, due_s: float, timeout_ms: int) -> bool:
        """Whether a look at a client that was due then comes so late that not the client but the
        broker did nothing: it was stopped, or had no CPU. What came meanwhile is not read yet."""
        return self.loop.time() - due_s > timeout_ms / 1000 * _LATE_PART

    def _sweep_later(self) -> None:
        due_s = self.loop.time() + self.config.idle_timeout_ms / 1000 / 4
        self._sweep = self.loop.call_at(due_s, self._close_idle, due_s)

    def _close_idle(self, due_s: float) -> None:
        if not self.stood_still(due_s, self.config.idle_timeout_ms):
            oldest = self.loop.time() - self.config.idle_timeout_ms / 1000
            for connection in list(self.connections):
                if connection.last_active < oldest and not connection.is_busy:
                    self.metrics.connections_closed["idle"] += 1
                    connection.close()
        self._sweep_later()

    async def close(self, timeout_s: float) -> None:
        """Stop accepting, let what was accepted finish, then close. May be called twice."""
        self._is_closing = True
        if self._sweep is not None:
            self._sweep.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._lingering):
            connection.abort()
        for connection in list(self.connections):
            connection.stop_reading()
        await self._wait_until(lambda: not any(c.is_busy for c in self.connections), timeout_s)
        for connection in list(self.connections):
            if connection.is_busy:
                logger.warning("closing %s with a request unanswered", connection.address)
                connection.abort()
            else:
                connection.close()
        await self._wait_until(lambda: not self.connections, timeout_s=1.0)

    async def _wait_until(self, is_done: Callable[[], bool], timeout_s: float) -> None:
        """Look at the connections again each time one of them has answered or gone."""
        try:
            async with asyncio.timeout(timeout_s):
                while not is_done():
                    self.progress.clear()
                    await self.progress.wait()
        except TimeoutError:
            pass  # the caller looks at what is left
