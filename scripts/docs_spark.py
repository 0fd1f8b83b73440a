"""The parts of docs/spark.md that are made from the code: the options, and the pipeline."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from textwrap import dedent
from typing import Any

from scripts.pipeline import count_clicks
from seglog.spark_connector.options import Option
from seglog.spark_connector.read_options import READ_OPTIONS
from seglog.spark_connector.write_options import WRITE_OPTIONS


def _table(rows: Iterable[Option[Any]]) -> str:
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for row in rows:
        names = ", ".join(f"`{name}`" for name in (row.name, *row.aliases))
        default = "" if row.default is None else f"`{row.default}`"
        lines.append(f"| {names} | {default} | {row.meaning} |".replace("||", "\\|\\|"))
    return "\n".join(lines)


def pipeline() -> str:
    """The body of the function, without what only a script needs."""
    lines = inspect.getsource(count_clicks).splitlines()
    body = dedent("\n".join(lines[2:])).replace(
        "  # noqa: PLC0415 - only who runs it needs Spark", ""
    )
    return f"```python\n{body.replace('return (', 'query = (', 1)}\n```"


GENERATED: dict[str, Callable[[], str]] = {
    "spark-read-options": lambda: _table(READ_OPTIONS),
    "spark-write-options": lambda: _table(WRITE_OPTIONS),
    "spark-pipeline": pipeline,
}
