"""What a log remembers of its idempotent producers: each one's epoch and last five batches.

    a batch with …                                   gets
    the next sequence                                appended
    a sequence among the last five                   its first answer again, no second append
    an older sequence                                DuplicateSequence
    a sequence further on                            SequenceGap
    a lower epoch                                    ProducerFenced
    a higher epoch, sequence 0                       appended; the old epoch is forgotten
    an unknown producer, sequence 0                  appended
    an unknown producer, any other sequence          UnknownProducer

A sequence counts records and wraps at 2^32. The state before any offset follows from the batch
headers below it; a snapshot only saves reading them again. Bounded: a producer that was silent for
`producer.expiry.ms` is forgotten, and so is the most silent one beyond MAX_PRODUCERS.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ...protocol.constants import SEQUENCE_MODULUS
from ...protocol.errors import DuplicateSequence, ProducerFenced, SequenceGap, UnknownProducer
from ...protocol.header import BatchHeader

REMEMBERED_BATCHES: Final = 5
MAX_PRODUCERS: Final = 50_000


class AppendedBatch(NamedTuple):
    """One batch of a producer, as far as answering it again needs."""

    base_sequence: int
    next_sequence: int
    base_offset: int
    append_time_us: int


class Producer(NamedTuple):
    """One producer: its epoch, and its last batches, oldest first. Replaced, never changed."""

    epoch: int
    batches: tuple[AppendedBatch, ...]


class ProducerState:
    """All producers of one log, the most silent one first."""

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, header: BatchHeader) -> AppendedBatch | None:
        """None: append it. A batch: it was appended before, answer with that. Or an error."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            if header.base_sequence:
                raise UnknownProducer(f"{_who(header)} is not known here")
            return None
        if header.producer_epoch < producer.epoch:
            raise ProducerFenced(f"{_who(header)}: epoch {producer.epoch} has taken over")
        if header.producer_epoch > producer.epoch:
            if header.base_sequence:
                raise SequenceGap(f"{_who(header)}: a new epoch begins with sequence 0")
            return None
        expected = producer.batches[-1].next_sequence
        if header.base_sequence == expected:
            return None
        return self._find_repeated(header, producer, expected)

    def _find_repeated(
        self, header: BatchHeader, producer: Producer, expected: int
    ) -> AppendedBatch:
        next_sequence = (header.base_sequence + header.offset_span) % SEQUENCE_MODULUS
        for batch in producer.batches:
            if (batch.base_sequence, batch.next_sequence) == (header.base_sequence, next_sequence):
                return batch
        # Half of the number circle lies behind: what is there was appended before.
        if (expected - header.base_sequence) % SEQUENCE_MODULUS < SEQUENCE_MODULUS // 2:
            raise DuplicateSequence(f"{_who(header)}: {expected} comes next")
        raise SequenceGap(f"{_who(header)}: {expected} comes next")

    def add(self, header: BatchHeader, base_offset: int, append_time_us: int) -> None:
        """Remember an appended batch. The header may also be one read back from the log."""
        batch = AppendedBatch(
            header.base_sequence,
            (header.base_sequence + header.offset_span) % SEQUENCE_MODULUS,
            base_offset,
            append_time_us,
        )
        producer = self._producers.pop(header.producer_id, None)
        known = producer.batches if producer and producer.epoch == header.producer_epoch else ()
        self._producers[header.producer_id] = Producer(
            header.producer_epoch, (*known[-(REMEMBERED_BATCHES - 1) :], batch)
        )
        if len(self._producers) > MAX_PRODUCERS:
            del self._producers[next(iter(self._producers))]

    def remember(self, producer_id: int) -> Producer | None:
        """What is known of a producer now, for `restore`."""
        return self._producers.get(producer_id)

    def restore(self, producer_id: int, producer: Producer | None) -> None:
        """Take back what was added since `remember`."""
        if producer is None:
            self._producers.pop(producer_id, None)
        else:
            self._producers[producer_id] = producer

    def expire(self, before_us: int) -> int:
        """Forget the producers that were silent since `before_us`; how many went."""
        # All are looked at: one that was taken back (`restore`) stands later than its time tells.
        silent = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.batches[-1].append_time_us < before_us
        ]
        for producer_id in silent:
            del self._producers[producer_id]
        return len(silent)

    def dump(self) -> list[list[object]]:
        """For a snapshot: `[[id, epoch, [[sequence, next, offset, time], …]], …]`."""
        return [
            [producer_id, producer.epoch, [list(batch) for batch in producer.batches]]
            for producer_id, producer in self._producers.items()
        ]

    @classmethod
    def load(cls, dumped: Iterable[tuple[int, int, list[list[int]]]]) -> ProducerState:
        state = cls()
        for producer_id, epoch, batches in dumped:
            state._producers[producer_id] = Producer(
                epoch, tuple(AppendedBatch._make(batch) for batch in batches)
            )
        return state


def _who(header: BatchHeader) -> str:
    return (
        f"producer {header.producer_id}, epoch {header.producer_epoch}, "
        f"sequence {header.base_sequence}"
    )
