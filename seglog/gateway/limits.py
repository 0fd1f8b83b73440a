"""What requests may take, together and alone: how many, how large, how long their bodies take.

An ASGI middleware that touches nothing else. Health and figures are always answered: they are asked
for just when everything else is full.
"""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..protocol.errors import BadRequest, LimitExceeded, TooManyConnections
from .problems import Refused, problem, problem_response
from .settings import GatewaySettings

ALWAYS_ANSWERED: Final = frozenset({"/healthz", "/readyz", "/metrics"})

#: Where a request finds its slot: a stream gives it back when it begins.
SLOT: Final = "seglog.slot"


class Slots:
    """So many at once, and no more: who comes beyond is refused, not queued."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self.taken = 0

    def take(self) -> Slot:
        if self.taken >= self._limit:
            told = TooManyConnections(f"{self._name} allows {self._limit} at once")
            raise Refused(429, told)
        self.taken += 1
        return Slot(self)


class Slot:
    """Releasing it twice is harmless."""

    def __init__(self, slots: Slots) -> None:
        self._slots: Slots | None = slots

    def release(self) -> None:
        if self._slots is not None:
            self._slots.taken -= 1
            self._slots = None


class Limits:
    """The middleware."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings) -> None:
        self._app = app
        self._settings = settings
        self._requests = Slots(settings.max_requests, "http.max.requests")
        self._bodies_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ALWAYS_ANSWERED:
            await self._app(scope, receive, send)
            return
        try:
            self._check_declared(scope)
            slot = self._requests.take()
        except Refused as refused:
            await problem_response(problem(refused.error, refused.status_code))(
                scope, receive, send
            )
            return
        scope[SLOT] = slot
        body = _Body(self, receive)
        try:
            await self._app(scope, body.receive, send)
        finally:
            slot.release()
            self._bodies_bytes -= body.size

    def _check_declared(self, scope: Scope) -> None:
        head_bytes = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        head_bytes += sum(len(name) + len(value) for name, value in scope["headers"])
        limit = self._settings.max_header_bytes
        if head_bytes > limit:
            raise Refused(431, LimitExceeded(f"headers beyond http.max.header.bytes, {limit}"))
        for name, value in scope["headers"]:
            if name == b"content-length" and int(value) > self._settings.max_body_bytes:
                self._refuse_size()

    def _refuse_size(self) -> None:
        limit = self._settings.max_body_bytes
        raise Refused(413, LimitExceeded(f"the body is larger than http.max.body.bytes, {limit}"))

    def count(self, size: int, total: int) -> None:
        """A part of a body came, which has `total` bytes by now."""
        self._bodies_bytes += size
        if total > self._settings.max_body_bytes:
            self._refuse_size()
        if self._bodies_bytes > self._settings.max_bodies_bytes:
            told = TooManyConnections("http.max.bodies.bytes are being worked on")
            raise Refused(429, told)

    @property
    def body_timeout_s(self) -> float:
        return self._settings.body_timeout_ms / 1000


class _Body:
    """The body of one request on its way in."""

    def __init__(self, limits: Limits, receive: Receive) -> None:
        self._limits = limits
        self._receive = receive
        self._deadline: float | None = None
        self._is_whole = False
        self.size = 0

    async def receive(self) -> Message:
        if self._is_whole:  # from here on it only tells that the client has gone
            return await self._receive()
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._limits.body_timeout_s
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            told = BadRequest("the body did not come within http.body.timeout.ms")
            raise Refused(408, told) from None
        if message["type"] == "http.request":
            part = len(message.get("body", b""))
            self.size += part
            self._is_whole = not message.get("more_body", False)
            self._limits.count(part, self.size)
        return message
