"""A log on a simulated disk beside its model: what the state machine in tests/property is made of.

`LogUnderTest` drives the log as the broker does, knows what each batch must be answered, and after
each end of a process or cut of the power holds what came back against the model.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from seglog.protocol.batch import EncodeOptions, encode_batch
from seglog.protocol.errors import LogTruncated, SeglogError
from seglog.protocol.header import check_produced
from seglog.server.storage.compaction import Cleaned
from seglog.server.storage.config import LogConfig
from seglog.server.storage.log import Log
from seglog.server.storage.names import LOG_STATE
from seglog.server.storage.staged import AppendResult

from tests.log_model import LogModel, Pass, Sequence, Written
from tests.logs import NOON_US, Stored, files_in, folder_of, leave, open_on, read_all
from tests.simulated_disk import Fate, PowerCut, SimulatedDisk, keep_nothing

MAX_BOOKMARKS: Final = 20


class Spec(NamedTuple):
    """A batch to be made, once it is known what came before."""

    kind: str
    producer: int
    keys: list[bytes | None]
    is_tombstone: bool
    padding: int
    age_us: int
    codec: int


class Bookmark(NamedTuple):
    """A reader that has read up to `offset`; `is_lost`: some of that was cut since."""

    offset: int
    epoch: int
    is_lost: bool


class Cleaning(NamedTuple):
    """A compaction between its two halves, and the offsets it must and may remove."""

    cleaned: Cleaned
    due: set[int]
    allowed: set[int]
    this_pass: Pass


class LogUnderTest:
    """One log through its lives; every disk that a power cut leaves is a new one."""

    config: LogConfig
    log: Log

    def __init__(self) -> None:
        self.work = Path(tempfile.mkdtemp(prefix="seglog-machine-"))
        self.disks = 0
        self.disk = SimulatedDisk(self.work / "0")
        self.model = LogModel()
        self.now_us = NOON_US
        self.values = 0
        self.bookmarks: list[Bookmark] = []
        self.held: list[tuple[memoryview, bytes]] = []
        self.armed_fate = keep_nothing
        self.cleaning: Cleaning | None = None

    def create(self, config: LogConfig) -> None:
        self.config = config
        self.log = open_on(self.disk, config)

    def destroy(self) -> None:
        self.held.clear()
        if hasattr(self, "log"):
            leave(self.log)
            del self.log
        self.disk.close()
        shutil.rmtree(self.work)

    # --- appending -------------------------------------------------------------------------------

    def make(self, spec: Spec) -> tuple[bytearray, Written | type[SeglogError], bool]:
        """The batch, what it must get, and whether it is a first or a second answer."""
        sequence = self.sequence_of(spec)
        known = self.model.answer(sequence) if sequence else None
        records: list[tuple[int, bytes | None, bytes | None]] = []
        for key in spec.keys if sequence is None else spec.keys[: sequence.end - sequence.first]:
            self.values += 1
            value = None if spec.is_tombstone else b"%d" % self.values + bytes(spec.padding)
            records.append((self.now_us + spec.age_us + len(records), key, value))
        while sequence and len(records) < sequence.end - sequence.first:
            records.append(records[-1])
        options: EncodeOptions = {"codec": spec.codec}
        if sequence:
            options["producer_id"] = sequence.producer
            options["producer_epoch"] = sequence.epoch
            options["base_sequence"] = sequence.first
        times, keys, values = zip(*records, strict=True)
        batch = encode_batch(values, keys, times, **options)
        if known is not None:
            return batch, known, True
        return batch, self.model.add(records, sequence), False

    def sequence_of(self, spec: Spec) -> Sequence | None:
        if spec.kind == "plain":
            return None
        # Where the log began anew it may know some producers or none: others take their place.
        count, producer = len(spec.keys), spec.producer + 10 * len(self.model.begins)
        sent = self.model.of_producer(producer)
        if not sent:
            first = 5 if spec.kind == "gap" else 0
            return Sequence(producer, 1, first, first + count)
        last = sent[-1].sequence
        assert last is not None
        if spec.kind == "repeat":
            again = sent[-1 - spec.padding % min(5, len(sent))].sequence
            assert again is not None
            return again
        first, epoch = last.end, last.epoch
        if spec.kind == "old":
            first = 0
        elif spec.kind == "gap":
            first += 1
        elif spec.kind == "fenced":
            epoch -= 1
        elif spec.kind == "new epoch":
            first, epoch = 0, epoch + 1
        return Sequence(producer, epoch, first, first + count)

    def finish_group(self) -> None:
        """Sync what was written, where that comes before the next group, and publish it."""
        if self.config.syncs_before_ack:
            self.log.sync()
            self.model.safe_end = self.log.log_end
        self.log.publish()
        self.model.durable_end = self.log.log_end

    def write_group(self, group: list[Spec], *, finish: bool) -> None:
        """Stage and write a group as the broker does, and hold every answer against the model's."""
        self.finish_group()
        made = [self.make(spec) for spec in group]
        pending = [(batch, check_produced(batch)) for batch, _, _ in made]
        while pending:
            if len(pending) < len(made):
                self.finish_group()  # a group that goes on in the next segment is two groups
            staged = self.log.stage(pending, self.now_us)
            assert staged.taken > 0
            answered = made[len(made) - len(pending) :][: staged.taken]
            self.log.write(staged)
            for (_, expected, is_second), result in zip(answered, staged.results, strict=True):
                self.check_answer(result, expected, is_second)
            pending = pending[staged.taken :]
            self.note_sealed()
        assert self.log.log_end == self.model.log_end
        if finish:
            self.finish_group()

    def note_sealed(self) -> None:
        """What is sealed is on disk, and may be read."""
        sealed = self.log.active.base_offset
        self.model.safe_end = max(self.model.safe_end, sealed)
        self.model.durable_end = max(self.model.durable_end, sealed)

    def check_answer(self, result: object, expected: Written | type, is_second: bool) -> None:
        if isinstance(expected, type):
            assert type(result) is expected, f"{result!r} in place of {expected.__name__}"
            return
        assert isinstance(result, AppendResult), f"{result!r} for the batch at {expected.base}"
        assert result.base_offset == expected.base
        assert result.is_duplicate == is_second
        if not expected.append_time_us:
            assert result.append_time_us >= self.now_us
            expected.append_time_us = result.append_time_us
        assert result.append_time_us == expected.append_time_us

    # --- deleting --------------------------------------------------------------------------------

    def retention_due(self) -> int:
        """The log start that retention must bring, from what a description of the log says."""
        config, start, rows = self.config, self.log.log_start, self.log.describe()
        if not config.deletes_segments:
            return start
        left = sum(row.size_bytes for row in rows)
        for row in rows:
            last = max(
                (b for b in self.model.written if b.end <= row.end_offset),
                default=None,
                key=lambda batch: batch.base,
            )
            if not row.is_sealed or row.end_offset > self.log.durable_end or last is None:
                break
            left -= row.size_bytes
            too_old = last.append_time_us < self.now_us - config.retention_ms * 1000
            if not (
                (config.retention_bytes >= 0 and left >= config.retention_bytes)
                or (config.retention_ms >= 0 and too_old)
            ):
                break
            start = max(start, row.end_offset)
        return start

    # --- the end of a process --------------------------------------------------------------------

    def recover_from_a_cut(
        self, fate: Fate, steps: int | None = None, again: Fate = keep_nothing
    ) -> None:
        """Go on with the disk that a cut leaves; a second cut may come `steps` into recovery."""
        self.move_to_disk_after(fate)
        if steps is not None:
            self.disk.crash_at = steps
            try:
                leave(open_on(self.disk, self.config))
            except PowerCut:
                self.move_to_disk_after(again)
            self.disk.crash_at = None
        self.reopen(least_end=self.model.safe_end)
        self.model.safe_end = self.log.log_end

    def move_to_disk_after(self, fate: Fate) -> None:
        leave(self.log)
        self.disk.close()
        self.disks += 1
        after = self.disk.power_cut(self.work / str(self.disks), fate)
        shutil.rmtree(self.disk.root)
        self.disk = SimulatedDisk(after)

    def reopen(self, least_end: int) -> None:
        self.cleaning = None
        leave(self.log)
        self.disk.close()
        self.log = open_on(self.disk, self.config)
        self.check_recovered(least_end)
        first = self.without_epochs(files_in(folder_of(self.disk)))
        start, end = self.log.log_start, self.log.log_end
        leave(self.log)
        self.disk.close()
        self.log = open_on(self.disk, self.config)
        assert self.without_epochs(files_in(folder_of(self.disk))) == first, "opening twice differs"
        assert (self.log.log_start, self.log.log_end) == (start, end)
        assert read_all(self.log) == self.model.readable()

    def without_epochs(self, files: dict[str, bytes]) -> dict[str, bytes]:
        """With durability=os each start after a crash raises the epoch: the state is a new one."""
        if not self.config.syncs_before_ack:
            files.pop(LOG_STATE, None)
        return files

    def check_recovered(self, least_end: int) -> None:
        """What is there is a prefix with everything that was safe; the model goes on from it."""
        log, model = self.log, self.model
        end, start = log.log_end, log.log_start
        assert start in model.log_starts, f"log start {start}, not one of {model.log_starts}"
        assert log.durable_end == end
        assert end >= least_end, f"offsets from {end} are lost, up to {least_end} were safe"
        if log.active.base_offset == end == start > least_end:
            # A power cut took the tail below a log start that was safe: the log begins anew there.
            assert not self.config.syncs_before_ack
            model.begins.add(end)
            self.bookmarks = [b for b in self.bookmarks if b.offset <= least_end]
        assert end in model.batch_ends(), f"the log ends at {end}, inside a batch"
        self.bookmarks = [b._replace(is_lost=b.is_lost or b.offset > end) for b in self.bookmarks]
        model.cut(end)
        model.delete_below(start)
        model.durable_end = end
        if self.config.syncs_before_ack:
            model.safe_end = end  # readers see it
        self.adopt(read_all(log))

    def adopt(self, found: list[Stored]) -> None:
        """Take what is there for certain, where the model allows it."""
        model = self.model
        for record in found:
            assert model.live.get(record.offset) == record, f"{record}, not what was appended"
        unpublished = {o: record for o, record in model.live.items() if o >= model.durable_end}
        there = {record.offset: record for record in found} | unpublished
        missing = model.live.keys() - there.keys() - model.uncertain
        assert not missing, f"offsets {sorted(missing)} are gone"
        model.live = there
        model.uncertain = set()

    # --- always ----------------------------------------------------------------------------------

    def check(self) -> None:
        if hasattr(self, "log"):
            self.ends_are_in_order()
            self.slices_stay_as_they_were()
            self.readers_are_told_of_a_cut_and_of_nothing_else()
            self.place_bookmark(self.log.durable_end)

    def place_bookmark(self, offset: int) -> None:
        bookmark = Bookmark(offset, self.log.epoch, False)
        if bookmark not in self.bookmarks:
            self.bookmarks = [*self.bookmarks[-MAX_BOOKMARKS:], bookmark]

    def ends_are_in_order(self) -> None:
        assert self.log.log_start <= self.log.durable_end <= self.log.log_end
        assert self.log.log_start == self.model.log_start
        assert self.log.durable_end == self.model.durable_end
        assert self.log.log_end == self.model.log_end
        rows = self.log.describe()
        assert [row.start_offset for row in rows[1:]] == [row.end_offset for row in rows[:-1]]

    def slices_stay_as_they_were(self) -> None:
        assert all(slice_ == copy for slice_, copy in self.held)

    def readers_are_told_of_a_cut_and_of_nothing_else(self) -> None:
        for offset, epoch, is_lost in self.bookmarks:
            assert not (is_lost and self.config.syncs_before_ack), f"offset {offset} was durable"
            if is_lost:
                with pytest.raises(LogTruncated) as told:
                    self.log.check_epoch(offset, epoch)
                assert told.value.cut_offset < offset
            else:
                self.log.check_epoch(offset, epoch)
