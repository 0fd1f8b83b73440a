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

from ...protocol.constants import MIB
from ...protocol.errors import DamagedBatch, DamagedLog
from ...protocol.header import Buffer, Hop, hop
from .filesystem import File, FileSystem
from .index import SegmentIndex
from .names import INDEX, LOG, TIME_INDEX, file_name
from .rebuild import rebuild_index

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
        view = self.view
        while position < limit:
            batch = self._hop(view, position)
            if batch.next_offset > offset:
                return position
            position += batch.length
        return limit

    def extent(self, start: int, limit: int, max_bytes: int) -> int:
        """Where to stop so that `start` to there is whole batches within `max_bytes`, at
        least one.
        """
        view = self.view
        end = start + self._hop(view, start).length
        target = min(limit, start + max_bytes)
        if target == limit and end <= limit:
            return limit
        if end >= target:
            return end
        end = max(end, self.index.position_at_or_before(target))
        while end < target:
            length = self._hop(view, end).length
            if end + length > target:
                break
            end += length
        return end

    def _hop(self, view: memoryview, position: int) -> Hop:
        try:
            return hop(view, position)
        except DamagedBatch as damage:
            raise self._damage(position, damage) from None

    def _damage(self, position: int, damage: DamagedBatch) -> DamagedLog:
        after = self.index.position_after(position)
        while after is not None:
            try:
                resume = hop(self.view, after).base_offset
            except DamagedBatch:
                after = self.index.position_after(after)
                continue
            break
        else:
            resume = self.index.next_offset
        return DamagedLog(
            f"{self.file.path}: {damage.what}; reading can go on at offset {resume}", resume
        )


class ActiveSegment(OpenSegment):
    """The last segment of a log: it is preallocated, appended to, and sealed. Only the writer
    calls.
    """

    __slots__ = ("allocated_bytes", "first_append_time_us", "folder", "fs")

    def __init__(self, fs: FileSystem, folder: str, file: File, index: SegmentIndex) -> None:
        size = file.size()
        view = memoryview(file.map(size)) if size else _EMPTY
        super().__init__(index.base_offset, file, index, view)
        self.fs = fs
        self.folder = folder
        self.allocated_bytes = size
        self.first_append_time_us = hop(view, 0).append_time_us if index.covered_bytes else 0

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
        step = min(max(self.allocated_bytes, FIRST_ALLOCATION_BYTES), LARGEST_ALLOCATION_BYTES)
        target = max(needed, min(self.allocated_bytes + step, segment_bytes))
        self.file.allocate(self.allocated_bytes, target - self.allocated_bytes)
        self.view = memoryview(self.file.map(target))
        self.allocated_bytes = target

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        self.file.write(buffers, position)

    def cut_back(self, size: int) -> None:
        """Drop everything behind `size`, which no reader has seen."""
        self.file.truncate(size)
        self.allocated_bytes = size

    def save_index(self) -> None:
        """Write the index files. What they cover must be synced before: they are the recovery
        point.
        """
        save_index(self.fs, self.folder, self.index)

    def seal(self) -> None:
        """Cut the preallocated tail, sync, write the indexes. A crash in between leaves
        it active.
        """
        if self.allocated_bytes > self.size:
            self.cut_back(self.size)
        self.file.sync()
        self.save_index()


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
        """Open the file, map it, and read its index, or make that anew where it is lost
        or damaged.
        """
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
            index.next_offset, index.max_timestamp_us, index.last_append_time_us
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
    """The sealed segments that are open now: the least recently used goes when there are
    too many.
    """

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


def save_index(fs: FileSystem, folder: str, index: SegmentIndex) -> None:
    offsets, times = index.pack()
    fs.replace_file(os.path.join(folder, file_name(index.base_offset, TIME_INDEX)), times)
    fs.replace_file(os.path.join(folder, file_name(index.base_offset, INDEX)), offsets)


def load_index(fs: FileSystem, folder: str, base: int, interval_bytes: int) -> SegmentIndex | None:
    """The saved index, or None where it is lost or damaged."""
    try:
        offsets = fs.read_file(os.path.join(folder, file_name(base, INDEX)))
        times = fs.read_file(os.path.join(folder, file_name(base, TIME_INDEX)))
        return SegmentIndex.unpack(base, interval_bytes, offsets, times)
    except (FileNotFoundError, DamagedLog):
        return None
