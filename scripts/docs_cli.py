"""The part of docs/cli.md that is made from the code: every command and flag, from typer's tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum
from inspect import cleandoc
from typing import Any, Final, get_args, get_type_hints

import typer

from seglog.cli import app

#: Flags of typer's own, which every command has or which only the shell calls.
_LEFT_OUT: Final = {"help", "install_completion", "show_completion"}


def cli_reference() -> str:
    return reference_of("seglog", app)


def reference_of(name: str, program: typer.Typer) -> str:
    """Every command and flag of a program that is called by this name."""
    return "\n\n".join(_command(name, typer.main.get_command(program)))


# The classes of typer's tree have had several homes over its versions: they are taken as they come.
def _command(path: str, command: Any) -> Iterator[str]:
    inner: dict[str, Any] = getattr(command, "commands", {})
    shown = [p for p in command.params if p.name not in _LEFT_OUT and not p.hidden]
    arguments = [p for p in shown if p.param_type_name == "argument"]
    words = [path, *map(_usage, arguments), *["COMMAND"] * bool(inner)]
    yield f"### {path}"
    yield f"    {' '.join(words)}"
    yield _described(command.help or "")
    if shown:
        hints = get_type_hints(command.callback) if command.callback else {}
        rows = ["| flag | meaning | default |", "|---|---|---|"]
        yield "\n".join(rows + [_row(p, hints.get(p.name, str)) for p in shown])
    for name, each in inner.items():
        yield from _command(f"{path} {name}", each)


def _usage(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]"


def _described(text: str) -> str:
    """Help as Markdown; what looks like markup there is meant as it stands."""
    plain = re.sub(r"\s*\[/?[\w ]+\]\s*", " ", cleandoc(text).replace("\f", ""))
    return re.sub(r"(?<![\w`-])(--[\w-]+|%\w|\\\w+)", r"`\1`", plain)


def _row(parameter: Any, hint: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{parameter.metavar or parameter.name.upper()}`"
    else:
        names = [*parameter.opts, *parameter.secondary_opts]
        value = "" if _is_flag(hint) else f" {parameter.metavar or _value(hint)}"
        name = ", ".join(f"`{each}{value}`" for each in names)
    return f"| {_cell(name)} | {_cell(_meaning(parameter))} | {_default(parameter)} |"


def _meaning(parameter: Any) -> str:
    meaning = parameter.help or ""
    variable = getattr(parameter, "envvar", None)
    return f"{meaning} Variable: `{variable}`." if variable else meaning


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    shown = parameter.show_default
    value = shown if isinstance(shown, str) else parameter.default
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        pair = parameter.secondary_opts
        return f"`{pair[0]}`" if pair and not value else ""
    return "" if value is None or value == "" else f"`{value}`"


def _is_flag(hint: Any) -> bool:
    return hint is bool


def _value(hint: Any) -> str:
    """`INT`, `TEXT`, or the words to choose from."""
    for kind in [hint, *get_args(hint), *(k for part in get_args(hint) for k in get_args(part))]:
        if isinstance(kind, type) and issubclass(kind, Enum):
            return "|".join(str(member.value) for member in kind)
        if kind is int or kind is float:
            return "N"
    return "TEXT"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


GENERATED: dict[str, Callable[[], str]] = {"cli-reference": cli_reference}
