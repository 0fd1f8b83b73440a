"""How the broker's log looks: a line to read on a terminal, a JSON object a line anywhere else.

    07:14:00.123 WARNING seglog.server.storage.recovery: cut a torn tail  path=… bytes=4096
    {"time": "2025-11-18T07:14:00.123Z", "level": "warning", "logger": "…", "message": "…", …}

Fields come from `extra=`, as in any program that uses `logging`. What clients send may end up in a
message, so control characters are written as escapes: nobody can forge a line or move a cursor.
INFO is for what an operator wants to know of; nothing is logged for each request above DEBUG.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
from enum import StrEnum
from typing import Any, Final, TextIO


class LogLevel(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class LogFormat(StrEnum):
    auto = "auto"  # text on a terminal, else JSON
    text = "text"
    json = "json"


#: What every record carries by itself; anything else came from `extra=`.
_OWN_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",  # since Python 3.12
}
_ESCAPED_CONTROLS: Final = {
    code: repr(chr(code))[1:-1] for code in [*range(32), *range(127, 160), 0x2028, 0x2029]
}

_RESET: Final = "\x1b[0m"
_DIM: Final = "\x1b[2m"
_COLOURS: Final = {
    logging.DEBUG: _DIM,
    logging.INFO: "\x1b[32m",
    logging.WARNING: "\x1b[33m",
    logging.ERROR: "\x1b[31m",
    logging.CRITICAL: "\x1b[1;31m",
}


def configure_logs(
    level: LogLevel | str = LogLevel.info,
    form: LogFormat | str = LogFormat.auto,
    stream: TextIO | None = None,
) -> None:
    """Send all logs to `stream` (standard error). Calling again replaces the former choice."""
    stream = stream if stream is not None else sys.stderr
    on_terminal = stream.isatty()
    formatter: logging.Formatter
    if form == LogFormat.json or (form == LogFormat.auto and not on_terminal):
        formatter = JsonFormatter()
    else:
        formatter = TextFormatter(colour=on_terminal and not os.environ.get("NO_COLOR"))
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    number = logging.getLevelNamesMapping()[level.upper()]
    # Other libraries' details are not ours: from them, warnings and worse.
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)
    logging.getLogger("seglog").setLevel(number)
    logging.captureWarnings(True)


def extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _OWN_ATTRIBUTES}


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in ASCII, so that no locale and no reader can break it."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in extra_fields(record).items():
            # JSON knows no infinity; a name that is taken above keeps its meaning.
            plain = str(value) if isinstance(value, float) and not math.isfinite(value) else value
            fields.setdefault(name, plain)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = record.stack_info
        return json.dumps(fields, default=str)


class TextFormatter(logging.Formatter):
    """One line to read, with local time; a traceback follows on lines of its own."""

    def __init__(self, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = self._painted(f"{record.levelname:<7}", _COLOURS.get(record.levelno, ""))
        when = self._painted(f"{clock}.{int(record.msecs):03}", _DIM)
        source = self._painted(f"{record.name}:", _DIM)
        fields = "".join(f" {name}={_quoted(v)}" for name, v in extra_fields(record).items())
        message = record.getMessage().translate(_ESCAPED_CONTROLS)
        line = f"{when} {level} {source} {message}{' ' + fields if fields else ''}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        if record.stack_info:
            line += "\n" + self.formatStack(record.stack_info)
        return line

    def _painted(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_RESET}" if self._colour and colour else text


def _quoted(value: object) -> str:
    text = str(value).translate(_ESCAPED_CONTROLS)
    return f'"{text}"' if " " in text or not text else text
