"""`seglog gateway`: the HTTP gateway as a process of its own, until SIGTERM or SIGINT."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ..gateway.settings import DEFAULT_HTTP_PORT, NO_PORT
from ..server.logs import LogFormat, LogLevel, configure_logs
from .common import Bootstrap, check_http_extra

if TYPE_CHECKING:
    from ..gateway.settings import GatewaySettings


def gateway(
    bootstrap: Bootstrap = "",
    port: Annotated[
        str | None,
        typer.Option(
            metavar="PORT",
            help="Listen here; 0 takes a free one.",
            show_default=str(DEFAULT_HTTP_PORT),
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Listen here.", show_default="127.0.0.1")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar="SEGLOG_CONFIG", help="Settings, as TOML."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any http setting. May be repeated."),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(envvar="SEGLOG_LOG_LEVEL")] = LogLevel.info,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            envvar="SEGLOG_LOG_FORMAT", help="auto: text on a terminal, JSON lines elsewhere."
        ),
    ] = LogFormat.auto,
) -> None:
    """Serve the log over HTTP, through a broker elsewhere, until SIGTERM or SIGINT (Ctrl-C).

    It starts without the broker, and serves once that can be reached: /readyz tells.

    Settings are those of seglog serve that begin with http, from the same sources.

    Once clients can connect, standard output says: http on http://ADDRESS:PORT
    """
    check_http_extra("seglog gateway")
    from ..serve_config import ServeConfig  # noqa: PLC0415 - only where a gateway runs
    from ..server import settings as sources  # noqa: PLC0415

    named = {"--port": ("http.port", port), "--host": ("http.host", host)}
    flags = [sources.flag(name, key, v) for name, (key, v) in named.items() if v is not None]
    flags += [sources.set_flag(text) for text in settings or []]
    http = sources.load_settings(config, os.environ, flags, ServeConfig).http
    if http.port == NO_PORT:
        http = msgspec.structs.replace(http, port=DEFAULT_HTTP_PORT)
    configure_logs(log_level, log_format)

    import uvloop  # noqa: PLC0415 - as above

    uvloop.run(_serve(bootstrap, http))


async def _serve(bootstrap: str, settings: GatewaySettings) -> None:
    import asyncio  # noqa: PLC0415 - as above

    from ..gateway.server import GatewayServer  # noqa: PLC0415 - as above

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    async with GatewayServer(bootstrap, settings=settings) as server:
        typer.echo(f"http on {server.url}")
        await stop.wait()
