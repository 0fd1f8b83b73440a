"""The shared journal: one sync makes a group durable, however many logs it touches.

    <data>/journal-0, journal-1     groups, back to back

    0  4s   magic                       16  u64  number of the group, counting on
    4  u32  crc32c of all that follows  24  u32  length of the directory
    8  u64  generation of the file      28  u32  length of the bytes
    32 …    directory: msgpack [[topic id, partition, base offset, position, length], …]
    …       the bytes of each entry, in that order

A group is written here and synced, and only then written to its logs, without a sync. While one
file fills, the logs that the other one covers are synced in the background; then that one may be
used again, in a new generation, so that what is left of the old one is not taken for new. A log
that cannot be synced keeps its file from being used again: what was acked stays in the journal
until a restart replays it. With no file to write to, the caller syncs its logs one by one.

Replay, at the start, before any log is opened: the groups in order, up to the first that is not
whole (it was never acked). An entry is written to its place again, which changes nothing where it
was there already; it is skipped where its topic or segment is gone, where a later segment exists
(then it was synced), or below the recovery point. When the logs are synced the files are removed; a
crash before that replays again.
"""

from __future__ import annotations

import enum
import logging
import os
import struct
import threading
import weakref
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Final, NamedTuple

import msgpack
from crc32c import crc32c

from ...protocol.errors import SeglogError, StorageFull
from .filesystem import Buffer, File, FileSystem, storage_error
from .log import Log
from .names import LOG, file_name, parse_file_name
from .segment import load_index

logger = logging.getLogger(__name__)

_MAGIC: Final = b"SGJR"
_HEADER = struct.Struct("<4sIQQII")
_NAMES: Final = ("journal-0", "journal-1")


class Kept(enum.Enum):
    """Whether a replay will find a group."""

    NO = enum.auto()
    PERHAPS = enum.auto()  # writing or syncing it failed: its logs must be synced, and not cut back
    YES = enum.auto()


class Entry(NamedTuple):
    """Bytes of one log, and where they belong."""

    topic_id: str
    partition: int
    base_offset: int
    position: int
    length: int
    buffers: Sequence[Buffer]
    log: Log  # its active file is to be synced before the journal is used again


class _JournalFile:
    """One of the two files, and the logs that it stands in for, each with the file it wrote last.

    The files it wrote before were synced when they were sealed. A log that was deleted is gone from
    here with its last reader, and its disk space with it.
    """

    def __init__(self, fs: FileSystem, path: str, size: int) -> None:
        self.file = fs.create(path)
        self.file.allocate(0, size)
        self.generation = 0
        self.end = 0
        self.covered: MutableMapping[Log, File] = weakref.WeakKeyDictionary()
        self.is_free = threading.Event()
        self.is_free.set()


#: Starts work beside the writer, and returns a call that waits for its end.
Beside = Callable[[Callable[[], None]], Callable[[], None]]


def in_a_thread(work: Callable[[], None]) -> Callable[[], None]:
    thread = threading.Thread(target=work, name="seglog-journal", daemon=True)
    thread.start()
    return thread.join


class Journal:
    """Only the writer's thread calls; the syncing of what a full file covers runs in `beside`."""

    def __init__(
        self, fs: FileSystem, folder: str, size: int, beside: Beside = in_a_thread
    ) -> None:
        self.fs = fs
        self.folder = folder
        self.size = size
        self._files: list[_JournalFile] = []
        self._current = 0
        self._generation = 0
        self._number = 0
        self._beside = beside
        self._wait_for_release: Callable[[], None] = lambda: None
        self._is_broken = False
        self.groups_written = 0
        self.bytes_written = 0

    @property
    def used_bytes(self) -> int:
        """How far the file that is being written is full. Any thread may ask, as for the rest."""
        files = self._files
        return files[self._current].end if files else 0

    @property
    def is_broken(self) -> bool:
        """Whether it is out of use until the next start."""
        return self._is_broken

    def append(self, entries: Sequence[Entry]) -> Kept:
        """Make the entries durable. Where that is not certain the caller syncs its logs itself.

        After an error the journal is not used again until the next start: behind a group that may
        be torn, replay would find nothing.
        """
        directory, total = _measure(entries)
        if self._is_broken or total > self.size:
            return Kept.NO
        target = self._room_for(total)
        if target is None:
            return Kept.NO
        try:
            target.file.write(self._pack(entries, directory, target.generation), target.end)
            self.fs.sync(target.file, "journal")
        except OSError as error:
            self._is_broken = True
            reason = storage_error(error, "writing the journal").what
            logger.error("%s; until the next start each log is synced by itself", reason)
            return Kept.PERHAPS
        target.end += total
        self.groups_written += 1
        self.bytes_written += total
        target.covered.update((entry.log, entry.log.active.file) for entry in entries)
        return Kept.YES

    def _pack(self, entries: Sequence[Entry], directory: bytes, generation: int) -> list[Buffer]:
        self._number += 1
        payload = [buffer for entry in entries for buffer in entry.buffers]
        length = sum(entry.length for entry in entries)
        head = _HEADER.pack(_MAGIC, 0, generation, self._number, len(directory), length)
        checksum = crc32c(directory, crc32c(head[8:]))
        for buffer in payload:
            checksum = crc32c(buffer, checksum)
        head = _HEADER.pack(_MAGIC, checksum, generation, self._number, len(directory), length)
        return [head, directory, *payload]

    def _room_for(self, total: int) -> _JournalFile | None:
        if not self._files and not self._create_files():
            return None
        current = self._files[self._current]
        if current.end + total <= self.size:
            return current
        other = self._files[1 - self._current]
        if not other.is_free.is_set():
            return None  # its logs are still being synced, or one of them cannot be
        self._release(current)
        self._current = 1 - self._current
        return self._begin(other)

    def _create_files(self) -> bool:
        """At first use: a broker whose groups touch one log at a time needs none.

        On a full disk there is no journal until there is room for it.
        """
        made: list[_JournalFile] = []
        try:
            for name in _NAMES:
                made.append(_JournalFile(self.fs, os.path.join(self.folder, name), self.size))
                self.fs.sync(made[-1].file, "journal")
            self.fs.sync_folder(self.folder)
        except OSError as error:
            for unused in made:
                unused.file.close()
            self._remove_unused()
            fault = storage_error(error, "creating the journal")
            self._is_broken = not isinstance(fault, StorageFull)
            logger.warning("%s; until then each log is synced by itself", fault.what)
            return False
        self._files = made
        self._begin(made[0])
        return True

    def _remove_unused(self) -> None:
        try:
            remove_journal(self.fs, self.folder)
        except OSError as error:
            logger.warning("could not remove the journal: %s", error)

    def _begin(self, target: _JournalFile) -> _JournalFile:
        self._generation += 1
        target.generation = self._generation
        target.end = 0
        return target

    def _release(self, full: _JournalFile) -> None:
        full.is_free.clear()
        self._wait_for_release()  # it is done: the other file was free
        self._wait_for_release = self._beside(lambda: self._sync_covered(full))

    def _sync_covered(self, full: _JournalFile) -> None:
        """Runs beside the writer, which does not touch a file that is not free."""
        for log, file in list(full.covered.items()):
            try:
                log.sync_journaled(file)
            except SeglogError:  # said by the log
                return
            except Exception:
                logger.exception("%s could not be synced", log.name)
                return
        full.covered.clear()
        full.is_free.set()

    def close(self) -> None:
        """Remove the files, unless a log that they cover could not be synced. May be called twice.

        Called when every log is closed.
        """
        self._wait_for_release()
        for made in self._files:
            made.file.close()
        unsynced = [log.name for made in self._files for log in made.covered if log.needs_replay]
        if unsynced:
            logger.warning("the journal is kept for the next start: %s", ", ".join(unsynced))
        elif self._files:
            self._remove_unused()
        self._files = []


def _measure(entries: Sequence[Entry]) -> tuple[bytes, int]:
    """The directory of a group, and the bytes that the whole group takes."""
    directory = msgpack.packb([entry[:5] for entry in entries])
    return directory, _HEADER.size + len(directory) + sum(entry.length for entry in entries)


def remove_journal(fs: FileSystem, folder: str) -> None:
    present = [name for name in _NAMES if fs.exists(os.path.join(folder, name))]
    for name in present:
        fs.remove(os.path.join(folder, name))
    if present:
        fs.sync_folder(folder)


class ReplayReport(NamedTuple):
    groups: int
    entries: int
    written_bytes: int


def replay_journal(
    fs: FileSystem, folder: str, partition_folders: Callable[[str, int], str | None]
) -> ReplayReport:
    """Write what the journal holds to the logs, sync them, and remove the journal.

    `partition_folders` gives the folder of a topic id's partition; None where the topic is gone.
    """
    groups = sorted(
        (group for name in _NAMES for group in _read_groups(fs, os.path.join(folder, name))),
        key=lambda group: group[0],
    )
    targets: dict[str, tuple[File, int]] = {}  # a segment's file and its recovery point
    entries = written = 0
    for _, parts in groups:
        for (topic_id, partition, base, position, _), data in parts:
            home = partition_folders(topic_id, partition)
            if home is None or not _is_last_segment(fs, home, base):
                continue
            path = os.path.join(home, file_name(base, LOG))
            if path not in targets:
                index = load_index(fs, home, base, 1)
                targets[path] = (fs.open(path, write=True), index.covered_bytes if index else 0)
            file, recovery_point = targets[path]
            if position >= recovery_point:
                file.write([data], position)
                entries += 1
                written += len(data)
    for file, _ in targets.values():
        file.sync()
        file.close()
    remove_journal(fs, folder)
    if groups:
        logger.info("replayed %d groups of the journal: %d bytes", len(groups), written)
    return ReplayReport(len(groups), entries, written)


Location = tuple[str, int, int, int, int]


def _read_groups(
    fs: FileSystem, path: str
) -> Iterator[tuple[int, list[tuple[Location, memoryview]]]]:
    """The whole groups of one file's last generation, each with its number."""
    if not fs.exists(path):
        return
    data = memoryview(fs.read_file(path))
    position = 0
    generation: int | None = None
    while len(data) - position >= _HEADER.size:
        magic, checksum, found, number, directory_length, length = _HEADER.unpack_from(
            data, position
        )
        start = position + _HEADER.size
        end = start + directory_length + length
        if magic != _MAGIC or end > len(data) or crc32c(data[position + 8 : end]) != checksum:
            return
        if generation is not None and found != generation:
            return  # what an earlier generation left behind
        generation = found
        directory = msgpack.unpackb(data[start : start + directory_length])
        yield number, list(_split(data[start + directory_length : end], directory))
        position = end


def _split(data: memoryview, directory: list[Location]) -> Iterator[tuple[Location, memoryview]]:
    position = 0
    for location in directory:
        length = location[4]
        yield location, data[position : position + length]
        position += length


def _is_last_segment(fs: FileSystem, folder: str, base: int) -> bool:
    if not fs.exists(folder):
        return False
    parsed = [parse_file_name(name) for name in fs.list_folder(folder)]
    return max((found[0] for found in parsed if found and found[1] == LOG), default=-1) == base
