"""One HTTP connection, with the bounds that uvicorn leaves to others: how many there are, how long
one may say nothing, and how long one may take nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from .settings import GatewaySettings

_LATE_PART: Final = 0.25  # of a timeout: a look that comes later says nothing of a client


class BoundedConnection(H11Protocol):
    """Made by `bounded`, with the settings of its gateway."""

    settings: GatewaySettings

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._stalled: asyncio.TimerHandle | None = None
        self._silent: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if len(self.connections) > self.settings.max_connections:
            transport.abort()
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unwatch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._unwatch_head()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    # --- one that does not ask ---

    def _watch_head(self) -> None:
        """From the first byte of a request (or of the connection) until its headers are there; that
        they come byte by byte does not make it longer. Behind an answer, uvicorn has a timer."""
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._unwatch_head()
        elif self._silent is None:
            self._silent = self.loop.call_later(
                self.settings.idle_timeout_ms / 1000, self.transport.abort
            )

    def _unwatch_head(self) -> None:
        if self._silent is not None:
            self._silent.cancel()
            self._silent = None

    # --- a reader that stalls ---

    def _watch(self) -> None:
        self._unwatch()
        due_s = self.loop.time() + self.settings.slow_reader_timeout_ms / 1000
        self._stalled = self.loop.call_at(
            due_s, self._look, self.transport.get_write_buffer_size(), due_s
        )

    def _unwatch(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _look(self, size_before: int, due_s: float) -> None:
        """Slow is allowed; nothing at all is not. An abort, since closing would wait for it.

        A look that comes far too late says nothing: then the gateway itself stood still."""
        late_ms = (self.loop.time() - due_s) * 1000
        is_late = late_ms > self.settings.slow_reader_timeout_ms * _LATE_PART
        if is_late or self.transport.get_write_buffer_size() < size_before:
            self._watch()
        else:
            self.transport.abort()


def bounded(settings: GatewaySettings) -> type[BoundedConnection]:
    """The class that uvicorn makes connections of."""
    return type("Connection", (BoundedConnection,), {"settings": settings})
