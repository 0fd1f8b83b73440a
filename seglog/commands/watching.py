"""`--watch`: look again and again, at what a terminal then shows in place; elsewhere every round is
written, with its time in front, and `--count` bounds the rounds.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, NamedTuple

import typer

from .common import Output, Table, drawn, on_terminal, show_json, show_tables, time_text
from .interrupts import Interrupts
from .reading import check_output

MIN_EVERY_S: Final = 0.1
MAX_EVERY_S: Final = 86_400.0
_LOOK_S: Final = 1.0

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")]
Every = Annotated[
    float,
    typer.Option(
        "--every", metavar="SECONDS", min=MIN_EVERY_S, max=MAX_EVERY_S, help="How often to look."
    ),
]
Count = Annotated[
    int | None, typer.Option("--count", min=1, help="Stop after so many looks; implies --watch.")
]


class Round(NamedTuple):
    """What was found in one look, to show in either form."""

    tables: list[Table]
    as_json: Any


def watch_rounds(
    look: Callable[[], Round],
    *,
    watch: bool,
    every_s: float,
    count: int | None,
    output: Output,
) -> None:
    """Once, or with `watch` again and again."""
    if not watch and count is None:
        _show(look(), output)
        return
    with Interrupts() as interrupts:  # between rounds: what is drawn is drawn whole
        rounds = _rounds(look, every_s, count, interrupts)
        if on_terminal() and output is Output.table:
            _watch_live(rounds)
        else:
            for found in rounds:
                _show(found, output, time_text(time.time_ns() // 1000))


def _show(found: Round, output: Output, time_text: str = "") -> None:
    if output is Output.table:
        show_tables(found.tables, first_cell=time_text)
    elif time_text:
        show_json({"time": time_text, "found": found.as_json})
    else:
        show_json(found.as_json)


def _rounds(
    look: Callable[[], Round], every_s: float, count: int | None, interrupts: Interrupts
) -> Iterator[Round]:
    for number in itertools.count(1):
        with interrupts.allowed():
            found = look()
        yield found
        if number == count:
            return
        with interrupts.allowed():
            _wait(every_s)


def _wait(seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(left_s, _LOOK_S))
        check_output()


def _watch_live(rounds: Iterator[Round]) -> None:
    from rich.live import Live  # noqa: PLC0415 - only here

    with Live(auto_refresh=False) as live:
        for found in rounds:
            live.update(drawn(found.tables), refresh=True)
