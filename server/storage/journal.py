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

import logging
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgpack
from crc32c import crc32c

from .filesystem import Buffer, File, FileSystem, storage_error
from .log import Log
from .names import LOG, file_name, parse_file_name
from .segment import load_index

logger = logging.getLogger(__name__)

_MAGIC: Final = b"SGJR"
_HEADER = struct.Struct("<4sIQQII")
_NAMES: Final = ("journal-0", "journal-1")


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
    """One of the two files, and the segment files that it stands in for."""

    def __init__(self, fs: FileSystem, path: str, size: int) -> None:
        self.file = fs.create(path)
        self.file.allocate(0, size)
        self.generation = 0
        self.end = 0
        self.covered: dict[File, Log] = {}
        self.is_free = threading.Event()
        self.is_free.set()


class Journal:
    """Only the writer's thread calls; the syncing of what a full file covers runs in its own."""

    def __init__(self, fs: FileSystem, folder: str, size: int) -> None:
        self.fs = fs
        self.folder = folder
        self.size = size
        self._files: list[_JournalFile] = []
        self._current = 0
        self._generation = 0
        self._number = 0
        self._releasing: threading.Thread | None = None
        self._is_broken = False

    def append(self, entries: Sequence[Entry]) -> bool:
        """Make the entries durable; False where the journal cannot take them now.

        After an error the journal is not used again until the next start: behind a group that may
        be torn, replay would find nothing.
        """
        directory, total = _measure(entries)
        if self._is_broken or total > self.size:
            return False
        try:
            target = self._room_for(total)
            if target is None:
                return False
            target.file.write(self._pack(entries, directory, target.generation), target.end)
            target.file.sync()
        except OSError as error:
            self._is_broken = True
            reason = storage_error(error, "writing the journal").what
            logger.error("%s; until the next start each log is synced by itself", reason)
            return False
        target.end += total
        target.covered.update((entry.log.active.file, entry.log) for entry in entries)
        return True

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
        if not self._files:
            self._create_files()
        current = self._files[self._current]
        if current.end + total <= self.size:
            return current
        other = self._files[1 - self._current]
        if not other.is_free.is_set():
            return None  # its logs are still being synced, or one of them cannot be
        self._release(current)
        self._current = 1 - self._current
        return self._begin(other)

    def _create_files(self) -> None:
        """At first use: a broker whose groups touch one log at a time needs none."""
        self._files = [
            _JournalFile(self.fs, os.path.join(self.folder, name), self.size) for name in _NAMES
        ]
        for made in self._files:
            made.file.sync()
        self.fs.sync_folder(self.folder)
        self._begin(self._files[0])

    def _begin(self, target: _JournalFile) -> _JournalFile:
        self._generation += 1
        target.generation = self._generation
        target.end = 0
        target.covered = {}
        return target

    def _release(self, full: _JournalFile) -> None:
        full.is_free.clear()
        if self._releasing is not None:
            self._releasing.join()
        self._releasing = threading.Thread(
            target=self._sync_covered, args=(full,), name="seglog-journal", daemon=True
        )
        self._releasing.start()

    def _sync_covered(self, full: _JournalFile) -> None:
        failed = False
        for file, log in full.covered.items():
            if file.descriptor < 0:
                continue  # its log was closed, and synced for that
            try:
                file.sync()
            except OSError as error:
                failed = True
                log.take_offline(error, "syncing")
        if not failed:
            full.is_free.set()

    def close(self) -> None:
        """Remove the files, once every log is synced and closed. Skipped where one could not be."""
        if self._releasing is not None:
            self._releasing.join()
        for made in self._files:
            made.file.close()
        if all(made.is_free.is_set() for made in self._files):
            remove_journal(self.fs, self.folder)
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
