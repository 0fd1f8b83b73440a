"""What a log must hold, as plain lists: the oracle beside the real log in the property tests.

The model knows less than the log where a crash may go either way: `uncertain` are the records that
an interrupted compaction may have removed, `log_starts` the log starts an interrupted deletion may
leave, and everything from `safe_end` on may be lost by a power cut, from the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from seglog.protocol.errors import (
    DuplicateSequence,
    ProducerFenced,
    SeglogError,
    SequenceGap,
    UnknownProducer,
)

from tests.logs import Stored


@dataclass
class Sequence:
    """Who sent a batch, for the answer to a second one."""

    producer: int
    epoch: int
    first: int
    end: int


@dataclass
class Written:
    """One batch that was given offsets; its append time is known once it was answered."""

    base: int
    records: list[Stored]
    sequence: Sequence | None
    append_time_us: int = 0

    @property
    def end(self) -> int:
        return self.base + len(self.records)


@dataclass
class Pass:
    """A compaction up to `end`; not certain: a crash came before it was answered."""

    end: int
    time_us: int
    is_certain: bool = False


@dataclass
class LogModel:
    written: list[Written] = field(default_factory=list)
    live: dict[int, Stored] = field(default_factory=dict)
    uncertain: set[int] = field(default_factory=set)
    log_starts: set[int] = field(default_factory=lambda: {0})
    durable_end: int = 0
    log_end: int = 0
    safe_end: int = 0
    passes: list[Pass] = field(default_factory=list)
    begins: set[int] = field(default_factory=lambda: {0})  # where the log begins, or began anew

    @property
    def log_start(self) -> int:
        (start,) = self.log_starts
        return start

    # --- appending -------------------------------------------------------------------------------

    def add(
        self, records: Iterable[tuple[int, bytes | None, bytes | None]], sequence: Sequence | None
    ) -> Written:
        """Give a batch its offsets."""
        numbered = [Stored(self.log_end + n, *record) for n, record in enumerate(records)]
        batch = Written(self.log_end, numbered, sequence)
        self.written.append(batch)
        self.live.update({record.offset: record for record in numbered})
        self.log_end = batch.end
        return batch

    def cut(self, end: int) -> None:
        """Forget everything from `end` on."""
        self.written = [batch for batch in self.written if batch.end <= end]
        self.live = {offset: record for offset, record in self.live.items() if offset < end}
        self.log_end = end

    def of_producer(self, producer: int) -> list[Written]:
        """The batches of a producer's newest epoch, in order."""
        sent = [
            batch
            for batch in self.written
            if batch.sequence and batch.sequence.producer == producer
        ]
        return [b for b in sent if b.sequence and b.sequence.epoch == _epoch(sent[-1])]

    def answer(self, sequence: Sequence) -> Written | type[SeglogError] | None:
        """What a batch gets: the first answer again, a refusal, or (None) offsets of its own."""
        sent = self.of_producer(sequence.producer)
        if not sent:
            return UnknownProducer if sequence.first else None
        last = sent[-1].sequence
        assert last is not None
        if sequence.epoch < last.epoch:
            return ProducerFenced
        if sequence.epoch > last.epoch:
            return SequenceGap if sequence.first else None
        if sequence.first == last.end:
            return None
        for batch in sent[-5:]:
            if batch.sequence == sequence:
                return batch
        return DuplicateSequence if sequence.first < last.end else SequenceGap

    # --- deleting --------------------------------------------------------------------------------

    def delete_below(self, start: int) -> None:
        self.log_starts = {start}
        self.live = {offset: record for offset, record in self.live.items() if offset >= start}

    def superseded(self, end: int) -> set[int]:
        """The offsets below `end` whose key has a later record there."""
        latest: dict[bytes, int] = {}
        for offset, record in self.live.items():
            if record.key is not None and offset < end:
                latest[record.key] = max(offset, latest.get(record.key, 0))
        return {
            offset
            for offset, record in self.live.items()
            if record.key is not None and offset < end and offset < latest[record.key]
        }

    def expired_tombstones(self, end: int, before_us: int, *, certain: bool) -> set[int]:
        """The tombstones below `end` that a pass, no later than `before_us`, has seen."""
        ends = [
            p.end for p in self.passes if p.time_us <= before_us and (p.is_certain or not certain)
        ]
        horizon = min(end, max(ends, default=0))
        return {
            offset
            for offset, record in self.live.items()
            if record.key is not None and record.value is None and offset < horizon
        }

    # --- reading ---------------------------------------------------------------------------------

    def readable(self) -> list[Stored]:
        return [
            record
            for offset, record in sorted(self.live.items())
            if self.log_start <= offset < self.durable_end
        ]

    def batch_ends(self) -> set[int]:
        return self.begins | {batch.end for batch in self.written}


def _epoch(batch: Written) -> int:
    assert batch.sequence is not None
    return batch.sequence.epoch
