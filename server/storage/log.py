"""One partition's log: batches are appended here, by one writer, and nowhere else.

An append goes through four steps, so that the writer can make many logs durable at once:

    stage    offsets, append time and epoch are assigned, duplicates answered, disk reserved
    write    one pwritev to the active segment: [28-byte prefix, the rest of the batch, …], uncopied
    sync     the file is on disk
    publish  readers see it

Invariants: log start ≤ durable end ≤ log end. An offset is given out once: `stage` counts on from
what was written, and what `undo` takes back was never published. Only the writer calls the
methods of this class; those of ReadableLog are for everyone. `sync`, `publish` and all else that
concerns the files is in segmented_log.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...protocol.constants import MAX_RELATIVE_OFFSET, PREFIX_BYTES
from ...protocol.errors import BatchTooLarge, OffsetOutOfRange, SeglogError, StorageFull
from ...protocol.header import BatchHeader, Buffer, check_produced, pack_prefix
from . import snapshots
from .reading import Segment
from .rebuild import index_up_to, restore_producers
from .segment import OpenSegment
from .segmented_log import SegmentedLog
from .staged import AppendResult, Staged


class Log(SegmentedLog):
    """See the module. `open_log` in recovery.py makes one."""

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

    def has_room(self, length: int, now_us: int) -> bool:
        """Whether so many bytes can be appended by a write to the page cache and nothing else: no
        sync, no space to reserve, no new segment.
        """
        # More may be reserved than a segment may have, where that was more before.
        room = min(self.active.allocated_bytes, self.config.segment_bytes)
        return (
            not self.config.syncs_before_ack
            and self.active.size + length <= room
            and not self.is_roll_due(now_us)
        )

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
