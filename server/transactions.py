"""Exactly-once publishing: batches are staged outside their topics, then published by one decision.

A transaction is a name (a Spark query, say) whose steps are numbered: 0, 1, 2, … Each step is
published once, whoever asks for it however often.

    stage    batches go to the internal topic `__staged`, durable, where no reader sees them (see
             staging.py); several attempts at the same step may stage
    commit   1  an intent goes to `__transactions`: this step, these staged batches     the decision
             2  the batches are appended to their topics, with the transaction's own producer id,
                the step as producer epoch, and sequences from 0
             3  the step is marked as done

A crash before 1 leaves nothing; after 1 the broker finishes by itself, at its next start or, where
a disk was full or a partition offline, in the next round of housekeeping: what was appended already
is known by its sequence and not appended again. A second commit of a step finds it done, or
finishes the intent it finds, whatever it names itself; a commit of an earlier step changes nothing.
So an attempt that comes late is without effect, and readers need no isolation level.

Bounded: transactions by `max.transactions`, what is in memory of a step that is published by two
windows of staging.py, steps that are published at a time by MAX_PUBLISHING.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

import msgpack

from ..protocol.constants import SEQUENCE_MODULUS
from ..protocol.errors import (
    BatchTooLarge,
    DuplicateSequence,
    LimitExceeded,
    ProducerFenced,
    SeglogError,
    StepCommitted,
    UnknownPartition,
    UnknownTopic,
)
from ..protocol.header import Buffer, check_produced
from ..protocol.produce_frame import renumber
from .group_commit import Outcome
from .internal_topic import InternalTopic
from .staging import StagedBatch, Staging
from .turns import Turns

if TYPE_CHECKING:
    from .app import Broker

logger = logging.getLogger(__name__)

TRANSACTIONS_TOPIC: Final = "__transactions"
MAX_PUBLISHING: Final = 4
MAX_STEP_RECORDS: Final = SEQUENCE_MODULUS // 2 - 1  # a partition: beyond, a sequence looks old
_FORGOTTEN_AT_ONCE: Final = 1_000


class Transaction(NamedTuple):
    """How far a transaction is. Replaced, never changed."""

    producer_id: int
    step: int
    is_done: bool
    positions: tuple[int, ...]  # in `__staged`, of the step's batches
    time_us: int
    is_last: bool = False  # no step follows: it need not be remembered for long


class Transactions:
    """Belongs to the loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._table: dict[str, Transaction] = {}
        self._turns = Turns()
        self._publishing = asyncio.Semaphore(MAX_PUBLISHING)
        self._beside: asyncio.Task[None] | None = None
        self._commits: set[asyncio.Task[bool]] = set()
        self.finished = asyncio.Event()  # what an earlier broker decided is published
        self.staging = Staging(broker)
        self._log = InternalTopic(broker.topics, broker.writer, TRANSACTIONS_TOPIC)

    def load(self) -> None:
        """Read the table; called before the first connection."""
        for key, value in self._log.load().items():
            producer_id, step, is_done, positions, time_us, *more = msgpack.unpackb(value)
            self._table[key.decode()] = Transaction(
                producer_id, step, is_done, tuple(positions), time_us, *more
            )
        self.staging.load(self._is_published)

    def start(self) -> None:
        """Finish, in the background, the steps that a crash left behind their decision."""
        self._beside = asyncio.create_task(self._tend_for_ever())

    async def stop(self) -> None:
        """May be called twice; a step that is not finished is finished at the next start."""
        if self._beside is not None:
            self._beside.cancel()
            await asyncio.gather(self._beside, return_exceptions=True)
        if self._commits:
            await asyncio.wait(
                self._commits, timeout=self._broker.config.shutdown_timeout_ms / 1000
            )
        for task in self._commits:
            task.cancel()
        await asyncio.gather(*self._commits, return_exceptions=True)

    def last_step(self, name: str) -> int:
        """The last step that was decided; -1 where there is none."""
        known = self._table.get(name)
        return -1 if known is None else known.step

    def snapshot(self) -> dict[str, Transaction]:
        """The table as it is now. One step: any thread may ask."""
        return self._table.copy()

    def _is_published(self, name: str, step: int) -> bool:
        known = self._table.get(name)
        return known is not None and (step < known.step or (step == known.step and known.is_done))

    # --- staging ---------------------------------------------------------------------------------

    async def stage(self, name: str, step: int, topic: str, partition: int, batch: Buffer) -> int:
        """Keep a batch, durably, out of sight; returns its position, for the commit."""
        self._check_open(name, step)
        position, waiting = await self.staging.stage(
            name, step, topic, partition, batch, self._now_us()
        )
        self._check_open(name, step)  # decided while this was written: what came late is not kept
        self.staging.keep(name, step, position, waiting, self._now_us())
        self._broker.metrics.staged_batches += 1
        return position

    def _check_open(self, name: str, step: int) -> None:
        if step <= self.last_step(name):
            raise StepCommitted(f"step {step} of {name} was committed before")

    # --- committing ------------------------------------------------------------------------------

    async def commit(
        self, name: str, step: int, positions: Sequence[int], *, is_last: bool = False
    ) -> bool:
        """Publish a step; True where this call did, False where it was done before.

        A caller that goes away does not stop what was decided.
        """
        task = asyncio.create_task(self._commit(name, step, positions, is_last))
        self._commits.add(task)
        task.add_done_callback(self._forget_commit)
        return await asyncio.shield(task)

    def _forget_commit(self, task: asyncio.Task[bool]) -> None:
        self._commits.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("a commit failed: %s", error)  # told to its caller, if he is still there

    async def _commit(self, name: str, step: int, positions: Sequence[int], is_last: bool) -> bool:
        async with self._turns.of(name):
            known = self._table.get(name)
            if known is not None and not known.is_done:
                await self._publish(name, known)  # decided before: that decision stands
                known = self._table[name]
            if known is not None and step <= known.step:
                return False
            decided = await self._decide(name, step, positions, is_last, known)
            await self._publish(name, decided)
            return True

    async def _decide(
        self,
        name: str,
        step: int,
        positions: Sequence[int],
        is_last: bool,
        known: Transaction | None,
    ) -> Transaction:
        limit = self._broker.config.max_transactions
        if known is None and len(self._table) >= limit:
            raise LimitExceeded(f"max.transactions allows {limit}")
        self._check_targets(name, step, positions)
        if known is None:
            producer_id = await self._broker.writer.run(self._broker.producer_ids.take)
        else:
            producer_id = known.producer_id
        decided = Transaction(producer_id, step, False, tuple(positions), self._now_us(), is_last)
        await self.save(name, decided)
        return decided

    def _check_targets(self, name: str, step: int, positions: Sequence[int]) -> None:
        """Refuse now what could not be published after the decision."""
        records: Counter[tuple[str, int]] = Counter()
        longest: Counter[tuple[str, int]] = Counter()
        for waiting in self.staging.check(name, step, positions):
            target = (waiting.topic, waiting.partition)
            records[target] += waiting.record_count
            longest[target] = max(longest[target], waiting.length)
        for target, count in records.items():
            limit = self._broker.topics.partition(*target).log.config.max_batch_bytes
            where = f"step {step} of {name}, {target[0]}/{target[1]}"
            if longest[target] > limit:
                raise BatchTooLarge(f"{where}: a batch of {longest[target]} bytes, {limit} allowed")
            if count > MAX_STEP_RECORDS:
                raise LimitExceeded(f"{where}: {count} records, a step takes {MAX_STEP_RECORDS}")

    async def _publish(self, name: str, decided: Transaction) -> None:
        """Append what was decided, as far as it is not there yet, and mark the step as done.

        The next window is read while the last one is written. Where an append fails, later ones of
        that partition are refused as a gap: order holds, and the next attempt begins at the first.
        """
        loop = asyncio.get_running_loop()
        sequences: dict[tuple[str, int], int] = {}
        before: list[asyncio.Future[Outcome]] = []
        async with self._publishing:
            for window in self.staging.windows(name, decided.step, decided.positions):
                batches = await loop.run_in_executor(
                    self._broker.readers, self.staging.read, name, decided.step, window
                )
                outcomes = self._append(name, decided, batches, sequences)
                await _settle(before)
                before = outcomes
            await _settle(before)
        await self.save(name, decided._replace(is_done=True, positions=()))
        self.staging.release(name, decided.step)
        self._broker.metrics.published_steps += 1

    def _append(
        self,
        name: str,
        decided: Transaction,
        batches: Sequence[StagedBatch],
        sequences: dict[tuple[str, int], int],
    ) -> list[asyncio.Future[Outcome]]:
        outcomes = []
        for staged in batches:
            target = (staged.topic, staged.partition)
            try:
                partition = self._broker.topics.partition(*target)
            except (UnknownTopic, UnknownPartition) as gone:
                logger.error(
                    "step %d of %s: %s: its records are dropped", decided.step, name, gone.what
                )
                continue
            sequence = sequences.get(target, 0)
            batch = renumber(
                staged.batch,
                producer_id=decided.producer_id,
                producer_epoch=decided.step,
                base_sequence=sequence,
            )
            header = check_produced(batch)
            sequences[target] = (sequence + header.offset_span) % SEQUENCE_MODULUS
            outcomes.append(self._broker.writer.append(partition, batch, header))
        return outcomes

    async def save(self, name: str, transaction: Transaction) -> None:
        """Make it durable, then known."""
        value = msgpack.packb(list(transaction))
        await self._log.append([name.encode()], [value], transaction.time_us)
        self._table[name] = transaction

    # --- beside traffic --------------------------------------------------------------------------

    async def _tend_for_ever(self) -> None:
        while True:
            await self._finish_decided()
            self.finished.set()
            await asyncio.sleep(self._broker.config.housekeeping_interval_ms / 1000)
            try:
                await self.expire()
                await self.staging.trim()
            except (SeglogError, OSError) as error:
                logger.error("transactions could not be tidied up: %s", error)

    async def _finish_decided(self) -> None:
        for name, transaction in list(self._table.items()):
            if transaction.is_done or self._turns.is_taken(name):
                continue
            try:
                await self._commit(name, transaction.step, (), False)
            except (SeglogError, OSError) as error:
                logger.error(
                    "step %d of %s could not be finished: %s", transaction.step, name, error
                )

    async def expire(self) -> int:
        """Forget the transactions and the staged steps that were silent for too long; how many
        transactions went."""
        config, now_us = self._broker.config, self._now_us()
        staged_before_us = now_us - config.staged_retention_ms * 1000
        silent_before_us = now_us - config.transaction_retention_ms * 1000
        silent = [
            name
            for name, known in self._table.items()
            if known.is_done
            and known.time_us < (staged_before_us if known.is_last else silent_before_us)
            and not self._turns.is_taken(name)
        ]
        for start in range(0, len(silent), _FORGOTTEN_AT_ONCE):
            await self._forget(silent[start : start + _FORGOTTEN_AT_ONCE])
        self.staging.expire(staged_before_us, self._is_needed)
        return len(silent)

    async def _forget(self, names: Sequence[str]) -> None:
        """Their turns are held meanwhile: a commit that comes now waits, and then begins anew."""
        async with AsyncExitStack() as turns:
            held = [name for name in names if not self._turns.is_taken(name)]
            for name in held:
                await turns.enter_async_context(self._turns.of(name))
            await self._log.append(
                [name.encode() for name in held], [None] * len(held), self._now_us()
            )
            for name in held:
                del self._table[name]

    def _is_needed(self, name: str, step: int) -> bool:
        """Whether a decision names what is staged for this step, or is being made."""
        known = self._table.get(name)
        decided = known is not None and not known.is_done and known.step == step
        return decided or self._turns.is_taken(name)

    def _now_us(self) -> int:
        return time.time_ns() // 1000


async def _settle(outcomes: Sequence[asyncio.Future[Outcome]]) -> None:
    """Wait for all; raise the first that is not in its log."""
    results = [await outcome for outcome in outcomes]
    for result in results:
        # Fenced: a later step was published here, and this one before it.
        if isinstance(result, SeglogError) and not isinstance(
            result, DuplicateSequence | ProducerFenced
        ):
            raise result
