"""What the commands share: where the broker is, how things are shown, how one is asked.

On a terminal rows are a table; in a pipe they are lines of fields with tabs between, no heading and
no colours, for `cut` and `awk`. `--output json` is the same in both.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import msgspec
import typer

from ..protocol.errors import BadConfig, NoBroker, SeglogError
from ..protocol.times import iso_time
from .exit_codes import EXIT_FAILURE

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..client.blocking import SyncAdmin

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:7400"
CONNECT_TIMEOUT_S: Final = 5.0
#: What the extra `http` installs, by the names of its modules.
HTTP_EXTRA: Final = ("fastapi", "prometheus_client", "uvicorn")

_NUMBER: Final = re.compile(r"[-+]?[\d,.]+")


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


def output_format(context: typer.Context, value: Output) -> Output:
    """The command's own flag, else what was given before the command."""
    source = context.get_parameter_source("output")
    is_given = source is not None and source.name != "DEFAULT"
    before: Output | None = context.find_root().params.get("output")
    return value if is_given or before is None else before


OutputOption = Annotated[
    Output, typer.Option("--output", help="How to show it.", callback=output_format)
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


# --- the broker ----------------------------------------------------------------------------------


def open_admin(bootstrap: str) -> SyncAdmin:
    """An admin of the broker there; told at once where there is none."""
    from ..client.blocking import SyncAdmin  # noqa: PLC0415 - not where nobody connects

    return SyncAdmin(reach(bootstrap), client_name="seglog-cli")


def reach(bootstrap: str, timeout_s: float = CONNECT_TIMEOUT_S) -> str:
    """`bootstrap` itself, if a broker listens there. A client would go on trying for a while: right
    for a program, but who sits at a terminal wants to know at once."""
    from ..client.metadata import parse_bootstrap  # noqa: PLC0415 - not where nobody connects

    reasons = []
    for address in parse_bootstrap(bootstrap):
        try:
            socket.create_connection(address, timeout=timeout_s).close()
            _say_hello(*address, timeout_s)
            return bootstrap
        except OSError as error:
            reasons.append(f"{address}: {error.strerror or error}")
        except SeglogError as error:
            reasons.append(error.what)
    raise NoBroker(f"no broker answers: {'; '.join(reasons)}")


def _say_hello(host: str, port: int, timeout_s: float) -> None:
    """Raises where it is no broker that listens, or one that takes no more connections."""
    from ..client.connection import Connection  # noqa: PLC0415 - as above
    from ..client.loop_thread import LoopThread  # noqa: PLC0415

    async def hello() -> None:
        opened = await Connection.open(
            host, port, client_name="seglog-cli", connect_timeout_s=timeout_s
        )
        await opened.close()

    thread = LoopThread.share()
    try:
        thread.call(hello())
    finally:
        thread.release()


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


class Table(NamedTuple):
    """`title`: only where it is drawn."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""


def show_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """A table on a terminal, lines with tabs elsewhere."""
    show_tables([Table(columns, list(rows), title)])


def show_tables(tables: Iterable[Table], first_cell: str = "") -> None:
    """Several; `first_cell`, if given, begins every line that is not on a terminal."""
    if on_terminal():
        from rich.console import Console  # noqa: PLC0415 - a pipe needs no rich

        Console().print(drawn(tables))
    else:
        before = [first_cell] if first_cell else []
        lines = ["\t".join([*before, *map(_cell, row)]) for each in tables for row in each.rows]
        show("".join(line + "\n" for line in lines))


def drawn(tables: Iterable[Table]) -> RenderableType:
    """As they are drawn on a terminal. Columns without a name, which tell lines apart in a pipe,
    and those with nothing in them are left out."""
    from rich.console import Group  # noqa: PLC0415 - as above
    from rich.table import Table as Drawn  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    result = []
    for each in tables:
        shown = [
            place
            for place, name in enumerate(each.columns)
            if name and (not each.rows or any(row[place] != "" for row in each.rows))
        ]
        table = Drawn(title=each.title or None, title_justify="left")
        for place in shown:
            numeric = all(_NUMBER.fullmatch(_cell(row[place])) for row in each.rows)
            justify: Literal["right", "left"] = "right" if numeric else "left"
            table.add_column(each.columns[place], overflow="fold", justify=justify)
        for row in each.rows:
            table.add_row(*(Text(_cell(row[place])) for place in shown))
        result.append(table)
    return Group(*result)


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


@lru_cache(maxsize=64)
def time_text(time_us: int) -> str:
    """ISO 8601; plain milliseconds beyond the years 1 to 9999."""
    return iso_time(time_us) or str(time_us // 1000)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


# --- asking --------------------------------------------------------------------------------------


def confirm(question: str, yes: bool) -> None:
    """Go on, or end the command; where nobody can be asked, `--yes` must have been given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody can be asked here: add it to go on", param_hint="--yes")
    if not typer.confirm(question, err=True):
        say("nothing was changed")
        raise typer.Exit(EXIT_FAILURE)
