"""Compaction: of each key the last record stays, offsets stay, tombstones stay for a while.

A pass over a log has two halves. `clean` reads sealed segments and writes their replacements beside
them; it changes nothing that anyone sees, and may run in any thread. `commit` swaps the files and
is the writer's.

1. The keys of the segments that were never compacted (the dirty ones) go into a map, key to last
   offset;
   as many segments as MAX_KEYS allows.
2. Every segment up to there is read again. A record goes when the map knows a later one of its key;
   a
   tombstone also when the records it deleted have been gone for `delete.retention.ms`, so that a
   reader on its way through the log has had that long to see it. A record without a key always
   stays.
3. Neighbours that fit one segment become one.

A batch that cannot be unpacked is kept as it is: damage is not made worse, and its reader is told.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...protocol.batch import decode_batch, encode_compacted
from ...protocol.constants import MAX_RELATIVE_OFFSET, MIB
from ...protocol.errors import DamagedBatch, SeglogError
from ...protocol.header import hop
from ...protocol.records import Columns
from .compaction_swap import decide_swap, finish_swap
from .filesystem import File, storage_error
from .index import SegmentIndex
from .log import Log
from .names import CLEANED, range_name
from .rebuild import cover_batch
from .resync import find_next_batch
from .segment import SealedSegment, save_index

logger = logging.getLogger(__name__)

MAX_KEYS: Final = 500_000
_WRITE_BYTES: Final = 1 * MIB

Pause = Callable[[], None]


@dataclass(frozen=True)
class Replacement:
    """A `.cleaned` file that waits to take the place of some neighbouring segments."""

    old: list[SealedSegment]
    index: SegmentIndex
    removed_records: int


class Cleaned(NamedTuple):
    """The outcome of `clean`, for `commit`."""

    replacements: list[Replacement]
    end_offset: int
    kept_tombstones: int

    @property
    def removed_records(self) -> int:
        return sum(replacement.removed_records for replacement in self.replacements)


class _Pass:
    """What one pass knows, and counts."""

    def __init__(self, latest: dict[bytes, int], horizon: int) -> None:
        self.latest = latest
        self.horizon = horizon
        self.kept_tombstones = 0

    def positions_to_keep(self, columns: Columns) -> list[int]:
        latest = self.latest
        kept = []
        for position, (offset, key, value) in enumerate(
            zip(columns.offsets, columns.keys, columns.values, strict=True)
        ):
            if key is not None:
                if latest.get(key, -1) > offset:
                    continue
                if value is None:
                    if offset < self.horizon:
                        continue
                    self.kept_tombstones += 1
            kept.append(position)
        return kept


def compact(log: Log, now_us: int, pause: Pause = lambda: None) -> Cleaned | None:
    """A whole pass, in one thread; None where there was nothing to do."""
    cleaned = clean(log, now_us, pause)
    if cleaned is not None:
        commit(log, cleaned, now_us)
    return cleaned


def clean(log: Log, now_us: int, pause: Pause = lambda: None) -> Cleaned | None:
    """Write the replacements. `pause` is called between batches; it may raise, to give up."""
    sealed = [segment for segment in log.segments if isinstance(segment, SealedSegment)]
    state = log.state
    retention_us = log.config.delete_retention_ms * 1000
    dirty = [s for s in sealed if s.summary().next_offset > state.compacted_end]
    if not dirty and not state.has_due_tombstones(now_us, retention_us):
        return None
    latest, mapped = _map_keys(log, dirty, pause)
    last = mapped[-1] if mapped else (sealed[-1] if sealed else None)
    if last is None:
        return None
    the_pass = _Pass(latest, state.tombstone_horizon(now_us, retention_us))
    replacements: list[Replacement] = []
    try:
        for group in _neighbours(sealed[: sealed.index(last) + 1], log.config.segment_bytes):
            replacement = _clean_group(log, group, the_pass, pause)
            if replacement is not None:
                replacements.append(replacement)
    except BaseException as error:
        _discard(log, replacements)
        if isinstance(error, OSError):
            raise storage_error(error, f"compacting {log.name}") from error
        raise
    return Cleaned(replacements, last.summary().next_offset, the_pass.kept_tombstones)


def commit(log: Log, cleaned: Cleaned, now_us: int) -> None:
    """Swap the files in. Called by the writer; the segments must still be the log's."""
    if log.offline_reason or log.is_closed:
        _discard(log, cleaned.replacements)
        return
    present = set(log.segments)
    waiting = list(cleaned.replacements)
    is_whole = True
    while waiting:
        replacement = waiting.pop(0)
        if not present.issuperset(replacement.old):  # retention was quicker
            _discard(log, [replacement])
            is_whole = False
            continue
        try:
            _swap(log, replacement)
        except OSError as error:
            _discard(log, waiting)
            if log.fs.exists(_cleaned_path(log, replacement)):  # nothing happened yet
                _discard(log, [replacement])
                raise storage_error(error, f"compacting {log.name}") from error
            # The next start finishes what was decided; until then both could be taken for the log.
            raise log.take_offline(error, "swapping in a compacted segment") from error
    if not is_whole:
        # What it left may hold records that tombstones further on delete: were the pass counted,
        # these would go in time, and those would be back.
        return
    log.save_state(
        log.state.with_compaction(
            cleaned.end_offset,
            now_us,
            cleaned.kept_tombstones,
            log.config.delete_retention_ms * 1000,
        )
    )


def _swap(log: Log, replacement: Replacement) -> None:
    index = replacement.index
    start, end = index.base_offset, index.next_offset
    interval_bytes = log.config.index_interval_bytes
    decide_swap(log.fs, log.folder, start, end)
    new = SealedSegment(log.fs, log.folder, start, index.covered_bytes, interval_bytes)
    new.remember(index)
    with log.cache.closed_to_openers():  # nobody opens a file by a name that is on the move
        finish_swap(log.fs, log.folder, start, end)
        log.replace_segments(replacement.old, new)
    try:
        save_index(log.fs, log.folder, index)
    except OSError:
        new.index_is_saved = False  # a checkpoint makes up for it


def _cleaned_path(log: Log, replacement: Replacement) -> str:
    start, end = replacement.index.base_offset, replacement.index.next_offset
    return os.path.join(log.folder, range_name(start, end, CLEANED))


def _discard(log: Log, replacements: list[Replacement]) -> None:
    """Remove files that will not be swapped in; what cannot be removed waits for the next start."""
    for replacement in replacements:
        try:
            log.fs.remove(_cleaned_path(log, replacement))
        except FileNotFoundError:
            pass  # the topic was deleted, and took it along
        except OSError as error:
            logger.warning("%s: could not remove a file of a compaction: %s", log.name, error)


def _map_keys(
    log: Log, dirty: list[SealedSegment], pause: Pause
) -> tuple[dict[bytes, int], list[SealedSegment]]:
    latest: dict[bytes, int] = {}
    mapped: list[SealedSegment] = []
    for segment in dirty:
        if len(latest) >= MAX_KEYS:
            break
        for batch in _batches(log, segment):
            try:
                columns = decode_batch(batch)
            except SeglogError:
                continue
            keyed = zip(columns.keys, columns.offsets, strict=True)
            latest.update((key, offset) for key, offset in keyed if key is not None)
            pause()
        mapped.append(segment)
    return latest, mapped


def _neighbours(segments: list[SealedSegment], segment_bytes: int) -> Iterator[list[SealedSegment]]:
    """Runs of segments that fit one, by their size now and by the width of their offsets.

    Where offsets between two segments are lost they stay two: a gap inside one is compaction's own.
    """
    group: list[SealedSegment] = []
    for segment in segments:
        size = segment.file_bytes + sum(member.file_bytes for member in group)
        wide = group and (
            segment.summary().next_offset - group[0].base_offset > MAX_RELATIVE_OFFSET
        )
        lost = group and segment.base_offset != group[-1].summary().next_offset
        if group and (size > segment_bytes or wide or lost):
            yield group
            group = []
        group.append(segment)
    if group:
        yield group


def _clean_group(
    log: Log, group: list[SealedSegment], the_pass: _Pass, pause: Pause
) -> Replacement | None:
    """Write one `.cleaned` file; None where the result would be the same as what is there."""
    start, end = group[0].base_offset, group[-1].summary().next_offset
    index = SegmentIndex(start, log.config.index_interval_bytes)
    path = os.path.join(log.folder, range_name(start, end, CLEANED))
    output = _Output(log.fs.create(path), index)
    removed = 0
    try:
        for segment in group:
            for batch in _batches(log, segment):
                kept, gone = _clean_batch(batch, the_pass, end)
                removed += gone
                if kept is not None:
                    output.add(kept)
                pause()
        output.finish()
        index.next_offset = end  # also where the last batch is damaged and does not tell
    except BaseException:
        output.file.close()
        log.fs.remove(path)
        raise
    if removed == 0 and len(group) == 1:
        log.fs.remove(path)
        return None
    return Replacement(group, index, removed)


def _clean_batch(
    batch: memoryview, the_pass: _Pass, end: int
) -> tuple[memoryview | bytearray | None, int]:
    """What stays of a batch, and how many records went. At `end` a batch stays even if empty."""
    try:
        columns = decode_batch(batch)
        keep = the_pass.positions_to_keep(columns)
        removed = len(columns) - len(keep)
        if not keep and columns.next_offset != end:
            return None, removed
        return (batch, 0) if removed == 0 else (encode_compacted(columns, keep), removed)
    except SeglogError:
        return batch, 0


def _batches(log: Log, segment: SealedSegment) -> Iterator[memoryview]:
    """The batches of a segment; where a header is damaged, all up to the next sound one at once."""
    opened = log.cache.open(segment)
    view = opened.view[: opened.index.covered_bytes]
    position = 0
    least_offset = segment.base_offset
    while position < len(view):
        try:
            step = hop(view, position)
            after: int | None = position + step.length
            least_offset = step.next_offset
        except DamagedBatch:
            after = find_next_batch(view, position + 1, least_offset)
        if after is None or after > len(view):
            after = len(view)
        yield view[position:after]
        position = after


class _Output:
    """Gathers batches and writes them in large steps, indexing as it goes."""

    def __init__(self, file: File, index: SegmentIndex) -> None:
        self.file = file
        self.index = index
        self._parts: list[memoryview | bytearray] = []
        self._waiting = 0
        self._written = 0

    def add(self, batch: memoryview | bytearray) -> None:
        try:
            cover_batch(self.index, memoryview(batch), 0, at=self._written + self._waiting)
        except DamagedBatch:
            pass  # kept, but not found: a reader is told, and sent to what follows
        self._parts.append(batch)
        self._waiting += len(batch)
        if self._waiting >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        self.file.write(self._parts, self._written)
        self._written += self._waiting
        self._parts, self._waiting = [], 0

    def finish(self) -> None:
        self._flush()
        self.index.covered_bytes = self._written
        self.file.sync()
        self.file.close()
