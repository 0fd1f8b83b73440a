"""Lines of files and of standard input, as columns of records to send.

What has come in one read is passed on together, so a slow pipe is passed on at once and a fast one
in bulk. Memory is bounded by one read and one line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple

from ..protocol.constants import MAX_BATCH_BYTES
from ..protocol.errors import SeglogError
from .interrupts import Interrupts

READ_BYTES: Final = 1 << 20
MAX_LINE_BYTES: Final = MAX_BATCH_BYTES
STANDARD_INPUT: Final = Path("-")

Pairs = list[tuple[str, bytes | None]]


class Lines(NamedTuple):
    """The lines that one read completed, and where they begin, for messages."""

    lines: list[bytes]
    source: str
    first_line: int
    size_bytes: int

    def where(self, index: int) -> str:
        return f"{self.source}, line {self.first_line + index}"


class Columns(NamedTuple):
    """Records of one partition (None: the producer chooses), as `send_batch` takes them."""

    partition: int | None
    values: list[bytes | None]
    keys: list[bytes | None] | None
    headers: list[Pairs] | None
    timestamps: list[int] | None


def read_lines(path: Path, interrupts: Interrupts) -> Iterator[Lines]:
    if path == STANDARD_INPUT:
        yield from split_lines("standard input", sys.stdin.buffer, interrupts)
        return
    with path.open("rb") as file:
        yield from split_lines(str(path), file, interrupts)


def split_lines(source: str, file: IO[bytes], interrupts: Interrupts) -> Iterator[Lines]:
    """The lines that each read completes; the last one may lack its newline."""
    number = 1
    begun: list[bytes] = []  # of a line that is not complete yet
    begun_bytes = 0
    read = getattr(file, "read1", file.read)  # read1: what is there, without waiting for more
    while True:
        with interrupts.allowed():
            data = read(READ_BYTES)
        if not data:
            break
        head, newline, tail = data.rpartition(b"\n")
        if newline:
            lines = b"".join([*begun, head]).split(b"\n")
            yield Lines(lines, source, number, len(head) + begun_bytes + 1)
            number += len(lines)
            begun, begun_bytes = [], 0
        if tail:
            begun.append(tail)
            begun_bytes += len(tail)
            if begun_bytes > MAX_LINE_BYTES:
                raise SeglogError(
                    f"{source}, line {number}: longer than {MAX_LINE_BYTES} bytes, which no batch "
                    "holds. Split it, or keep it elsewhere and send where it is"
                )
    if begun:
        yield Lines([b"".join(begun)], source, number, begun_bytes)


def raw_columns(
    found: Lines, headers: Pairs, separator: bytes | None, partition: int | None
) -> Columns:
    """A value a line, or a key and a value."""
    values: list[bytes | None] = list(found.lines)
    keys: list[bytes | None] | None = None
    if separator is not None:
        parts = [line.partition(separator) for line in found.lines]
        missing = next((i for i, (_, there, _) in enumerate(parts) if not there), None)
        if missing is not None:
            raise SeglogError(
                f"{found.where(missing)}: no {separator.decode(errors='replace')!r} in it. "
                "Correct the line, or --key-separator"
            )
        keys = [key for key, _, _ in parts]
        values = [value for _, _, value in parts]
    return Columns(partition, values, keys, [headers] * len(values) if headers else None, None)
