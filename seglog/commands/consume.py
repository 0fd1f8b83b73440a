"""`seglog consume`: the records of a topic, as text or as JSON, a line each.

places         where to begin and to end
reading        batch after batch, until there
selection      which of its records
record_lines   as lines
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from ..places import Last
from ..protocol.errors import OffsetOutOfRange
from .common import Bootstrap, Output, on_terminal, open_admin, output_format, say
from .completion import complete_group, complete_topic
from .interrupts import Interrupts
from .places import find_ends, find_log_ends, find_starts, parse_place
from .progress import Progress
from .reading import Reading, SharedReading, Wanted
from .record_lines import json_lines, text_lines
from .selection import parse_filter


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topic)],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="earliest|latest|OFFSET|-N|TIME",
            help="Where to begin. latest, or earliest with --exit-at-end or --to. -N: the last N "
            "of each partition.",
            show_default=False,
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="OFFSET|TIME|latest",
            help="Stop before this, in each partition. latest: what is there now.",
            show_default=False,
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Only this one. May be repeated.", show_default=False),
    ] = None,
    max_records: Annotated[
        int | None, typer.Option("--max", min=1, help="Stop after so many records.")
    ] = None,
    exit_at_end: Annotated[
        bool,
        typer.Option(
            "--exit-at-end/--follow", help="Stop at what was there at the start, or wait for more."
        ),
    ] = False,
    text_format: Annotated[
        str, typer.Option("--format", metavar="TEXT", help="What to write of a record; see above.")
    ] = "%v",
    output: Annotated[
        Output,
        typer.Option(
            help="table: as --format says. json: an object a line.", callback=output_format
        ),
    ] = Output.table,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Share the topic with the others of this group and go on where it stopped; --from "
            "counts where it has not read yet. What was written out is committed.",
            show_default=False,
            autocompletion=complete_group,
        ),
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="key=…|header:NAME[=…]|text=…",
            help="Only records with this key, this header, or this text in the value. May be "
            "repeated; then all must hold.",
            show_default=False,
        ),
    ] = None,
    bootstrap: Bootstrap = "",
) -> None:
    r"""Print the records of a topic, a line each.

    --format: %k key, %v value, %o offset, %p partition, %t time in milliseconds, %T time as ISO
    8601, %h headers, %% a percent sign; \t a tab, \n a new line. A line ends with a new line.

    TIME is ISO 8601 (UTC if it names no zone) or milliseconds since 1970. A whole number is an
    offset; from 10^12 on it is milliseconds.

    JSON: topic, partition, offset, timestamp, key, value, headers (pairs). Bytes that are not UTF-8
    are base64, and a field says so: "value_encoding": "base64".

    On a terminal control characters are shown as \x1b and the like.
    """
    first = None if start is None else parse_place(start, "--from")
    last = None if end is None else parse_place(end, "--to")
    if last == "earliest" or isinstance(last, Last):
        raise typer.BadParameter(f"{end!r} cannot be an end", param_hint="--to")
    if group is not None and (partition or last is not None):
        raise typer.BadParameter(
            "the group decides what is read: leave out --partition and --to", param_hint="--group"
        )
    in_text = text_lines(text_format, safe=on_terminal())
    write = json_lines if output is Output.json else in_text
    tests = [parse_filter(text) for text in filters or ()]
    if first is None:
        first = "earliest" if exit_at_end or last is not None else "latest"
    with open_admin(bootstrap) as admin:
        log_ends = find_log_ends(admin, topic, partition)
        starts = find_starts(admin, topic, first, log_ends)
        ends = find_ends(admin, topic, last, exit_at_end, log_ends)
    if start is None and first == "latest" and group is None and _is_watched():
        say("waiting for new records; --from earliest shows those that are there; Ctrl-C ends")
    wanted = Wanted(write, tests, ends, max_records)
    numbers = list(log_ends) if partition else None
    with Interrupts() as interrupts:
        _read(bootstrap, topic, numbers, group, starts, wanted, interrupts)


def _is_watched() -> bool:
    return on_terminal() and sys.stderr.isatty()


def _read(
    bootstrap: str,
    topic: str,
    partitions: list[int] | None,
    group: str | None,
    starts: dict[int, int],
    wanted: Wanted,
    interrupts: Interrupts,
) -> None:
    from ..client.blocking import SyncConsumer  # noqa: PLC0415 - other commands need no client

    options: dict[str, Any] = {"bootstrap": bootstrap, "client_name": "seglog-cli"}
    if partitions is not None:
        options["assign"] = [(topic, number) for number in partitions]
    else:
        options["topics"] = topic  # also those that are added meanwhile
    total = None
    if wanted.ends is not None and group is None:
        total = sum(max(0, end - starts[number]) for number, end in wanted.ends.items())
    # Where the records themselves are on the terminal, they show how far it is.
    is_shown = sys.stderr.isatty() and not on_terminal() and wanted.ends is not None
    begin = {(topic, number): offset for number, offset in starts.items()}
    with interrupts.allowed():
        opened = SyncConsumer(start=begin, group=group, **options)
    with (
        opened as consumer,
        Progress(f"reading {topic}", "records", total, is_shown=is_shown) as progress,
    ):
        reading: Reading
        if group is None:
            reading = Reading(consumer, topic, wanted, starts)
        else:
            reading = SharedReading(consumer, topic, wanted)
        try:
            reading.run(interrupts, progress)
        except OffsetOutOfRange as error:
            if group is not None:
                again = f"seglog groups reset {group} --topic {topic} --to earliest --execute"
                error.what += f". To go on at what is left: {again}"
            raise
