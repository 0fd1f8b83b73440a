"""What the commands share: where the broker is, how things are shown, how one is asked.

On a terminal rows are a table; in a pipe they are lines of fields with tabs between, no heading and
no colours, for `cut` and `awk`. `--output json` is the same in both.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from importlib.util import find_spec
from typing import Annotated, Any, Final

import msgspec
import typer

from ..protocol.errors import BadConfig, NoBroker, SeglogError

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:7400"
CONNECT_TIMEOUT_S: Final = 5.0
#: What the extra `http` installs, by the names of its modules.
HTTP_EXTRA: Final = ("fastapi", "prometheus_client", "uvicorn")
#: Of a whole number that stands for a place: from here on it is a time, in milliseconds (2001).
LEAST_EPOCH_MS: Final = 10**12

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Output(StrEnum):
    """How a command shows what it found."""

    table = "table"
    json = "json"


def _bootstrap(context: typer.Context, value: str) -> str:
    """The command's own flag, else what was given before the command, or by the variable."""
    return value or context.find_root().params.get("bootstrap") or DEFAULT_BOOTSTRAP


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT",
        help="A broker; several with commas. Or SEGLOG_BOOTSTRAP.",
        callback=_bootstrap,
        show_default=DEFAULT_BOOTSTRAP,
    ),
]
OutputOption = Annotated[Output, typer.Option("--output", help="How to show it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


# --- the broker ----------------------------------------------------------------------------------


def reach(bootstrap: str) -> str:
    """`bootstrap` itself, if a broker listens there. A client would go on trying for a while: right
    for a program, but who sits at a terminal wants to know at once."""
    from ..client.metadata import parse_bootstrap  # noqa: PLC0415 - not where nobody connects

    reasons = []
    for address in parse_bootstrap(bootstrap):
        try:
            socket.create_connection(address, timeout=CONNECT_TIMEOUT_S).close()
            return bootstrap
        except OSError as error:
            reasons.append(f"{address}: {error.strerror or error}")
    raise NoBroker(f"no broker answers at {'; '.join(reasons)}")


def topic_settings(texts: Iterable[str]) -> dict[str, str | int]:
    """`--config KEY=VALUE` of a topic; amounts may have units, as in a broker's settings."""
    from ..server.settings import Given, checked  # noqa: PLC0415 - only where settings are given
    from ..server.settings_table import settings_table  # noqa: PLC0415

    settings: dict[str, str | int] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise BadConfig(f"flag --config {text!r}: it must be KEY=VALUE")
        key = key.strip()
        if f"topic.{key}" in settings_table():
            settings[key] = checked(Given(f"topic.{key}", value, f"flag --config {key}"))
        else:
            settings[key] = value  # a newer broker may know it
    return settings


def check_http_extra(what: str) -> None:
    """Refuse, in one line, what needs libraries that were not installed."""
    missing = [name for name in HTTP_EXTRA if find_spec(name) is None]
    if missing:
        raise SeglogError(f"{what} needs {', '.join(missing)}: pip install 'seglog[http]'")


# --- showing -------------------------------------------------------------------------------------


def on_terminal() -> bool:
    return sys.stdout.isatty()


def show_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """A table on a terminal, lines with tabs elsewhere."""
    if on_terminal():
        from rich.console import Console  # noqa: PLC0415 - a pipe needs no rich
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table(title=title or None, title_justify="left")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(Text(_cell(cell)) for cell in row))
        Console().print(table)
    else:
        show("".join("\t".join(map(_cell, row)) + "\n" for row in rows))


def show_json(value: Any) -> None:
    """One value: indented where a person looks, one line elsewhere."""
    data = msgspec.json.encode(value)
    show((msgspec.json.format(data, indent=2) if on_terminal() else data).decode() + "\n")


def show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def say(text: str) -> None:
    """Something about what was done, out of the way of the output."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


# --- times ---------------------------------------------------------------------------------------


@lru_cache(maxsize=64)  # the records of a batch mostly share their time
def iso_time(time_us: int) -> str:
    """UTC, to the microsecond; plain milliseconds beyond the years 1 to 9999."""
    try:
        moment = _EPOCH + time_us * _MICROSECOND
    except OverflowError:
        return str(time_us // 1000)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def parse_time(text: str) -> int | None:
    """Microseconds, from ISO 8601 (UTC where no zone is given); None where it is not that."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MICROSECOND


# --- asking --------------------------------------------------------------------------------------


def confirm(question: str, yes: bool) -> None:
    """Go on, or raise Abort; where nobody can be asked, `--yes` must have been given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody can be asked here: add it to go on", param_hint="--yes")
    typer.confirm(question, abort=True, err=True)
