"""The command `seglog`: its commands, and how a mistake is told.

A mistake is one line on standard error that says what to do next; the traceback comes only with
`--debug`. What each exit code means is in commands/exit_codes.py.

A command raises `SeglogError`, or lets an `OSError` pass: `main` tells it. To add commands, write
`seglog/commands/NAME.py` and name it below.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Annotated, Final, TextIO

import typer

from . import __version__
from .commands import consume, gateway, groups, node, produce, records, segments, serve, topics
from .commands.common import DEFAULT_BOOTSTRAP, Output
from .commands.exit_codes import (
    EXIT_FAILURE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_TERMINATED,
    EXIT_USAGE,
    advised,
    exit_code,
)
from .commands.interrupts import Terminated
from .protocol.errors import SeglogError

_SYSTEM_ADVICE: Final = {
    errno.EACCES: "Let this user read and write it, or run as a user who may",
    errno.EPERM: "Let this user read and write it, or run as a user who may",
    errno.EISDIR: "It is a folder: name a file",
    errno.ENOTDIR: "Part of that path is a file: check it",
    errno.ENOENT: "Check the path",
    errno.ENOSPC: "Free some space first",
    errno.EMFILE: "Raise the limit of open files (ulimit -n)",
}
_STANDARD_OUTPUT: Final = 1

app = typer.Typer(
    name="seglog",
    help="A durable, partitioned, append-only log for Python and Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(serve.serve)
app.command()(gateway.gateway)
app.command()(node.node)
app.add_typer(topics.topics)
app.command()(produce.produce)
app.command()(consume.consume)
app.add_typer(groups.groups)
app.add_typer(records.records)
app.command()(segments.segments)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"seglog {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show the traceback of an error. May stand anywhere."),
    ] = False,
    bootstrap: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            envvar="SEGLOG_BOOTSTRAP",
            help="The broker, for all commands that use one. May also stand behind the command.",
        ),
    ] = DEFAULT_BOOTSTRAP,
    output: Annotated[
        Output,
        typer.Option(
            help="How commands show what they find. May also stand behind the command.",
        ),
    ] = Output.table,
) -> None:
    """A durable, partitioned, append-only log for Python and Spark."""


def main() -> None:
    """Run the command line of this process, and exit."""
    sys.stdout = written_whole(sys.stdout)
    sys.stderr = written_whole(sys.stderr)
    sys.exit(run(sys.argv[1:]))


def written_whole(stream: TextIO) -> TextIO:
    """The same with a buffer, if it has none: as Python starts us where PYTHONUNBUFFERED is set.

    The system may take only part of a write, which a signal cuts short; a buffer writes the rest
    then, and a stream without one drops it, in the middle of a line or of a character.
    """
    raw = getattr(stream, "buffer", None)  # the stream is None where it was closed by who began us
    if not isinstance(raw, io.RawIOBase):
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(raw), stream.encoding, stream.errors, line_buffering=True
    )


def run(arguments: list[str]) -> int:
    """Run one command line; returns its exit code."""
    options_end = arguments.index("--") if "--" in arguments else len(arguments)
    debug = "--debug" in arguments[:options_end]
    if debug:
        arguments = ["--debug", *(word for word in arguments if word != "--debug")]
    try:
        # typer.Exit comes back as its code; whatever a command returns is not one.
        code = app(arguments, prog_name="seglog", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except Terminated:
        return EXIT_TERMINATED
    except SystemExit as error:
        # Nobody reads our output any more: an end like any other, for which typer exits with 1.
        if isinstance(error.__context__, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), _STANDARD_OUTPUT)  # for what is buffered
            return EXIT_OK
        raise
    except Exception as error:
        if debug:
            import traceback  # noqa: PLC0415 - only here

            traceback.print_exc()
        message, code = explain(error)
        if message:
            typer.echo(f"seglog: {' '.join(message.split())}", err=True)
        return code
    return code if isinstance(code, int) else EXIT_OK


def explain(error: Exception) -> tuple[str, int]:
    """What to tell of an error, in one line (or nothing, if it was told), and the exit code."""
    if isinstance(error, SeglogError):
        return advised(error), exit_code(error)
    # typer's own errors have had several base classes over its versions, and this method in all.
    format_message = getattr(error, "format_message", None)
    if format_message is not None:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "seglog"
        message = format_message().strip()  # empty where the help has been shown already
        stop = "" if message.endswith((".", "?", "!")) else "."
        return f"{message}{stop} Try: {command} --help" if message else "", EXIT_USAGE
    if isinstance(error, OSError) and error.errno in _SYSTEM_ADVICE:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}. {_SYSTEM_ADVICE[error.errno]}", EXIT_FAILURE
    return f"{type(error).__name__}: {error}. Run again with --debug for the details", EXIT_FAILURE


if __name__ == "__main__":
    main()
