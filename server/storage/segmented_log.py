"""The files of a log: the chain of segments, and what happens to it apart from appending.

The active segment grows (log.py), is synced, and is sealed when the next one begins. Sealed ones
are deleted from the front, or replaced by compacted ones.

A segment is sealed, and on disk, before the next one exists; so after a crash only the last segment
needs a look. A full disk passes; after any other fault the files are not trusted, and nothing more
is written until a restart. Only the writer calls the methods of this class, where they do
not say otherwise; those of ReadableLog are for everyone.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence

from ...protocol.errors import OffsetOutOfRange, PartitionOffline, SeglogError, StorageFull
from . import snapshots
from .config import LogConfig
from .filesystem import File, FileSystem, storage_error
from .log_state import LogState, save_log_state
from .names import LOG, file_name
from .producer_state import ProducerState
from .reading import Chain, ReadableLog, Segment, Visible
from .segment import ActiveSegment, OpenSegment, SealedSegment, SegmentCache, save_index
from .staged import SegmentInfo

logger = logging.getLogger(__name__)


class SegmentedLog(ReadableLog):
    """See the module."""

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        name: str,
        config: LogConfig,
        cache: SegmentCache,
        segments: Sequence[Segment],
        state: LogState,
        producers: ProducerState,
        saved_end: int,
    ) -> None:
        super().__init__(name, cache, Chain.of(list(segments)), state)
        active = segments[-1]
        assert isinstance(active, ActiveSegment)
        self.fs = fs
        self.folder = folder
        self.config = config
        self.producers = producers
        self.active = active
        self.log_end = active.index.next_offset
        self.synced_end = self.log_end
        self.last_append_time_us = self._newest_append_time()
        self.offline_reason = ""
        self.is_closed = False
        self._syncing = threading.Lock()
        self._saved_end = saved_end  # up to here the next start needs no scan
        self.publish()

    # --- durable and visible ----------------------------------------------------------------------

    def sync(self) -> None:
        """Everything written is on disk when this returns. After a failure the log stays offline.

        A failed fsync is never repeated: the kernel may have dropped the pages it could not write,
        and a second call would then report success for data that is gone.
        """
        if self.synced_end == self.log_end:
            return
        self._check_writable()
        end = self.log_end
        self._sync_file(self.active.file)
        self.synced_end = end

    def sync_beside(self) -> None:
        """As `sync`, from another thread than the writer's, which may go on appending meanwhile."""
        end = self.log_end  # first: what lies below is in this segment, or in one that was sealed
        self._sync_file(self.active.file)
        self.synced_end = max(self.synced_end, end)

    def sync_journaled(self, file: File) -> None:
        """Make durable what the journal stands in for, from another thread than the writer's."""
        self._sync_file(file)

    def _sync_file(self, file: File) -> None:
        """One at a time: the system tells of a failed fsync once, and all must hear of it."""
        with self._syncing:
            self._check_online()  # else a sync that succeeds means nothing
            if file.descriptor < 0:
                return  # closed meanwhile, and synced for that; or deleted
            try:
                self.fs.sync(file, "log")
            except OSError as error:
                raise self.take_offline(error, "syncing") from error

    def publish(self) -> None:
        """Let readers see everything that is written."""
        self._visible = Visible(self.log_end, self.active.base_offset, self.active.size)

    # --- rolling ----------------------------------------------------------------------------------

    def roll_if_due(self, now_us: int) -> bool:
        """Roll where `segment.ms` has passed since the active segment's first batch."""
        if self.is_roll_due(now_us):
            self.roll()
            return True
        return False

    def is_roll_due(self, now_us: int) -> bool:
        age_us = now_us - self.active.first_append_time_us
        return self.active.size > 0 and age_us >= self.config.segment_ms * 1000

    def roll(self) -> None:
        """Seal the active segment and begin a new one at the log end.

        In this order, so that a crash leaves one of two states: the old segment is still the last
        one (whatever was written of its indexes), or it is sealed, synced and followed by an empty
        one.
        """
        self._check_writable()
        old, base = self.active, self.log_end
        if not old.size:
            return
        path = os.path.join(self.folder, file_name(base, LOG))
        try:
            self._seal(old)
            snapshots.save(self.fs, self.folder, base, self.producers)
            try:
                new = ActiveSegment.create(
                    self.fs, self.folder, base, self.config.index_interval_bytes
                )
            except OSError:
                # A later name beside a segment that goes on growing would hide its new batches.
                if self.fs.exists(path):
                    self.fs.remove(path)
                raise
        except OSError as error:
            raise self._fault(error, "rolling to a new segment") from error
        sealed = SealedSegment(
            self.fs, self.folder, old.base_offset, old.size, self.config.index_interval_bytes
        )
        sealed.remember(old.index)
        self._cache.add(sealed, OpenSegment(old.base_offset, old.file, old.index, old.view))
        self.synced_end = self._saved_end = base
        if 2 * old.size > self.config.segment_bytes:
            new.step_bytes = old.step_bytes  # a busy log: it need not begin small again
        self.active = new
        # What is sealed is on disk, and readers read a sealed segment to its end: the durable end
        # moves with it, and first, or who read on from there would be out of range.
        self.publish()
        self._chain = Chain.of([*self.segments[:-1], sealed, new])

    def _seal(self, segment: ActiveSegment) -> None:
        segment.cut_tail()
        self._sync_file(segment.file)
        segment.save_index()

    @property
    def needs_checkpoint(self) -> bool:
        """Whether a checkpoint would spare the next start a scan."""
        return self._saved_end != self.log_end

    def checkpoint(self) -> None:
        """Sync, and save what lets the next start begin its scan here."""
        if self.offline_reason or self.is_closed:
            return
        try:
            if self._saved_end != self.log_end:
                self.sync()
                self.active.save_index()
                snapshots.save(self.fs, self.folder, self.log_end, self.producers)
                self._saved_end = self.log_end
            self._save_rebuilt_indexes()
            self.fs.sync_folder(self.folder)
        except OSError as error:
            raise self._fault(error, "writing a checkpoint") from error

    def _save_rebuilt_indexes(self) -> None:
        for segment in self.segments:
            if isinstance(segment, SealedSegment) and not segment.index_is_saved:
                save_index(self.fs, self.folder, self._cache.open(segment).index)
                segment.index_is_saved = True

    # --- deleting and replacing -------------------------------------------------------------------

    def raise_log_start(self, offset: int) -> list[SegmentInfo]:
        """Delete everything below `offset`: the log start first, durably, then the files.

        A crash in between leaves files below the log start, which the next start removes.
        """
        self._check_writable()
        if not self.log_start <= offset <= self.durable_end:
            raise OffsetOutOfRange(
                f"{self.name}: the log start can be raised from {self.log_start} to "
                f"{self.durable_end}, not to {offset}",
                self.log_start,
                self.durable_end,
            )
        if offset > self.log_start:
            self.save_state(self._state._replace(log_start=offset))
        keep = self._chain.place(offset)
        gone = [s for s in self.segments[:keep] if isinstance(s, SealedSegment)]
        infos = [self._info(segment) for segment in gone]
        self._chain = Chain.of(self.segments[keep:])
        try:
            for segment in gone:
                self._cache.forget(segment)
                segment.remove()
        except OSError as error:
            # The log start is raised: these files are only in the way, until the next start.
            logger.warning("%s: could not remove a deleted segment: %s", self.name, error)
        return infos

    def save_state(self, state: LogState) -> None:
        """Replace the log's state; it counts once it is on disk."""
        try:
            save_log_state(self.fs, self.folder, state)
        except OSError as error:
            raise self._fault(error, "saving the log's state") from error
        self._state = state

    def replace_segments(self, old: Sequence[SealedSegment], new: SealedSegment) -> None:
        """Let readers see a compacted segment in place of the ones it was made from."""
        place = self.segments.index(old[0])
        assert self.segments[place : place + len(old)] == list(old)
        self._chain = Chain.of([*self.segments[:place], new, *self.segments[place + len(old) :]])
        for segment in old:
            self._cache.forget(segment)

    # --- looking at it ----------------------------------------------------------------------------

    @property
    def state(self) -> LogState:
        return self._state

    @property
    def cache(self) -> SegmentCache:
        return self._cache

    @property
    def size_bytes(self) -> int:
        """The bytes of all batches; preallocated room does not count."""
        return sum(_size(segment) for segment in self.segments)

    def describe(self) -> list[SegmentInfo]:
        return [self._info(segment) for segment in self.segments]

    def _info(self, segment: Segment) -> SegmentInfo:
        sealed = isinstance(segment, SealedSegment)
        end = segment.summary().next_offset if isinstance(segment, SealedSegment) else self.log_end
        name = file_name(segment.base_offset, LOG)
        return SegmentInfo(name, segment.base_offset, end, _size(segment), sealed)

    def _newest_append_time(self) -> int:
        """Of the last batch that is there: append times never go back, also across a restart."""
        for segment in reversed(self.segments):
            if isinstance(segment, ActiveSegment):
                newest = segment.index.last_append_time_us
            else:
                newest = segment.summary().last_append_time_us
            if newest:
                return newest
        return 0

    # --- closing ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable and open without a scan next time. May be called twice."""
        if self.is_closed:
            return
        self.is_closed = True
        try:
            if not self.offline_reason and (self._saved_end != self.log_end or self._has_tail()):
                self._seal(self.active)
                self.synced_end = self.log_end
                snapshots.save(self.fs, self.folder, self.log_end, self.producers)
                self.fs.sync_folder(self.folder)
        except OSError as error:
            raise self._fault(error, "closing") from error
        finally:
            self._close_file()

    def abandon(self) -> None:
        """Close without saving anything: the log was deleted. Slices stay valid."""
        self.is_closed = True
        self.synced_end = self.log_end  # nothing is left that anyone would want synced
        for segment in self.segments:
            if isinstance(segment, SealedSegment):
                self._cache.forget(segment)  # an open one would keep its disk space
        self._close_file()

    @property
    def needs_replay(self) -> bool:
        """Whether something may be on disk in the journal only. For a log that is closed."""
        return self.synced_end < self.log_end

    def _close_file(self) -> None:
        with self._syncing:  # not during a sync: its descriptor may be another file's by then
            self.active.file.close()

    def _has_tail(self) -> bool:
        return self.active.allocated_bytes > self.active.size

    # --- faults -----------------------------------------------------------------------------------

    def _check_online(self) -> None:
        if self.offline_reason:
            raise PartitionOffline(f"{self.name} is offline: {self.offline_reason}")

    def _check_writable(self) -> None:
        self._check_online()
        if self.is_closed:
            raise PartitionOffline(f"{self.name} is closed")

    def _fault(self, error: OSError, doing: str) -> SeglogError:
        """A full disk passes; after anything else the files are not trusted until a restart."""
        fault = storage_error(error, f"{doing} ({self.name})")
        return fault if isinstance(fault, StorageFull) else self.take_offline(error, doing)

    def take_offline(self, error: Exception, doing: str) -> PartitionOffline:
        """Refuse every write from now on; reading goes on."""
        reason = getattr(error, "strerror", None) or error
        self.offline_reason = f"{doing} failed: {reason}"
        logger.error("%s goes offline: %s", self.name, self.offline_reason)
        return PartitionOffline(f"{self.name} is offline: {self.offline_reason}")


def _size(segment: Segment) -> int:
    return segment.file_bytes if isinstance(segment, SealedSegment) else segment.size
