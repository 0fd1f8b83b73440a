"""Every checksum of a partition's files: batches, indexes, log state, producer snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..protocol.errors import SeglogError
from ..server.storage import snapshots
from ..server.storage.checked_file import read_checked
from ..server.storage.filesystem import FileSystem
from ..server.storage.log_state import load_log_state
from ..server.storage.names import INDEX, LOG, PRODUCERS, file_name
from ..server.storage.segment import load_index
from .progress import Progress
from .segment_files import ANY_INTERVAL, PartitionFolder, segment_bases
from .segment_walk import Batch, Gap, walk


class Problem(NamedTuple):
    """What a check found. A torn tail is none: a crash leaves it, the next start cuts it."""

    partition: str
    file: str
    position: int
    offset: int
    what: str
    is_damage: bool


class Checked(NamedTuple):
    partition: str
    segments: int
    batches: int
    size_bytes: int
    problems: list[Problem]


def verify(folder: PartitionFolder, progress: Progress) -> Checked:
    fs = FileSystem()
    bases = segment_bases(folder)
    problems: list[Problem] = []
    batches = size = 0
    end: int | None = None  # of the segment before
    for base in bases:
        path = str(folder.path / file_name(base, LOG))
        if end is not None and end < base:
            problems.append(_problem(folder, path, 0, end, f"offsets {end} to {base - 1} are lost"))
        index = load_index(fs, str(folder.path), base, ANY_INTERVAL)
        durable_bytes = index.covered_bytes if index else 0
        try:
            end = base
            for found in walk(fs, path, base, check=True):
                if isinstance(found, Batch):
                    batches += 1
                    size += found.header.length
                    progress.advance(found.header.length)
                    end = found.header.next_offset
                else:
                    # A tail that was never durable is what a crash leaves, or is being written now.
                    torn = found.is_tail and base == bases[-1] and found.position >= durable_bytes
                    problems.append(_of_gap(folder, path, found, torn))
            if fs.size(path) < durable_bytes:
                what = f"cut short: {durable_bytes} bytes were durable"
                problems.append(_problem(folder, path, fs.size(path), end, what))
        except FileNotFoundError:
            continue  # deleted by retention meanwhile
        if index is None and (folder.path / file_name(base, INDEX)).exists():
            name = str(folder.path / file_name(base, INDEX))
            what = "the index fails its checksum; it is rebuilt by --repair"
            problems.append(_problem(folder, name, 0, base, what))
    problems += _check_small_files(fs, folder)
    return Checked(folder.name, len(bases), batches, size, problems)


def _check_small_files(fs: FileSystem, folder: PartitionFolder) -> Iterator[Problem]:
    path = str(folder.path)
    try:
        load_log_state(fs, path)
    except SeglogError as error:
        yield _problem(folder, path, 0, 0, error.what)
    for offset in snapshots.offsets(fs, path):
        name = str(folder.path / file_name(offset, PRODUCERS))
        try:
            read_checked(fs, name, snapshots._MAGIC)
        except SeglogError as error:
            yield _problem(folder, name, 0, offset, error.what)


def _problem(folder: PartitionFolder, path: str, position: int, offset: int, what: str) -> Problem:
    return Problem(folder.name, path, position, offset, what, is_damage=True)


def _of_gap(folder: PartitionFolder, path: str, gap: Gap, torn: bool) -> Problem:
    if torn:
        what = f"a torn tail of {gap.size_bytes} bytes, cut when a broker starts"
    else:
        what = f"{gap.what}; {gap.size_bytes} bytes hold no sound batch"
    return Problem(folder.name, path, gap.position, gap.offset, what, not torn)
