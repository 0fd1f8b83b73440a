"""`segments --repair`: open the logs as a broker does when it starts, under the folder's lock,
close them, and tell what that did.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ..protocol.errors import FolderLocked, SeglogError
from ..server.storage.filesystem import FileSystem
from ..server.storage.folder import DataFolder
from ..server.storage.index import SegmentIndex
from ..server.storage.log import Log
from ..server.storage.names import LOCK, LOG, file_name
from ..server.storage.segment import SealedSegment, load_index, save_index
from .progress import Progress
from .segment_files import ANY_INTERVAL, PartitionFolder


class BrokerRuns(FolderLocked):
    """Repair writes to files that a broker has open."""

    advice = "Stop it first: repair needs the folder alone"


class Repaired(NamedTuple):
    """One thing that repair did, or (not `is_done`) could not do."""

    partition: str  # empty: the data folder as a whole
    what: str
    is_done: bool = True


def repair(path: Path, folders: list[PartitionFolder], progress: Progress) -> Iterator[Repaired]:
    """Open the logs as a broker does, close them, and tell what that did, one by one."""
    data = _data_folder(path.absolute())
    with _captured_logs() as messages:
        try:
            opened = DataFolder(FileSystem(), str(data))
        except FolderLocked as error:
            raise BrokerRuns(error.what) from None
        try:
            yield from (Repaired("", message) for message in _taken(messages))
            for folder in folders:
                yield from _repair_one(opened, folder)
                progress.advance(1)
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
        elif segment.size and load_index(fs, log.folder, segment.base_offset, ANY_INTERVAL) is None:
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
