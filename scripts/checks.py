"""What the quickstart found, as one table at its end."""

from __future__ import annotations

from typing import NamedTuple

from rich.console import Console
from rich.table import Table


class Check(NamedTuple):
    """Something that was promised, and whether it was kept."""

    promise: str
    found: str
    is_kept: bool = True


def show(console: Console, checks: list[Check]) -> bool:
    """Print them; whether all were kept."""
    table = Table(title="What was promised, and what was found", title_justify="left")
    table.add_column("")
    table.add_column("", justify="right")
    table.add_column("")
    for check in checks:
        verdict = "[green]✓" if check.is_kept else "[red]✗ a defect: please report it"
        table.add_row(check.promise, check.found, verdict)
    console.print(table)
    return all(check.is_kept for check in checks)
