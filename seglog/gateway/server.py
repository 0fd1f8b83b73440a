"""The gateway in a running event loop: listen, serve, stop in order.

Stopping takes no new request, ends streams and long polls, answers what is under way, and then
closes the clients: what was taken is durable or answered with an error before it is gone.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import uvicorn

from ..protocol.errors import CannotListen
from .app import create_app
from .connection import bounded
from .figures import Exposition
from .settings import GatewaySettings
from .state import Gateway


class GatewayServer:
    """Example::

    async with GatewayServer("127.0.0.1:7400", settings=GatewaySettings(port=0)) as gateway:
        print(gateway.url)
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        settings: GatewaySettings,
        metrics: Callable[[], Exposition] | None = None,
    ) -> None:
        self._settings = settings
        self.app = create_app(bootstrap, settings=settings, metrics=metrics)
        self.port = 0
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def gateway(self) -> Gateway:
        gateway: Gateway = self.app.state.gateway
        return gateway

    @property
    def url(self) -> str:
        host = self._settings.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Return once requests are taken; CannotListen where the address cannot be had."""
        settings = self._settings
        listener = _listen(settings.host, max(settings.port, 0))
        self.port = listener.getsockname()[1]
        self._server = server = _Server(
            uvicorn.Config(
                self.app,
                http=bounded(settings),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=max(1, settings.idle_timeout_ms // 1000),
                timeout_graceful_shutdown=max(1, settings.shutdown_timeout_ms // 1000),
                h11_max_incomplete_event_size=settings.max_header_bytes,
            )
        )
        self._serving = asyncio.create_task(server.serve([listener]))
        up = asyncio.create_task(server.is_up.wait())
        await asyncio.wait({up, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if self._serving.done():
            listener.close()
            await self._serving

    async def stop(self) -> None:
        """See the module; may be called twice."""
        if self._server is None or self._serving is None:
            return
        self.gateway.backend.stopping.set()
        self._server.should_exit = True
        await self._serving


class _Server(uvicorn.Server):
    """uvicorn's, which leaves signals alone (they are the broker's) and says when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CannotListen(f"http: cannot listen on {host}:{port}: {reason}") from None
    listener.setblocking(False)
    return listener
