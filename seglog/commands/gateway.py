"""`seglog gateway`: the HTTP gateway as a process of its own, until SIGTERM or SIGINT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ..gateway.settings import DEFAULT_HTTP_PORT, NO_PORT
from ..server.logs import LogFormat, LogLevel, configure_logs
from .common import Bootstrap, check_http_extra
from .running import ConfigFile, LogFormatOption, LogLevelOption, load_given

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
    config: ConfigFile = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any http setting. May be repeated."),
    ] = None,
    log_level: LogLevelOption = LogLevel.info,
    log_format: LogFormatOption = LogFormat.auto,
) -> None:
    """Serve the log over HTTP, through a broker elsewhere, until SIGTERM or SIGINT (Ctrl-C).

    It starts without the broker, and serves once that can be reached: /readyz tells.

    Settings are those of seglog serve that begin with http, from the same sources.

    Once clients can connect, standard output says: http on http://ADDRESS:PORT
    """
    check_http_extra("seglog gateway")
    named = {"--port": ("http.port", port), "--host": ("http.host", host)}
    http = load_given(config, named, settings).http
    if http.port == NO_PORT:
        http = msgspec.structs.replace(http, port=DEFAULT_HTTP_PORT)
    configure_logs(log_level, log_format)

    import uvloop  # noqa: PLC0415 - only where a gateway runs

    uvloop.run(_serve(bootstrap, http))


async def _serve(bootstrap: str, settings: GatewaySettings) -> None:
    from ..gateway.server import GatewayServer  # noqa: PLC0415 - as above
    from ..server.signals import stop_on_signals  # noqa: PLC0415

    stop = stop_on_signals()
    async with GatewayServer(bootstrap, settings=settings) as server:
        typer.echo(f"http on {server.url}")
        await stop.wait()
