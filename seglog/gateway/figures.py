"""What `/metrics` shows of the gateway: requests by route, method and status, and how long they
took until their answer began.

The labels are bounded: a route is a path of the specification (`/v1/topics/{topic}`) or
`unmatched`, a method one of HTTP's or `OTHER`.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: The body of /metrics and its content type.
Exposition = tuple[bytes, str]

METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
BUCKETS_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30,
)  # fmt: skip


class Figures:
    """Of one gateway. `broker` gives the figures of a broker in the same process; without it, the
    process's own are shown."""

    def __init__(self, broker: Callable[[], Exposition] | None) -> None:
        self._broker = broker
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "seglog_http_requests",
            "Requests answered.",
            ["route", "method", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "seglog_http_request_seconds",
            "Time until an answer began.",
            ["route", "method"],
            registry=registry,
            buckets=BUCKETS_S,
        )
        self.streams = Gauge("seglog_http_streams", "Streams that are open.", registry=registry)
        if broker is None:
            ProcessCollector(registry=registry)
            PlatformCollector(registry=registry)
            GCCollector(registry=registry)

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        method = scope["method"] if scope["method"] in METHODS else "OTHER"
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route, method).observe(seconds)

    def expose(self) -> Exposition:
        own = generate_latest(self._registry)
        if self._broker is None:
            return own, CONTENT_TYPE_LATEST
        body, content_type = self._broker()
        # The text format can be put together; any other comes as it is.
        return (body + own if content_type.startswith("text/plain") else body), content_type


class Observed:
    """The middleware: every answer is counted once, when it begins."""

    def __init__(self, app: ASGIApp, figures: Figures) -> None:
        self._app = app
        self._figures = figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = perf_counter()

        async def observed(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._figures.observe(scope, message["status"], perf_counter() - begun)
            await send(message)

        await self._app(scope, receive, observed)
