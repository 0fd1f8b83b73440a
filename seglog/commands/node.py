"""`seglog node`: the log as a program that reads messages from standard input and answers them."""

from __future__ import annotations

import os
import select
import signal
import tempfile
from contextlib import ExitStack, closing
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ..server.logs import LogFormat, LogLevel, configure_logs
from .running import LogFormatOption, LogLevelOption

if TYPE_CHECKING:
    from ..server.node.node import Node

_INPUT: Final = 0
_OUTPUT: Final = 1
_READ_BYTES: Final = 1 << 20  # what comes in one read may be made durable together


def node(
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Folder for all data. Without it, nothing is kept after the end.",
            show_default=False,
        ),
    ] = None,
    log_level: LogLevelOption = LogLevel.warning,
    log_format: LogFormatOption = LogFormat.auto,
) -> None:
    """Answer JSON messages, one a line: standard input to standard output.

    It ends at the end of its input, and at SIGTERM or SIGINT (Ctrl-C).

    docs/node.md lists the messages.
    """
    from ..server.node.logs import NodeLogs  # noqa: PLC0415 - other commands need no node
    from ..server.node.node import Node  # noqa: PLC0415
    from ..server.storage.filesystem import FileSystem  # noqa: PLC0415

    configure_logs(log_level, log_format)
    with ExitStack() as stack:
        stopped = _stop_on_signals()
        if data is None:
            data = stack.enter_context(tempfile.TemporaryDirectory(prefix="seglog-node-"))
        logs = stack.enter_context(closing(NodeLogs(FileSystem(), data)))
        try:
            _run(Node(logs), stopped)
        except BrokenPipeError:
            pass  # nobody reads the replies any more: an end like the end of the input


def _stop_on_signals() -> int:
    """A descriptor that can be read once a signal has come; a second signal exits at once.

    A signal only leaves a mark: whatever is being written then is finished and answered first.
    """
    stopped, mark = os.pipe()
    signals = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            os._exit(1)
        os.write(mark, b"x")

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return stopped


def _run(node: Node, stopped: int) -> None:
    from ..server.node.lines import LineSplitter  # noqa: PLC0415 - as above

    lines = LineSplitter()
    while stopped not in select.select([_INPUT, stopped], [], [])[0]:
        data = os.read(_INPUT, _READ_BYTES)
        if not data:
            _write(node.answer(lines.finish()))
            return
        _write(node.answer(lines.feed(data)))


def _write(replies: bytes) -> None:
    rest = memoryview(replies)
    while rest:
        rest = rest[os.write(_OUTPUT, rest) :]
