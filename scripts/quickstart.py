"""Shows Seglog at work, in a temporary folder: the log engine, a broker, then Spark.

The first two crash something for real. Whatever was acknowledged must be there afterwards, once.
Without a Java for Spark, which `scripts/quickstart` looks for, the last part is left out.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import uvloop
from rich.console import Console

import seglog
from scripts import quickstart_broker, quickstart_log, quickstart_spark
from scripts.checks import show


def main() -> None:
    if sys.argv[1:] not in ([], ["--without-spark"]):
        raise SystemExit("usage: quickstart [--without-spark]")
    console = Console()
    console.print(f"Seglog {seglog.__version__}: a durable, append-only log.")
    with tempfile.TemporaryDirectory(prefix="seglog-quickstart-") as folder:
        checks = quickstart_log.tour(console, Path(folder) / "log")
        checks += uvloop.run(quickstart_broker.tour(console, Path(folder) / "broker"))
        if len(sys.argv) == 1:
            checks += quickstart_spark.tour(console, Path(folder) / "spark")
    console.print()
    if not show(console, checks):
        raise SystemExit(1)
    console.print(
        "\nNext: `seglog serve` runs a broker; README.md has a producer and a consumer for it, "
        "docs/spark.md the pipeline."
    )


if __name__ == "__main__":
    main()
