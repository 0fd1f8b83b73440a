"""Segment files read from outside: listing, walking and checking them, and repair.

Reading takes no lock and changes nothing, so a running broker does not notice. It goes by reads,
never by a map: a broker may cut the unused tail of a file meanwhile, and touching a mapped page
that is gone kills the process. `repair` opens the logs as a broker does, under the folder's lock.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from ..protocol.constants import HEADER_BYTES, MAX_BATCH_BYTES
from ..protocol.errors import DamagedBatch, FolderLocked, SeglogError
from ..protocol.header import BatchHeader, check_header, check_payload, check_prefix, unpack_header
from ..server.storage import snapshots
from ..server.storage.checked_file import read_checked
from ..server.storage.filesystem import File, FileSystem
from ..server.storage.folder import DataFolder
from ..server.storage.index import SegmentIndex
from ..server.storage.log import Log
from ..server.storage.log_state import load_log_state
from ..server.storage.names import (
    INDEX,
    LOCK,
    LOG,
    PARTITION_PREFIX,
    PRODUCERS,
    TOPIC_PREFIX,
    file_name,
    parse_file_name,
    partition_number,
)
from ..server.storage.resync import find_next_batch
from ..server.storage.segment import SealedSegment, load_index, save_index

_WINDOW_BYTES: Final = 4 * MAX_BATCH_BYTES  # what is searched at once for the next sound batch
_STEP_BYTES: Final = 1 << 20
_ANY_INTERVAL: Final = 4096  # an index that is only looked at has no use for its own


class PartitionFolder(NamedTuple):
    topic: str
    partition: int
    path: Path

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.partition}"


class SegmentFile(NamedTuple):
    """One row of the list; `size_bytes` counts batches, not the room that is kept for more."""

    partition: str
    file: str
    start_offset: int
    end_offset: int
    size_bytes: int
    is_sealed: bool


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


# --- finding -------------------------------------------------------------------------------------


def find_partitions(path: Path) -> list[PartitionFolder]:
    """Of a data folder, a topic's folder or a partition's folder."""
    path = path.absolute()
    if not path.is_dir():
        raise SeglogError(f"{path} is not a folder. Give a data folder, or a folder in it")
    if partition_number(path.name) is not None:
        return [_partition(path)]
    folders = [
        inner
        for outer in ([path] if path.name.startswith(TOPIC_PREFIX) else _topics(path))
        for inner in outer.iterdir()
        if inner.is_dir() and partition_number(inner.name) is not None
    ]
    if not folders and not (path / LOCK).exists():
        raise SeglogError(
            f"{path} holds no topics. Give the folder that `seglog serve --data` had, "
            f"or {TOPIC_PREFIX}NAME or {PARTITION_PREFIX}N in it"
        )
    return sorted(map(_partition, folders))


def _topics(data: Path) -> list[Path]:
    return [p for p in data.iterdir() if p.is_dir() and p.name.startswith(TOPIC_PREFIX)]


def _partition(path: Path) -> PartitionFolder:
    topic = path.parent.name.removeprefix(TOPIC_PREFIX)
    return PartitionFolder(topic, partition_number(path.name) or 0, path)


def segment_bases(folder: PartitionFolder) -> list[int]:
    parsed = [parse_file_name(entry.name) for entry in folder.path.iterdir()]
    return sorted(found[0] for found in parsed if found and found[1] == LOG)


# --- reading -------------------------------------------------------------------------------------


def list_segments(folder: PartitionFolder) -> Iterator[SegmentFile]:
    fs = FileSystem()
    bases = segment_bases(folder)
    for base in bases:
        is_sealed = base != bases[-1]
        try:
            end, size = _extent(fs, folder, base, is_sealed)
        except FileNotFoundError:
            continue  # deleted by retention since it was listed
        yield SegmentFile(folder.name, file_name(base, LOG), base, end, size, is_sealed)


def _extent(fs: FileSystem, folder: PartitionFolder, base: int, is_sealed: bool) -> tuple[int, int]:
    path = str(folder.path / file_name(base, LOG))
    if is_sealed:
        index = load_index(fs, str(folder.path), base, _ANY_INTERVAL)
        if index is not None and index.covered_bytes == fs.size(path):
            return index.next_offset, index.covered_bytes
    end, size = base, 0
    for found in walk(fs, path, base, check=False):
        if isinstance(found, Batch):
            end, size = found.header.next_offset, found.position + found.header.length
    return end, size


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


# --- checking ------------------------------------------------------------------------------------


def verify(folder: PartitionFolder) -> Checked:
    """Every checksum of a partition: batches, indexes, log state, producer snapshots."""
    fs = FileSystem()
    bases = segment_bases(folder)
    problems: list[Problem] = []
    batches = size = 0
    end: int | None = None  # of the segment before
    for base in bases:
        path = str(folder.path / file_name(base, LOG))
        if end is not None and end < base:
            problems.append(_problem(folder, path, 0, end, f"offsets {end} to {base - 1} are lost"))
        index = load_index(fs, str(folder.path), base, _ANY_INTERVAL)
        durable_bytes = index.covered_bytes if index else 0
        try:
            end = base
            for found in walk(fs, path, base, check=True):
                if isinstance(found, Batch):
                    batches += 1
                    size += found.header.length
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


# --- repair --------------------------------------------------------------------------------------


class Repaired(NamedTuple):
    """One thing that repair did, or (not `is_done`) could not do."""

    partition: str  # empty: the data folder as a whole
    what: str
    is_done: bool = True


def repair(path: Path, folders: list[PartitionFolder]) -> Iterator[Repaired]:
    """Open the logs as a broker does, close them, and tell what that did, one by one."""
    data = _data_folder(path.absolute())
    with _captured_logs() as messages:
        try:
            opened = DataFolder(FileSystem(), str(data))
        except FolderLocked as error:
            raise SeglogError(f"{error.what}. Stop it first: repair needs it alone") from None
        try:
            yield from (Repaired("", message) for message in _taken(messages))
            for folder in folders:
                yield from _repair_one(opened, folder)
                yield from (Repaired(folder.name, message) for message in _taken(messages))
        finally:
            opened.close()


def _repair_one(opened: DataFolder, folder: PartitionFolder) -> Iterator[Repaired]:
    try:
        log = opened.open_log(folder.topic, folder.partition)
        try:
            for what in _rebuild_indexes(opened.fs, log):
                yield Repaired(folder.name, what)
        finally:
            log.close()
    except SeglogError as error:
        yield Repaired(folder.name, f"cannot be opened: {error.what}", is_done=False)


def _data_folder(path: Path) -> Path:
    for candidate in (path, path.parent, path.parent.parent):
        if (candidate / LOCK).exists():
            return candidate
    raise SeglogError(
        f"{path} is in no data folder ({LOCK} is missing). Copy the topic's folder into one"
    )


def _rebuild_indexes(fs: FileSystem, log: Log) -> Iterator[str]:
    saved = False
    for segment in log.segments:
        if isinstance(segment, SealedSegment):
            index = _lost_index(fs, log.folder, segment)
            if index is not None:
                save_index(fs, log.folder, index)
                saved = True
                yield f"rebuilt the index of {file_name(segment.base_offset, LOG)}"
        elif (
            segment.size and load_index(fs, log.folder, segment.base_offset, _ANY_INTERVAL) is None
        ):
            yield f"rebuilt the index of {file_name(segment.base_offset, LOG)}"  # closing saves it
    if saved:
        fs.sync_folder(log.folder)


def _lost_index(fs: FileSystem, folder: str, segment: SealedSegment) -> SegmentIndex | None:
    """The index made anew, where the saved one is lost or is another file's."""
    found = load_index(fs, folder, segment.base_offset, segment.interval_bytes)
    if found is not None and found.covered_bytes == segment.file_bytes:
        return None
    return segment.load().index


@contextmanager
def _captured_logs() -> Iterator[list[str]]:
    """What the storage layer says meanwhile, which is shown as ours."""
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger = logging.getLogger("seglog.server.storage")
    keep = Keep(logging.INFO)
    before = logger.level, logger.propagate
    logger.addHandler(keep)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield messages
    finally:
        logger.removeHandler(keep)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def _taken(messages: list[str]) -> list[str]:
    taken = messages.copy()
    messages.clear()
    return taken
