"""`seglog serve`: run a broker until SIGTERM or SIGINT."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ..gateway.settings import NO_PORT
from ..protocol.errors import SeglogError
from ..server.logs import LogFormat, LogLevel, configure_logs
from .common import check_http_extra
from .running import ConfigFile, LogFormatOption, LogLevelOption, load_given

if TYPE_CHECKING:
    from ..serve_config import ServeConfig
    from ..server.app import Broker
    from ..server.config import BrokerConfig

_LISTEN_ADVICE: Final = {
    errno.EADDRINUSE: "Stop what listens there, or choose another --port (0 takes a free one)",
    errno.EADDRNOTAVAIL: "Give an address of this machine as --host (0.0.0.0 for all of them)",
    errno.EACCES: "Ports below 1024 need a privilege: choose another --port",
}
_FOLDER_ADVICE: Final = {
    errno.EACCES: "Let this user write there, or choose another folder with --data",
    errno.EEXIST: "There is a file in the way: choose another folder with --data",
    errno.ENOTDIR: "There is a file in the way: choose another folder with --data",
    errno.EROFS: "Choose a folder on a file system that can be written, with --data",
}


def serve(
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder for all data.", show_default=False)
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Listen here.", show_default=False)
    ] = None,
    port: Annotated[
        str | None,
        typer.Option(metavar="PORT", help="Listen here; 0 takes a free one.", show_default=False),
    ] = None,
    http_port: Annotated[
        str | None,
        typer.Option(
            metavar="PORT",
            help="Run the HTTP gateway here too; 0 takes a free port.",
            show_default=False,
        ),
    ] = None,
    http_host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="The gateway listens here.", show_default=False),
    ] = None,
    config: ConfigFile = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting. May be repeated."),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the settings, explained, and exit.")
    ] = False,
    log_level: LogLevelOption = LogLevel.info,
    log_format: LogFormatOption = LogFormat.auto,
) -> None:
    """Run a broker until SIGTERM or SIGINT (Ctrl-C).

    Settings: defaults, then --config, then variables, then flags; the later wins.

    SEGLOG_MAX_CONNECTIONS is the variable of max.connections, and so on for all.

    Once clients can connect, standard output says: listening on ADDRESS:PORT

    And with a gateway, on a second line: http on http://ADDRESS:PORT
    """
    named = {
        "--data": ("data", data),
        "--host": ("host", host),
        "--port": ("port", port),
        "--http-port": ("http.port", http_port),
        "--http-host": ("http.host", http_host),
    }
    broker_config = load_given(config, named, settings)
    if print_config:
        from ..server import settings as sources  # noqa: PLC0415 - other commands need no broker

        typer.echo(sources.print_config(broker_config), nl=False)
        return
    configure_logs(log_level, log_format)
    _run(broker_config)


def _run(config: ServeConfig) -> None:
    import uvloop  # noqa: PLC0415 - as above

    from ..server.app import serve  # noqa: PLC0415

    urls: list[str] = []
    beside = _gateway_of(config, urls)

    def announce(broker: Broker) -> None:
        host = f"[{config.host}]" if ":" in config.host else config.host
        typer.echo(f"listening on {host}:{broker.port}")
        for url in urls:
            typer.echo(f"http on {url}")

    try:
        uvloop.run(serve(config, announce, beside))
    except SeglogError as error:
        told = _told(error, config)
        if told is None:
            raise
        raise SeglogError(told) from error


def _gateway_of(
    config: ServeConfig, urls: list[str]
) -> Callable[[Broker], AbstractAsyncContextManager[object]]:
    """What runs beside the broker: the gateway, which adds its address to `urls`, or nothing."""
    if config.http.port == NO_PORT:
        return nullcontext
    check_http_extra("--http-port")
    # Not where there is no gateway, and not while the broker serves: it takes a while to load.
    from ..gateway.server import GatewayServer  # noqa: PLC0415
    from ..prometheus import exposition  # noqa: PLC0415

    @asynccontextmanager
    async def gateway(broker: Broker) -> AsyncIterator[None]:
        async with GatewayServer(
            _reached_at(config, broker),
            settings=config.http,
            metrics=lambda: exposition(broker),
        ) as server:
            urls.append(server.url)
            yield

    return gateway


def _reached_at(config: ServeConfig, broker: Broker) -> str:
    """The address by which this process reaches its own broker."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
    return f"[{host}]:{broker.port}" if ":" in host else f"{host}:{broker.port}"


def _told(error: SeglogError, config: BrokerConfig) -> str | None:
    """What to tell where the system refused something that a flag can change; None elsewhere."""
    cause = error.__cause__
    if isinstance(cause, socket.gaierror):
        return f"{error.what}. Give an address of this machine as --host"
    if not isinstance(cause, OSError) or cause.errno is None:
        return None
    if cause.filename is not None:
        advice = _FOLDER_ADVICE.get(cause.errno)
        return f"{error.what}. {advice}" if advice else None
    advice = _LISTEN_ADVICE.get(cause.errno)
    reason = os.strerror(cause.errno)
    return f"cannot listen on {config.host}:{config.port}: {reason}. {advice}" if advice else None
