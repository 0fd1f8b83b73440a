"""`seglog segments`: the files that hold a topic: listed, dumped, checked, repaired."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ..protocol.constants import CODECS, NO_PRODUCER_ID
from .common import (
    Bootstrap,
    Output,
    OutputOption,
    counted,
    iso_time,
    on_terminal,
    reach,
    say,
    show,
    show_json,
    show_rows,
)

if TYPE_CHECKING:
    from ..protocol.header import BatchHeader
    from .segment_files import PartitionFolder, SegmentFile

_COLUMNS: Final = ["partition", "file", "start", "end", "bytes", "sealed"]
_DUMPED: Final = [
    ("partition", 16), ("file", 14), ("position", 10), ("offset", 10), ("next", 10), ("records", 8),
    ("bytes", 9), ("codec", 6), ("first time", 27), ("last time", 27), ("append time", 27),
    ("producer", 9), ("epoch", 6), ("sequence", 9),
]  # fmt: skip
_CODEC_NAMES: Final = {number: name for name, number in CODECS.items()}


def segments(
    place: Annotated[
        str,
        typer.Argument(
            metavar="PATH|TOPIC",
            help="A data folder, or a topic's or partition's folder in it; where there is no such "
            "folder, a topic of a broker.",
        ),
    ],
    dump: Annotated[bool, typer.Option("--dump", help="Show the header of every batch.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every checksum; exit code 1 on damage.")
    ] = False,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Rebuild indexes and cut a torn tail. No broker may run."),
    ] = False,
    output: OutputOption = Output.table,
    bootstrap: Bootstrap = "",
) -> None:
    """List the segments of a topic: file, first offset, end, bytes, whether it is sealed.

    --dump, --verify and --repair work on files, so they need a PATH on this machine. All but
    --repair only read: a broker may be running.

    --repair opens the logs as a broker does when it starts, and says what that did.
    """
    if dump + verify + repair > 1:
        raise typer.BadParameter("one at a time", param_hint="--dump, --verify, --repair")
    path = Path(place)
    if not path.exists() and os.sep not in place:
        if dump or verify or repair:
            raise typer.BadParameter(
                f"there is no folder {place}; give the topic's folder, as DATA/topic-{place}",
                param_hint="PATH",
            )
        _list_of_broker(place, output, bootstrap)
        return
    from . import segment_files as files  # noqa: PLC0415 - other commands need no storage

    folders = files.find_partitions(path)
    if dump:
        _dump(folders, output)
    elif verify:
        _verify(folders, output)
    elif repair:
        _repair(path, folders, output)
    else:
        _list([row for folder in folders for row in files.list_segments(folder)], output)


def _list(rows: list[SegmentFile], output: Output) -> None:
    if output is Output.json:
        show_json([row._asdict() for row in rows])
    else:
        show_rows(_COLUMNS, rows)


def _list_of_broker(topic: str, output: Output, bootstrap: str) -> None:
    from ..client.blocking import SyncAdmin  # noqa: PLC0415 - files need no client
    from .segment_files import SegmentFile  # noqa: PLC0415

    with SyncAdmin(reach(bootstrap), client_name="seglog-cli") as admin:
        found = admin.describe_topic(topic)
    rows = [
        SegmentFile(
            f"{topic}/{p.partition}",
            s.file,
            s.start_offset,
            s.end_offset,
            s.size_bytes,
            s.is_sealed,
        )
        for p in found.partitions
        for s in p.segments
    ]
    _list(rows, output)
    for p in found.partitions:
        if p.error is not None:
            say(f"{topic}/{p.partition}: {p.error.message}")


# --- dump ----------------------------------------------------------------------------------------


def _dump(folders: list[PartitionFolder], output: Output) -> None:
    """Row by row, since there may be millions."""
    from ..server.storage.filesystem import FileSystem  # noqa: PLC0415 - as above
    from ..server.storage.names import LOG, file_name  # noqa: PLC0415
    from .segment_files import Batch, segment_bases, walk  # noqa: PLC0415

    if on_terminal() and output is Output.table:
        show("".join(name.ljust(width + 1) for name, width in _DUMPED).rstrip() + "\n")
    for folder in folders:
        for base in segment_bases(folder):
            name = file_name(base, LOG)
            for found in walk(FileSystem(), str(folder.path / name), base, check=False):
                if isinstance(found, Batch):
                    _dump_batch(folder.name, name, found.position, found.header, output)
                else:
                    say(f"{folder.path / name}, byte {found.position}: {found.what}")


def _dump_batch(
    partition: str, file: str, position: int, header: BatchHeader, output: Output
) -> None:
    has_producer = header.producer_id != NO_PRODUCER_ID
    if output is Output.json:
        import msgspec  # noqa: PLC0415 - only here

        fields = {"partition": partition, "file": file, "position": position, **header._asdict()}
        fields["codec"] = _CODEC_NAMES.get(header.codec, str(header.codec))
        show(msgspec.json.encode(fields).decode() + "\n")
        return
    cells = [
        partition,
        file,
        position,
        header.base_offset,
        header.next_offset,
        header.record_count,
        header.length,
        _CODEC_NAMES.get(header.codec, header.codec),
        iso_time(header.first_timestamp_us),
        iso_time(header.max_timestamp_us),
        iso_time(header.append_time_us),
        header.producer_id if has_producer else "-",
        header.producer_epoch if has_producer else "-",
        header.base_sequence if has_producer else "-",
    ]
    if on_terminal():
        widths = [width for _, width in _DUMPED]
        line = "".join(f"{cell!s:<{width}} " for cell, width in zip(cells, widths, strict=True))
        show(line.rstrip() + "\n")
    else:
        show("\t".join(map(str, cells)) + "\n")


# --- verify and repair ---------------------------------------------------------------------------


def _verify(folders: list[PartitionFolder], output: Output) -> None:
    from .segment_files import verify  # noqa: PLC0415 - as above

    checked = [verify(folder) for folder in folders]
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
        raise typer.Exit(1)


def _repair(path: Path, folders: list[PartitionFolder], output: Output) -> None:
    from .segment_files import repair  # noqa: PLC0415 - as above

    done = list(repair(path, folders))
    if output is Output.json:
        show_json([each._asdict() for each in done])
    else:
        show_rows(["partition", "what was done"], [(d.partition or "-", d.what) for d in done])
        if not done:
            say(f"{counted(len(folders), 'partition')} opened and closed: nothing had to be done")
    if not all(each.is_done for each in done):
        raise typer.Exit(1)
