"""Measure Seglog: `scripts/bench --help` lists what can be measured.

Every file `scripts/bench_NAME.py` is one command: its function `main` has the options, its first
line tells what it measures.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import typer

FOLDER = Path(__file__).resolve().parent

app = typer.Typer(
    help="Measure Seglog, against a baseline of the same run.",
    add_completion=False,
    no_args_is_help=True,
)


@app.callback()
def choose() -> None:
    """Measure Seglog, against a baseline of the same run."""


def add_commands() -> None:
    sys.path.insert(0, str(FOLDER.parent))  # so that the files find each other as scripts.NAME
    for path in sorted(FOLDER.glob("bench_*.py")):
        module = importlib.import_module(f"scripts.{path.stem}")
        summary = (module.__doc__ or "").splitlines()[0]
        app.command(path.stem.removeprefix("bench_"), help=summary)(module.main)


if __name__ == "__main__":
    add_commands()
    app()
