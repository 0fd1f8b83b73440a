"""Group commit: the batches of many producers, for many logs, made durable together.

    stage      each log gives its batches their offsets
    journal    one sync for all the small ones
    write      one call for each log
    sync       the logs that are not in the journal
    publish    readers see it, and producers may be answered

What is durable how:

    `durability=os`                            written
    a log that brings SYNC_IN_PLACE_BYTES      written and synced in place
    the only small one                         written and synced in place
    several small ones                         journal, one sync for all, then written

An error of one log is that log's alone: the others of the group are answered as if it were not
there. No thread, no loop: the writer calls this in its own, and a test step by step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ..protocol.constants import KIB
from ..protocol.errors import InternalError, SeglogError
from ..protocol.header import BatchHeader, Buffer
from .partition import Partition
from .storage.journal import Entry, Journal, Kept
from .storage.log import Log
from .storage.staged import AppendResult, Staged

logger = logging.getLogger(__name__)

SYNC_IN_PLACE_BYTES: Final = 256 * KIB

Outcome = AppendResult | SeglogError


class Append:
    """One batch for one partition; `done` is called in the loop with its outcome."""

    __slots__ = ("batch", "done", "header", "outcome", "partition")

    def __init__(
        self,
        partition: Partition,
        batch: Buffer,
        header: BatchHeader,
        done: Callable[[Outcome], None],
    ) -> None:
        self.partition = partition
        self.batch = batch
        self.header = header
        self.done = done
        self.outcome: Outcome | None = None


class Committed(NamedTuple):
    """What became of a group: every append that is done has its outcome."""

    done: list[Append]
    left_over: list[Append]  # they go into their log's next segment, and first into the next group
    grown: dict[Partition, int]  # bytes that can be read now


class _Share(NamedTuple):
    """One log's part of a group."""

    log: Log
    staged: Staged
    appends: list[Append]


_Shares = dict[Partition, _Share]


class GroupCommit:
    """Called by one at a time."""

    def __init__(self, journal: Journal, clock_us: Callable[[], int]) -> None:
        self._journal = journal
        self._clock_us = clock_us

    def commit(self, group: list[Append]) -> Committed:
        """Write a group and make it durable. What fails is in the outcomes: this raises nothing."""
        by_partition: dict[Partition, list[Append]] = {}
        for append in group:
            by_partition.setdefault(append.partition, []).append(append)
        left_over: list[Append] = []
        grown: dict[Partition, int] = {}
        try:
            self._make_durable(self._stage(by_partition, left_over), grown)
        except Exception as error:
            logger.exception("a group of %d appends failed", len(group))
            _give_up(by_partition, left_over, error)
        waiting = set(map(id, left_over))
        done = [append for append in group if id(append) not in waiting] if waiting else group
        return Committed(done, left_over, grown)

    def _stage(
        self, by_partition: dict[Partition, list[Append]], left_over: list[Append]
    ) -> _Shares:
        now_us = self._clock_us()
        shares: _Shares = {}
        for partition, appends in by_partition.items():
            try:
                log = partition.log
                staged = log.stage([(append.batch, append.header) for append in appends], now_us)
            except SeglogError as error:
                _set_outcomes(appends, error)
                continue
            shares[partition] = _Share(log, staged, appends[: staged.taken])
            left_over += appends[staged.taken :]
        return shares

    def _make_durable(self, shares: _Shares, grown: dict[Partition, int]) -> None:
        small = {
            partition: share
            for partition, share in shares.items()
            if share.log.config.syncs_before_ack and 0 < share.staged.length < SYNC_IN_PLACE_BYTES
        }
        small_kept = self._write_journal(small) if len(small) > 1 else Kept.NO
        for partition, (log, staged, appends) in shares.items():
            kept = small_kept if partition in small else Kept.NO
            try:
                log.write(staged, may_be_replayed=kept is not Kept.NO)
                if staged.length and log.config.syncs_before_ack and kept is not Kept.YES:
                    log.sync()
            except SeglogError as error:
                _set_outcomes(appends, error)
                continue
            log.publish()
            if staged.length:
                grown[partition] = staged.length
            _count(partition, staged)
            for append, outcome in zip(appends, staged.results, strict=True):
                append.outcome = outcome

    def _write_journal(self, small: _Shares) -> Kept:
        return self._journal.append(
            [
                Entry(
                    partition.topic_id,
                    partition.number,
                    staged.segment.base_offset,
                    staged.position,
                    staged.length,
                    staged.buffers,
                    log,
                )
                for partition, (log, staged, _) in small.items()
            ]
        )


def _set_outcomes(appends: Sequence[Append], outcome: Outcome) -> None:
    for append in appends:
        append.outcome = outcome


def _count(partition: Partition, staged: Staged) -> None:
    """A log's share of a group at once: offsets tell the records, no batch is looked at."""
    batches = len(staged.batches)
    if batches:
        first_offset = staged.batches[0][0]
        partition.traffic.appended(staged.end_offset - first_offset, batches, staged.length)
    if batches < len(staged.results):
        repeated = [r for r in staged.results if isinstance(r, AppendResult) and r.is_duplicate]
        partition.traffic.repeated(len(repeated))


def _give_up(
    by_partition: dict[Partition, list[Append]], left_over: list[Append], error: Exception
) -> None:
    """After a defect of our own nobody knows how far a log got: it takes no writes until a restart.

    To go on would give offsets out twice, and answer a producer's second try as if the first were
    there.
    """
    left_over.clear()
    for partition, appends in by_partition.items():
        unanswered = [append for append in appends if append.outcome is None]
        if unanswered:
            _set_outcomes(unanswered, InternalError("the writer failed"))
            if partition.log_or_none is not None:
                partition.log_or_none.take_offline(error, "writing a group")
