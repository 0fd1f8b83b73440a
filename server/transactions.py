"""Exactly-once publishing: batches are staged outside their topics, then published by one decision.

A transaction is a name (a Spark query, say) whose steps are numbered: 0, 1, 2, … Each step is
published once, whoever asks for it however often.

    stage    batches go to the internal topic `__staged`, durable, where no reader sees them;
    several
             attempts at the same step may stage, and what nobody commits expires there
    commit   1  an intent goes to `__transactions`: this step, these staged batches     the decision
             2  the batches are appended to their topics, with the transaction's own producer id,
                the step as producer epoch, and sequences from 0
             3  the step is marked as done

A crash before 1 leaves nothing; after 1 the broker finishes by itself at its next start: what was
appended already is known by its sequence and not appended again. A second commit of a step finds it
done, or finishes the intent it finds, whatever it names itself; a commit of an earlier step changes
nothing. So an attempt that comes late is without effect, and readers need no isolation level.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgpack

from ..protocol.batch import decode_batch
from ..protocol.constants import MAX_BATCH_BYTES, SEQUENCE_MODULUS
from ..protocol.errors import (
    DuplicateSequence,
    LimitExceeded,
    ProducerFenced,
    SeglogError,
    StagedDataGone,
    StepCommitted,
    UnknownPartition,
    UnknownTopic,
)
from ..protocol.header import Buffer, check_produced, split_batches
from ..protocol.produce_frame import renumber
from ..protocol.records import Record
from .group_commit import Outcome
from .internal_topic import InternalTopic

if TYPE_CHECKING:
    from .app import Broker

logger = logging.getLogger(__name__)

STAGED_TOPIC: Final = "__staged"
TRANSACTIONS_TOPIC: Final = "__transactions"
_STAGED_SEGMENT_MS: Final = 10 * 60 * 1000


class Transaction(NamedTuple):
    """How far a transaction is. Replaced, never changed."""

    producer_id: int
    step: int
    is_done: bool
    positions: tuple[int, ...]  # in `__staged`, of the step's batches
    time_us: int


class StagedBatch(NamedTuple):
    """A batch that waits for its commit."""

    topic: str
    partition: int
    batch: bytes


class Transactions:
    """Belongs to the loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._table: dict[str, Transaction] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._beside: list[asyncio.Task[None]] = []
        self.finished = asyncio.Event()  # what an earlier broker decided is published
        config = broker.config
        self._log = InternalTopic(broker.topics, broker.writer, TRANSACTIONS_TOPIC)
        self._staged = InternalTopic(
            broker.topics,
            broker.writer,
            STAGED_TOPIC,
            {
                "cleanup.policy": "delete",
                "retention.ms": config.staged_retention_ms,
                "segment.ms": min(_STAGED_SEGMENT_MS, config.staged_retention_ms),
                "max.batch.bytes": MAX_BATCH_BYTES,
            },
        )

    def load(self) -> None:
        """Read the table; called before the first connection."""
        for key, value in self._log.load().items():
            producer_id, step, is_done, positions, time_us = msgpack.unpackb(value)
            self._table[key.decode()] = Transaction(
                producer_id, step, is_done, tuple(positions), time_us
            )

    def start(self) -> None:
        """Finish, in the background, the steps that a crash left behind their decision."""
        self._beside = [
            asyncio.create_task(self._finish_all()),
            asyncio.create_task(self._expire_for_ever()),
        ]

    async def stop(self) -> None:
        """May be called twice; a step that is not finished is finished at the next start."""
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)

    def last_step(self, name: str) -> int:
        """The last step that was decided; -1 where there is none."""
        known = self._table.get(name)
        return -1 if known is None else known.step

    def snapshot(self) -> dict[str, Transaction]:
        """The table as it is now. One step: any thread may ask."""
        return self._table.copy()

    # --- staging ---------------------------------------------------------------------------------

    async def stage(self, name: str, step: int, topic: str, partition: int, batch: Buffer) -> int:
        """Keep a batch, durably, out of sight; returns its position, for the commit."""
        if step <= self.last_step(name):
            raise StepCommitted(f"step {step} of {name} was committed before")
        self._broker.topics.partition(topic, partition)
        check_produced(batch)
        key = msgpack.packb([name, step, topic, partition])
        result = await self._staged.append([key], [bytes(batch)], self._now_us())
        self._broker.metrics.staged_batches += 1
        return result.base_offset

    def _read_staged(self, name: str, step: int, position: int) -> StagedBatch:
        """The batch at a position. It must be this step's: nobody publishes another one's data."""
        log = self._staged.log
        if log is None or not log.log_start <= position < log.durable_end:
            raise StagedDataGone(f"nothing is staged at {position} for step {step} of {name}")
        (batch,) = split_batches(log.read(position, 1))
        record: Record = decode_batch(batch).records()[0]
        assert record.key is not None
        assert record.value is not None
        staged_name, staged_step, topic, partition = msgpack.unpackb(record.key)
        if (staged_name, staged_step) != (name, step) or record.offset != position:
            raise StagedDataGone(f"what is staged at {position} is not of step {step} of {name}")
        return StagedBatch(topic, partition, record.value)

    # --- committing ------------------------------------------------------------------------------

    async def commit(self, name: str, step: int, positions: Sequence[int]) -> bool:
        """Publish a step; True where this call did, False where it was done before."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        async with lock:
            known = self._table.get(name)
            if known is not None and not known.is_done:
                await self._publish(name, known)  # decided before: that decision stands
                known = self._table[name]
            if known is not None and step <= known.step:
                return False
            decided = await self._decide(name, step, positions, known)
            await self._publish(name, decided)
            return True

    async def _decide(
        self, name: str, step: int, positions: Sequence[int], known: Transaction | None
    ) -> Transaction:
        limit = self._broker.config.max_transactions
        if known is None and len(self._table) >= limit:
            raise LimitExceeded(f"max.transactions allows {limit}")
        for position in positions:
            staged = await self._in_reader(name, step, position)
            self._broker.topics.partition(staged.topic, staged.partition)
        if known is None:
            producer_id = await self._broker.writer.run(self._broker.producer_ids.take)
        else:
            producer_id = known.producer_id
        decided = Transaction(producer_id, step, False, tuple(positions), self._now_us())
        await self.save(name, decided)
        return decided

    async def _publish(self, name: str, decided: Transaction) -> None:
        """Append what was decided, as far as it is not there yet, and mark the step as done."""
        sequences: dict[tuple[str, int], int] = {}
        outcomes: list[asyncio.Future[Outcome]] = []
        for position in decided.positions:
            staged = await self._in_reader(name, decided.step, position)
            target = (staged.topic, staged.partition)
            try:
                partition = self._broker.topics.partition(*target)
            except (UnknownTopic, UnknownPartition) as gone:
                logger.error("step %d of %s: %s", decided.step, name, gone.what)
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
        for outcome in outcomes:
            result = await outcome
            # Fenced: a later step was published here, and this one before it.
            if isinstance(result, SeglogError) and not isinstance(
                result, DuplicateSequence | ProducerFenced
            ):
                raise result
        await self.save(name, decided._replace(is_done=True, positions=()))
        self._broker.metrics.published_steps += 1

    async def _in_reader(self, name: str, step: int, position: int) -> StagedBatch:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._broker.readers, self._read_staged, name, step, position
        )

    async def save(self, name: str, transaction: Transaction) -> None:
        """Make it durable, then known."""
        value = msgpack.packb(list(transaction))
        await self._log.append([name.encode()], [value], transaction.time_us)
        self._table[name] = transaction

    async def _finish_all(self) -> None:
        for name, transaction in list(self._table.items()):
            if transaction.is_done:
                continue
            try:
                await self.commit(name, transaction.step, ())
            except SeglogError as error:
                logger.error(
                    "step %d of %s could not be finished: %s", transaction.step, name, error
                )
        self.finished.set()

    async def _expire_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._broker.config.housekeeping_interval_ms / 1000)
            try:
                await self.expire()
            except SeglogError as error:
                logger.error("transactions could not be forgotten: %s", error)

    async def expire(self) -> int:
        """Forget the transactions that were silent for too long; how many went."""
        oldest_us = self._now_us() - self._broker.config.transaction_retention_ms * 1000
        silent = [
            name
            for name, known in self._table.items()
            if known.is_done and known.time_us < oldest_us
        ]
        if silent:
            keys = [name.encode() for name in silent]
            await self._log.append(keys, [None] * len(keys), self._now_us())
            for name in silent:
                self._table.pop(name, None)
                self._locks.pop(name, None)
        return len(silent)

    def _now_us(self) -> int:
        return time.time_ns() // 1000
