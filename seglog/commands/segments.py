"""`seglog segments`: the files that hold a topic: listed, dumped, checked, repaired."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ..protocol.errors import UnknownPartition
from .common import (
    Bootstrap,
    Output,
    OutputOption,
    counted,
    open_admin,
    say,
    show_json,
    show_rows,
)
from .completion import complete_topic
from .exit_codes import EXIT_DAMAGE, EXIT_FAILURE
from .progress import Progress

if TYPE_CHECKING:
    from .segment_files import PartitionFolder, SegmentFile

_COLUMNS: Final = ["partition", "file", "start", "end", "bytes", "sealed"]


def segments(
    place: Annotated[
        str,
        typer.Argument(
            metavar="PATH|TOPIC",
            help="A data folder, or a topic's or partition's folder in it; where there is no such "
            "folder, a topic, or TOPIC/N.",
            autocompletion=complete_topic,
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="SEGLOG_DATA",
            help="The data folder that a TOPIC is in. Without it, a broker is asked.",
            show_default=False,
        ),
    ] = None,
    dump: Annotated[bool, typer.Option("--dump", help="Show the header of every batch.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every checksum; exit code 6 on damage.")
    ] = False,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Rebuild indexes and cut a torn tail. No broker may run."),
    ] = False,
    output: OutputOption = Output.table,
    bootstrap: Bootstrap = "",
) -> None:
    """List the segments of a topic: file, first offset, end, bytes, whether it is sealed.

    --dump, --verify and --repair work on files, so they need a PATH on this machine, or --data. All
    but --repair only read: a broker may be running.

    --repair opens the logs as a broker does when it starts, and says what that did.
    """
    if dump + verify + repair > 1:
        raise typer.BadParameter("one at a time", param_hint="--dump, --verify, --repair")
    path = _path(place, data)
    if path is None:
        if dump or verify or repair:
            raise typer.BadParameter(
                f"there is no folder {place}; of a topic, give its broker's data folder too",
                param_hint="--data",
            )
        _list_of_broker(place, output, bootstrap)
        return
    from . import segment_files as files  # noqa: PLC0415 - other commands need no storage

    folders = files.find_partitions(path)
    if dump:
        from .segment_dump import dump_batches  # noqa: PLC0415 - as above

        dump_batches(folders, output)
    elif verify:
        _verify(folders, output)
    elif repair:
        _repair(path, folders, output)
    else:
        _list([row for folder in folders for row in files.list_segments(folder)], output)


def _path(place: str, data: Path | None) -> Path | None:
    """The folder that is meant; None: a topic of a broker."""
    topic, number = _topic(place)
    if Path(place).exists():
        return Path(place)
    if data is not None:
        folder = data / f"topic-{topic}"
        return folder if number is None else folder / f"partition-{number}"
    return Path(place) if os.sep in topic else None


def _topic(place: str) -> tuple[str, int | None]:
    """TOPIC, or TOPIC/N as the list shows it."""
    topic, _, number = place.rpartition("/")
    if topic and number.isascii() and number.isdigit():
        return topic, int(number)
    return place, None


def _list(rows: list[SegmentFile], output: Output) -> None:
    if output is Output.json:
        show_json([row._asdict() for row in rows])
    else:
        show_rows(_COLUMNS, rows)


def _list_of_broker(place: str, output: Output, bootstrap: str) -> None:
    from .segment_files import SegmentFile  # noqa: PLC0415 - only for a broker's list

    with open_admin(bootstrap) as admin:
        topic, number = _topic(place)
        found = admin.describe_topic(topic)
    shown = [p for p in found.partitions if number in (None, p.partition)]
    if not shown:
        count = counted(len(found.partitions), "partition")
        raise UnknownPartition(f"{topic} has {count}, there is no {number}")
    rows = [
        SegmentFile(
            f"{topic}/{p.partition}",
            s.file,
            s.start_offset,
            s.end_offset,
            s.size_bytes,
            s.is_sealed,
        )
        for p in shown
        for s in p.segments
    ]
    _list(rows, output)
    for p in shown:
        if p.error is not None:
            say(f"{topic}/{p.partition}: {p.error.message}")


# --- verify and repair ---------------------------------------------------------------------------


def _verify(folders: list[PartitionFolder], output: Output) -> None:
    from .segment_check import verify  # noqa: PLC0415 - as above
    from .segment_files import size_bytes  # noqa: PLC0415

    with Progress("checking", "bytes", size_bytes(folders)) as progress:
        checked = [verify(folder, progress) for folder in folders]
    problems = [problem for each in checked for problem in each.problems]
    damages = [problem for problem in problems if problem.is_damage]
    if output is Output.json:
        show_json(
            {
                "is_sound": not damages,
                "partitions": [
                    {**each._asdict(), "problems": [p._asdict() for p in each.problems]}
                    for each in checked
                ],
            }
        )
    else:
        show_rows(
            ["partition", "segments", "batches", "bytes", "state"],
            [
                (each.partition, each.segments, each.batches, each.size_bytes,
                 "damaged" if any(p.is_damage for p in each.problems) else "sound")
                for each in checked
            ],
        )  # fmt: skip
        for problem in problems:
            say(f"{problem.file}, byte {problem.position}, offset {problem.offset}: {problem.what}")
    if damages:
        raise typer.Exit(EXIT_DAMAGE)


def _repair(path: Path, folders: list[PartitionFolder], output: Output) -> None:
    from .segment_repair import repair  # noqa: PLC0415 - as above

    with Progress("repairing", "partitions", len(folders)) as progress:
        done = list(repair(path, folders, progress))
    if output is Output.json:
        show_json([each._asdict() for each in done])
    else:
        show_rows(["partition", "what was done"], [(d.partition or "-", d.what) for d in done])
        if not done:
            say(f"{counted(len(folders), 'partition')} opened and closed: nothing had to be done")
    if not all(each.is_done for each in done):
        raise typer.Exit(EXIT_FAILURE)
