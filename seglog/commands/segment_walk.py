"""The batches of a segment file, in order, and the stretches between that hold none.

It goes by reads, never by a map: a broker may cut the unused tail of a file meanwhile, and touching
a mapped page that is gone kills the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from ..protocol.constants import HEADER_BYTES, MAX_BATCH_BYTES
from ..protocol.errors import DamagedBatch, SeglogError
from ..protocol.header import BatchHeader, check_header, check_payload, check_prefix, unpack_header
from ..server.storage.filesystem import File, FileSystem
from ..server.storage.resync import find_next_batch

_WINDOW_BYTES: Final = 4 * MAX_BATCH_BYTES  # what is searched at once for the next sound batch
_STEP_BYTES: Final = 1 << 20


class Batch(NamedTuple):
    header: BatchHeader
    position: int


class Gap(NamedTuple):
    """A stretch that holds no sound batch. `is_tail`: nothing sound follows."""

    position: int
    size_bytes: int
    offset: int  # that should have come
    what: str
    is_tail: bool


def walk(fs: FileSystem, path: str, base: int, *, check: bool) -> Iterator[Batch | Gap]:
    """The batches of a segment in order, and the stretches between that hold none. With `check`
    every checksum is made; without it only those of the headers' first part."""
    file = fs.open(path)
    try:
        yield from _walk(file, base, check)
    finally:
        file.close()


def _walk(file: File, base: int, check: bool) -> Iterator[Batch | Gap]:
    position, expected = 0, base
    while position < file.size():
        try:
            header = _read_batch(file, position, expected, check)
        except SeglogError as error:
            if _is_zero(file, position):
                return  # room that is kept for more
            after = _find_sound(file, position + 1, expected)
            stop = file.size() if after is None else after
            yield Gap(position, stop - position, expected, error.what, after is None)
            if after is None:
                return
            position = after
            continue
        yield Batch(header, position)
        position += header.length
        expected = header.next_offset


def _read_batch(file: File, position: int, expected: int, check: bool) -> BatchHeader:
    head = file.read(HEADER_BYTES, position)
    header = unpack_header(head)
    try:
        check_prefix(head)
    except DamagedBatch:
        raise DamagedBatch("a header fails its checksum") from None
    if header.base_offset < expected:
        raise DamagedBatch(f"offset {header.base_offset} comes again")
    if header.length > file.size() - position:
        raise DamagedBatch(f"a batch of {header.length} bytes is cut short")
    check_header(header, header.length)
    if check:
        batch = head + file.read(header.length - HEADER_BYTES, position + HEADER_BYTES)
        check_payload(batch, header)
    return header


def _find_sound(file: File, position: int, least_offset: int) -> int | None:
    while position < file.size():
        window = memoryview(file.read(_WINDOW_BYTES, position))
        found = find_next_batch(window, 0, least_offset)
        if found is not None:
            return position + found
        # The next window overlaps: a batch may lie across the end of this one.
        position += _WINDOW_BYTES - MAX_BATCH_BYTES
    return None


def _is_zero(file: File, position: int) -> bool:
    while data := file.read(_STEP_BYTES, position):
        if data.count(0) != len(data):
            return False
        position += len(data)
    return True
