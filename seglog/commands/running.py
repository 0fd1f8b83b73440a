"""What the commands that run a broker, a gateway or a node share: their settings and their log.

The flags of settings are text even where they are numbers, so that every source of a setting is
checked, and a mistake told, in the same way (server/settings.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..server.logs import LogFormat, LogLevel

if TYPE_CHECKING:
    from ..serve_config import ServeConfig

ConfigFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", envvar="SEGLOG_CONFIG", help="Settings, as TOML."),
]
LogLevelOption = Annotated[LogLevel, typer.Option(envvar="SEGLOG_LOG_LEVEL")]
LogFormatOption = Annotated[
    LogFormat,
    typer.Option(
        envvar="SEGLOG_LOG_FORMAT", help="auto: text on a terminal, JSON lines elsewhere."
    ),
]


def load_given(
    config: Path | None, named: Mapping[str, tuple[str, str | None]], settings: Sequence[str] | None
) -> ServeConfig:
    """Of the file, the variables and the flags. `named`: by flag, the key and what was given for
    it; `settings`: those of --set."""
    from ..serve_config import ServeConfig  # noqa: PLC0415 - other commands need no settings
    from ..server import settings as sources  # noqa: PLC0415

    flags = [sources.flag(name, key, v) for name, (key, v) in named.items() if v is not None]
    flags += [sources.set_flag(text) for text in settings or ()]
    return sources.load_settings(config, os.environ, flags, ServeConfig)
