"""`segments --dump`: the header of every batch, a line each.

There may be millions, so they are written as they are found, many at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

import msgspec

from ..protocol.constants import CODECS, NO_PRODUCER_ID
from ..protocol.header import BatchHeader
from ..server.storage.filesystem import FileSystem
from ..server.storage.names import LOG, file_name
from .common import Output, on_terminal, say, show, time_text
from .progress import Progress
from .segment_files import PartitionFolder, segment_bases, size_bytes
from .segment_walk import Batch, walk

_COLUMNS: Final = [
    ("partition", 16), ("file", 14), ("position", 10), ("offset", 10), ("next", 10), ("records", 8),
    ("bytes", 9), ("codec", 6), ("first time", 27), ("last time", 27), ("append time", 27),
    ("producer", 9), ("epoch", 6), ("sequence", 9),
]  # fmt: skip
_WIDTHS: Final = [width for _, width in _COLUMNS]
_CODEC_NAMES: Final = {number: name for name, number in CODECS.items()}
_LINES_AT_ONCE: Final = 1000


def dump_batches(folders: list[PartitionFolder], output: Output) -> None:
    if on_terminal() and output is Output.table:
        show(_aligned([name for name, _ in _COLUMNS]))
    # Where the lines themselves are on the terminal, they show how far it is.
    is_shown = sys.stderr.isatty() and not on_terminal()
    with Progress("reading", "bytes", size_bytes(folders), is_shown=is_shown) as progress:
        waiting: list[str] = []
        for line in _lines(folders, output, progress):
            waiting.append(line)
            if len(waiting) == _LINES_AT_ONCE:
                show("".join(waiting))
                waiting.clear()
        show("".join(waiting))


def _lines(folders: list[PartitionFolder], output: Output, progress: Progress) -> Iterator[str]:
    line = _json_line if output is Output.json else _text_line
    for folder in folders:
        for base in segment_bases(folder):
            name = file_name(base, LOG)
            for found in walk(FileSystem(), str(folder.path / name), base, check=False):
                if isinstance(found, Batch):
                    yield line(folder.name, name, found.position, found.header)
                    progress.advance(found.header.length)
                else:
                    say(f"{folder.path / name}, byte {found.position}: {found.what}")


def _json_line(partition: str, file: str, position: int, header: BatchHeader) -> str:
    fields = {"partition": partition, "file": file, "position": position, **header._asdict()}
    fields["codec"] = _CODEC_NAMES.get(header.codec, str(header.codec))
    return msgspec.json.encode(fields).decode() + "\n"


def _text_line(partition: str, file: str, position: int, header: BatchHeader) -> str:
    has_producer = header.producer_id != NO_PRODUCER_ID
    cells: list[object] = [
        partition,
        file,
        position,
        header.base_offset,
        header.next_offset,
        header.record_count,
        header.length,
        _CODEC_NAMES.get(header.codec, header.codec),
        time_text(header.first_timestamp_us),
        time_text(header.max_timestamp_us),
        time_text(header.append_time_us),
        header.producer_id if has_producer else "-",
        header.producer_epoch if has_producer else "-",
        header.base_sequence if has_producer else "-",
    ]
    return _aligned(cells) if on_terminal() else "\t".join(map(str, cells)) + "\n"


def _aligned(cells: list[object] | list[str]) -> str:
    padded = (f"{cell!s:<{width}} " for cell, width in zip(cells, _WIDTHS, strict=True))
    return "".join(padded).rstrip() + "\n"
