"""One segment: a file of batches back to back, and how to find a batch in it.

`OpenSegment` is what readers use: a read-only map, the index, the file. An `ActiveSegment` is one
that also grows; only the last segment of a log is active. A `SealedSegment` never changes; it is
opened when someone reads it and closed when a bounded cache needs the room, so that open files do
not grow with the log.

Promise: a slice handed out stays valid while it is held. Growing makes a new map beside the old
one, a removed file lives until its last map goes, and nothing is ever truncated below what readers
may see.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from ...protocol.constants import HEADER_BYTES, MIB
from ...protocol.errors import DamagedBatch, DamagedLog, SeglogError
from ...protocol.header import Buffer, Hop, check_stored, hop
from .filesystem import File, FileSystem
from .index import SegmentIndex
from .names import INDEX, LOG, TIME_INDEX, file_name
from .rebuild import rebuild_index
from .resync import find_next_batch

#: The active segment is preallocated in steps that double from the first to the second: a quiet
#: partition takes little, a busy one seldom waits for the file system.
FIRST_ALLOCATION_BYTES: Final = 1 * MIB
LARGEST_ALLOCATION_BYTES: Final = 16 * MIB

_EMPTY = memoryview(b"")


class Summary(NamedTuple):
    """What is worth knowing of a sealed segment while it is closed."""

    next_offset: int
    max_timestamp_us: int
    last_append_time_us: int
    log_epoch: int


class OpenSegment:
    """A segment that can be read: `view` holds at least every byte that a reader may see."""

    __slots__ = ("base_offset", "file", "index", "view")

    def __init__(self, base_offset: int, file: File, index: SegmentIndex, view: memoryview) -> None:
        self.base_offset = base_offset
        self.file = file
        self.index = index
        self.view = view

    def locate(self, offset: int, limit: int) -> int:
        """The position of the first batch that ends after `offset`; `limit` where there is none."""
        position = self.index.position_of_offset(offset)
        before: int | None = None
        while position < limit:
            try:
                batch = self._hop(position, limit)
            except DamagedBatch as damage:
                position = self._behind_damage(position, offset, limit, damage)
                before = None
                continue
            if batch.next_offset > offset and not self._is_overlong(batch, position, offset, limit):
                if batch.base_offset > offset and before is not None:
                    self._check_gap(before, batch.base_offset)
                return position
            before = position
            position += batch.length
        return limit

    def extent(self, start: int, limit: int, max_bytes: int) -> int:
        """Where to stop for whole batches from `start` within `max_bytes`, at least one."""
        end = start + self._hop(start, limit).length
        target = min(limit, start + max_bytes)
        if target == limit and end <= limit:
            return limit
        if end >= target:
            return end
        end = max(end, self.index.position_at_or_before(target))
        while end < target:
            try:
                length = self._hop(end, limit).length
            except DamagedBatch:
                break  # who reads on from there is told
            if end + length > target:
                break
            end += length
        return end

    def _hop(self, position: int, limit: int) -> Hop:
        # Behind the limit the file may end, though the map does not: touching that is fatal.
        if limit - position >= HEADER_BYTES:
            batch = hop(self.view, position)
            if batch.length <= limit - position:
                return batch
        raise DamagedBatch(f"the batch at byte {position} is cut short")

    def _is_overlong(self, batch: Hop, position: int, offset: int, limit: int) -> bool:
        """Whether a batch claims `offset`, and the next one has it: the first is damaged."""
        if offset == batch.base_offset or position + batch.length == limit:
            return False
        try:
            return self._hop(position + batch.length, limit).base_offset <= offset
        except DamagedBatch:
            return False

    def _check_gap(self, before: int, resume: int) -> None:
        """A gap is compaction's, unless the batch before is damaged and does not tell its end."""
        try:
            check_stored(self.view, before)
        except SeglogError as damage:
            raise self._damaged(damage, resume) from None

    def _behind_damage(self, position: int, offset: int, limit: int, damage: SeglogError) -> int:
        """Where to go on for `offset`; DamagedLog where that lies in the damaged stretch itself."""
        after = self._next_sound(position, limit)
        resume = hop(self.view, after).base_offset if after < limit else self.index.next_offset
        if resume > offset:
            raise self._damaged(damage, resume) from None
        return after

    def _damaged(self, damage: SeglogError, resume: int) -> DamagedLog:
        return DamagedLog(
            f"{self.file.path}: {damage.what}; reading can go on at offset {resume}", resume
        )

    def _next_sound(self, position: int, limit: int) -> int:
        """Where the next sound batch begins: searched up to the next index entry, and so on."""
        while position < limit:
            entry = self.index.position_after(position)
            stop = limit if entry is None else min(entry, limit)
            found = find_next_batch(self.view[:stop], position + 1, self.base_offset)
            if found is not None:
                return found
            position = stop
            try:
                self._hop(position, limit)
                return position
            except DamagedBatch:
                continue
        return limit


class ActiveSegment(OpenSegment):
    """The last segment: preallocated, appended to, and sealed. Only the writer calls."""

    __slots__ = ("allocated_bytes", "first_append_time_us", "folder", "fs", "step_bytes")

    def __init__(self, fs: FileSystem, folder: str, file: File, index: SegmentIndex) -> None:
        size = file.size()
        view = memoryview(file.map(size)) if size else _EMPTY
        super().__init__(index.base_offset, file, index, view)
        self.fs = fs
        self.folder = folder
        self.allocated_bytes = size
        self.step_bytes = FIRST_ALLOCATION_BYTES  # how much is preallocated next
        self.first_append_time_us = _first_append_time(index, view)

    @classmethod
    def create(cls, fs: FileSystem, folder: str, base: int, interval_bytes: int) -> ActiveSegment:
        """A new, empty segment; its name is durable when this returns."""
        file = fs.create(os.path.join(folder, file_name(base, LOG)))
        fs.sync_folder(folder)
        return cls(fs, folder, file, SegmentIndex(base, interval_bytes))

    @property
    def size(self) -> int:
        return self.index.covered_bytes

    def reserve(self, length: int, segment_bytes: int) -> None:
        """Make room for `length` more bytes. After this, writing them cannot find the disk full."""
        needed = self.size + length
        if needed <= self.allocated_bytes:
            return
        target = max(needed, min(self.allocated_bytes + self.step_bytes, segment_bytes))
        try:
            self.file.allocate(self.allocated_bytes, target - self.allocated_bytes)
        except OSError:
            if target == needed:
                raise
            target = needed  # an almost full disk still takes what fits
            self.file.allocate(self.allocated_bytes, target - self.allocated_bytes)
        self.view = memoryview(self.file.map(target))
        self.allocated_bytes = target
        self.step_bytes = min(2 * self.step_bytes, LARGEST_ALLOCATION_BYTES)

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        self.file.write(buffers, position)

    def cut_back(self, size: int) -> None:
        """Drop everything behind `size`, which no reader has seen."""
        self.file.truncate(size)
        self.allocated_bytes = size

    def save_index(self) -> None:
        """Write the index files; what they cover is synced: they are the recovery point."""
        save_index(self.fs, self.folder, self.index)

    def remove_index(self) -> None:
        """Take the saved index away; the caller syncs the folder."""
        for suffix in (INDEX, TIME_INDEX):
            path = os.path.join(self.folder, file_name(self.base_offset, suffix))
            if self.fs.exists(path):
                self.fs.remove(path)

    def seal(self) -> None:
        """Cut the preallocated tail, sync, write the indexes; a crash leaves it active."""
        self.cut_tail()
        self.file.sync()
        self.save_index()

    def cut_tail(self) -> None:
        """Drop the preallocated tail."""
        if self.allocated_bytes > self.size:
            self.cut_back(self.size)


class SealedSegment:
    """A segment that never changes. Holds no file and no map; `SegmentCache.open` gives those."""

    __slots__ = (
        "_summary",
        "base_offset",
        "file_bytes",
        "folder",
        "fs",
        "index_is_saved",
        "interval_bytes",
    )

    def __init__(
        self, fs: FileSystem, folder: str, base: int, file_bytes: int, interval_bytes: int
    ) -> None:
        self.fs = fs
        self.folder = folder
        self.base_offset = base
        self.file_bytes = file_bytes
        self.interval_bytes = interval_bytes
        self.index_is_saved = True
        self._summary: Summary | None = None

    @property
    def path(self) -> str:
        return os.path.join(self.folder, file_name(self.base_offset, LOG))

    def load(self) -> OpenSegment:
        """Open and map the file, and read its index, or make that anew where it is lost."""
        file = self.fs.open(self.path)
        size = file.size()
        view = memoryview(file.map(size)) if size else _EMPTY
        index = load_index(self.fs, self.folder, self.base_offset, self.interval_bytes)
        if index is None or index.covered_bytes != size:
            index = rebuild_index(view, self.base_offset, self.interval_bytes)
            self.index_is_saved = False
        self.remember(index)
        return OpenSegment(self.base_offset, file, index, view)

    def remember(self, index: SegmentIndex) -> None:
        self._summary = Summary(
            index.next_offset,
            index.max_timestamp_us,
            index.last_append_time_us,
            index.log_epoch,
        )

    def summary(self) -> Summary:
        """What the segment holds; the disk is asked once."""
        if self._summary is None:
            index = load_index(self.fs, self.folder, self.base_offset, self.interval_bytes)
            if index is not None and index.covered_bytes == self.file_bytes:
                self.remember(index)
            else:
                self.load()
        assert self._summary is not None
        return self._summary

    def remove(self) -> None:
        """Remove the files; the log first: an index without a log is swept up at the next start."""
        for suffix in (LOG, INDEX, TIME_INDEX):
            path = os.path.join(self.folder, file_name(self.base_offset, suffix))
            if self.fs.exists(path):
                self.fs.remove(path)


class SegmentCache:
    """The sealed segments that are open now; beyond capacity the least recently used goes."""

    def __init__(self, capacity: int = 128) -> None:
        self.capacity = capacity
        self._open: OrderedDict[SealedSegment, OpenSegment] = OrderedDict()
        self._lock = threading.Lock()

    def peek(self, segment: SealedSegment) -> OpenSegment | None:
        """The segment if it is open now: this never touches the disk."""
        return self._open.get(segment)

    def open(self, segment: SealedSegment) -> OpenSegment:
        with self._lock:
            opened = self._open.get(segment)
            if opened is None:
                opened = segment.load()
                self._insert(segment, opened)
            else:
                self._open.move_to_end(segment)
        return opened

    def add(self, segment: SealedSegment, opened: OpenSegment) -> None:
        with self._lock:
            self._insert(segment, opened)

    @contextmanager
    def closed_to_openers(self) -> Iterator[None]:
        """Nobody opens a segment meanwhile; what is open can be read."""
        with self._lock:
            yield

    def forget(self, segment: SealedSegment) -> None:
        self._open.pop(segment, None)  # one step: needs no lock

    def _insert(self, segment: SealedSegment, opened: OpenSegment) -> None:
        self._open[segment] = opened
        while len(self._open) > self.capacity:
            self._open.popitem(last=False)  # its map and file go with their last reader

    def __len__(self) -> int:
        return len(self._open)


def _first_append_time(index: SegmentIndex, view: memoryview) -> int:
    if not index.covered_bytes:
        return 0
    try:
        return hop(view, 0).append_time_us
    except DamagedBatch:
        return index.last_append_time_us  # no more than a roll by age hangs on it


def save_index(fs: FileSystem, folder: str, index: SegmentIndex) -> None:
    """Write both index files; their names are durable with the caller's next `sync_folder`."""
    for suffix, data in zip((INDEX, TIME_INDEX), index.pack(), strict=True):
        path = os.path.join(folder, file_name(index.base_offset, suffix))
        fs.replace_file(path, data, sync_folder=False)


def load_index(fs: FileSystem, folder: str, base: int, interval_bytes: int) -> SegmentIndex | None:
    """The saved index, or None where it is lost or damaged."""
    try:
        offsets = fs.read_file(os.path.join(folder, file_name(base, INDEX)))
        times = fs.read_file(os.path.join(folder, file_name(base, TIME_INDEX)))
        return SegmentIndex.unpack(base, interval_bytes, offsets, times)
    except (FileNotFoundError, DamagedLog):
        return None
