"""One partition's log: batches are appended here, by one writer, and nowhere else.

An append goes through four steps, so that the writer can make many logs durable at once:

    stage    offsets, append time and epoch are assigned, duplicates answered, disk reserved
    write    one pwritev to the active segment: [28-byte prefix, the rest of the batch, …], uncopied
    sync     the file is on disk
    publish  readers see it

Invariants: log start ≤ durable end ≤ log end. An offset is given out once: `stage` counts on from
what was written, and what `undo` takes back was never published. A segment is sealed, and on disk,
before the next one exists; so after a crash only the last segment needs a look. Only the writer's
thread calls the methods of this class; those of ReadableLog are for everyone.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence

from ...protocol.constants import MAX_RELATIVE_OFFSET, PREFIX_BYTES
from ...protocol.errors import (
    BatchTooLarge,
    OffsetOutOfRange,
    PartitionOffline,
    SeglogError,
    StorageFull,
)
from ...protocol.header import BatchHeader, Buffer, check_produced, pack_prefix
from . import snapshots
from .config import LogConfig
from .filesystem import File, FileSystem, storage_error
from .log_state import LogState, save_log_state
from .names import LOG, file_name
from .producer_state import ProducerState
from .reading import Chain, ReadableLog, Segment, Visible
from .rebuild import index_up_to, restore_producers
from .segment import ActiveSegment, OpenSegment, SealedSegment, SegmentCache, save_index
from .staged import AppendResult, SegmentInfo, Staged

logger = logging.getLogger(__name__)


class Log(ReadableLog):
    """See the module. `open_log` in recovery.py makes one."""

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

    # --- appending -------------------------------------------------------------------------------

    def append(self, batch: Buffer, now_us: int) -> AppendResult:
        """Take one batch from a producer through all four steps."""
        header = check_produced(batch, max_bytes=self.config.max_batch_bytes)
        staged = self.stage([(batch, header)], now_us)
        result = staged.results[0]
        if isinstance(result, SeglogError):
            raise result
        self.write(staged)
        if self.config.syncs_before_ack:
            self.sync()
        self.publish()
        return result

    def stage(self, batches: Sequence[tuple[Buffer, BatchHeader]], now_us: int) -> Staged:
        """Give checked batches their offsets, as many as fit the active segment, at least one.

        A batch that is refused or repeated has its error or its first answer among the results and
        takes no room. Raises StorageFull or PartitionOffline for all of them together.
        """
        self._check_writable()
        # Later than every batch before: recovery tells by it which batches were one group.
        now_us = max(now_us, self.last_append_time_us + 1)
        self.roll_if_due(now_us)
        staged = Staged(self.active, self.log_end, now_us)
        for batch, header in batches:
            try:
                known = self._check(batch, header)
            except SeglogError as error:
                staged.results.append(error)
                continue
            if known is not None:
                staged.results.append(known)
                continue
            if not self._fits(staged, len(batch), header.offset_span):
                if staged.buffers:
                    break
                self.roll()
                results = staged.results
                staged = Staged(self.active, self.log_end, now_us)
                staged.results = results
            self._add(staged, batch, header)
        try:
            self._reserve(staged)
        except (OSError, SeglogError) as error:
            self._restore_producers(staged)
            if isinstance(error, SeglogError):
                raise
            raise self._fault(error, "reserving space") from error
        return staged

    def _reserve(self, staged: Staged) -> None:
        segment = staged.segment
        was_full = segment.allocated_bytes == segment.size
        segment.reserve(staged.length, self.config.segment_bytes)
        if was_full and staged.length and not self.config.syncs_before_ack:
            # A file without a preallocated tail is taken for a closed one. With durability=os a
            # power cut could make it one again, after readers saw more, and no epoch would tell.
            self._sync_file(segment.file)

    def _check(self, batch: Buffer, header: BatchHeader) -> AppendResult | None:
        if len(batch) > self.config.max_batch_bytes:
            raise BatchTooLarge(
                f"a batch of {len(batch)} bytes, {self.name} takes {self.config.max_batch_bytes}"
            )
        if not header.is_idempotent:
            return None
        known = self.producers.check(header)
        return known and AppendResult(known.base_offset, known.append_time_us, is_duplicate=True)

    def _fits(self, staged: Staged, length: int, span: int) -> bool:
        size = staged.position + staged.length
        if size and size + length > self.config.segment_bytes:
            return False
        last_offset = staged.end_offset + span - 1
        return last_offset - staged.segment.base_offset <= MAX_RELATIVE_OFFSET

    def _add(self, staged: Staged, batch: Buffer, header: BatchHeader) -> None:
        offset, length, now_us = staged.end_offset, len(batch), staged.append_time_us
        staged.buffers.append(pack_prefix(offset, now_us, length, self.epoch))
        staged.buffers.append(memoryview(batch)[PREFIX_BYTES:])
        staged.batches.append((offset, length, header))
        staged.results.append(AppendResult(offset, now_us))
        staged.length += length
        staged.end_offset = offset + header.offset_span
        if header.is_idempotent:
            producer_id = header.producer_id
            if producer_id not in staged.producers_before:
                staged.producers_before[producer_id] = self.producers.remember(producer_id)
            self.producers.add(header, offset, now_us)

    def write(self, staged: Staged, *, may_be_replayed: bool = False) -> None:
        """Write what was staged. Where that fails, nothing of it stays, or the log goes offline.

        What the journal may hold is never taken back: a replay would put it over what came after.
        """
        segment = staged.segment
        if not staged.buffers:
            return
        try:
            segment.write(staged.buffers, staged.position)
        except OSError as error:
            if may_be_replayed:
                raise self.take_offline(error, "appending") from error
            fault = self._fault(error, "appending")
            if isinstance(fault, StorageFull):
                self.undo(staged)
            raise fault from error
        for offset, length, header in staged.batches:
            segment.index.add(
                offset,
                offset + header.offset_span,
                length,
                header.max_timestamp_us,
                staged.append_time_us,
                self.epoch,
            )
        if not segment.first_append_time_us:
            segment.first_append_time_us = staged.append_time_us
        self.log_end = staged.end_offset
        self.last_append_time_us = staged.append_time_us

    def undo(self, staged: Staged) -> None:
        """Forget what was staged last and is not, or only partly, written."""
        self._restore_producers(staged)
        try:
            staged.segment.cut_back(staged.position)
        except OSError as error:
            raise self.take_offline(error, "cutting back a partial write") from error
        # Or a power cut could bring back what its producer was told is not there.
        self._sync_file(staged.segment.file)

    def _restore_producers(self, staged: Staged) -> None:
        for producer_id, producer in staged.producers_before.items():
            self.producers.restore(producer_id, producer)

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

    def truncate(self, offset: int) -> None:
        """Drop the batches from `offset` on, a batch boundary that no reader has seen.

        Sealed segments stay; producers that wrote what is dropped are as they were before it.
        """
        self._check_writable()
        lowest = max(self.durable_end, self.active.base_offset)
        if not lowest <= offset <= self.log_end:
            raise OffsetOutOfRange(
                f"{self.name}: can be cut from {lowest} to {self.log_end}, not at {offset}",
                lowest,
                self.log_end,
            )
        if offset == self.log_end:
            return
        index = index_up_to(self.active.index, self.active.view, offset)
        if index.next_offset != offset:
            raise OffsetOutOfRange(f"{self.name}: {offset} lies inside a batch", lowest, offset)
        try:
            # What was saved may cover what goes, and must not be there when other batches take its
            # place. A crash in between leaves more to scan, no more.
            self.active.remove_index()
            snapshots.remove_after(self.fs, self.folder, offset)
            self.fs.sync_folder(self.folder)
            self.active.cut_back(index.covered_bytes)
        except OSError as error:
            raise self.take_offline(error, "truncating") from error
        self._sync_file(self.active.file)
        self.active.index = index
        if not index.covered_bytes:
            self.active.first_append_time_us = 0
        self.log_end = self.synced_end = offset
        self._saved_end = self.active.base_offset
        self.producers = restore_producers(
            self.fs, self.folder, self.segments, self._open_any, offset
        )

    def _open_any(self, segment: Segment) -> OpenSegment:
        return self._open(segment, self._cache.open)

    # --- segments --------------------------------------------------------------------------------

    def roll_if_due(self, now_us: int) -> bool:
        """Roll where `segment.ms` has passed since the active segment's first batch."""
        if self._is_roll_due(now_us):
            self.roll()
            return True
        return False

    def _is_roll_due(self, now_us: int) -> bool:
        age_us = now_us - self.active.first_append_time_us
        return self.active.size > 0 and age_us >= self.config.segment_ms * 1000

    def has_room(self, length: int, now_us: int) -> bool:
        """Whether so many bytes can be appended by a write to the page cache and nothing else: no
        sync, no space to reserve, no new segment.
        """
        return (
            not self.config.syncs_before_ack
            and self.active.size + length <= self.active.allocated_bytes
            and not self._is_roll_due(now_us)
        )

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

    # --- the rest --------------------------------------------------------------------------------

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

    def _seal(self, segment: ActiveSegment) -> None:
        segment.cut_tail()
        self._sync_file(segment.file)
        segment.save_index()

    def _close_file(self) -> None:
        with self._syncing:  # not during a sync: its descriptor may be another file's by then
            self.active.file.close()

    def _has_tail(self) -> bool:
        return self.active.allocated_bytes > self.active.size

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
