"""Shows Seglog at work, in a temporary folder, in a few seconds: the log engine, then a broker.

Both halves crash something for real. Whatever was acknowledged must be there afterwards, once.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import uvloop
from rich.console import Console

import seglog
from scripts import quickstart_broker, quickstart_log
from scripts.checks import show


def main() -> None:
    if len(sys.argv) > 1:
        raise SystemExit("usage: quickstart (it takes no arguments)")
    console = Console()
    console.print(f"Seglog {seglog.__version__}: a durable, append-only log.")
    with tempfile.TemporaryDirectory(prefix="seglog-quickstart-") as folder:
        checks = quickstart_log.tour(console, Path(folder) / "log")
        checks += uvloop.run(quickstart_broker.tour(console, Path(folder) / "broker"))
    console.print()
    if not show(console, checks):
        raise SystemExit(1)
    console.print(
        "\nNext: `seglog serve` runs a broker; README.md has a producer and a consumer for it."
    )


if __name__ == "__main__":
    main()
