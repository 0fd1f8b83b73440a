"""Batches that wait, durable and out of sight, for the commit of their step: the topic `__staged`.

    key    msgpack [transaction, step, topic, partition]
    value  the batch, as it was produced
    offset the position that names it in a commit

What is staged goes when its step is published, with all that other attempts at that step staged;
or `staged.retention.ms` after the last sign of life of a step that nobody commits. It never goes
while a decision names it, however long that takes. Files go from the front, whole segments: so a
step that nobody ends keeps what was staged after it on disk too, until it expires.

What waits is known in memory, without its bytes, and bounded by `max.staged.batches`: a commit is
checked without reading, and a start reads the keys alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import msgpack

from ..protocol.batch import decode_batch
from ..protocol.constants import HEADER_BYTES, MAX_BATCH_BYTES, MIB
from ..protocol.errors import (
    BadRequest,
    DamagedLog,
    LimitExceeded,
    SeglogError,
    StagedDataGone,
)
from ..protocol.header import Buffer, check_produced, split_batches, unpack_header
from .internal_topic import InternalTopic
from .storage.config import UNLIMITED, LogConfig, config_values
from .storage.log import Log
from .storage.segment import SealedSegment

if TYPE_CHECKING:
    from .app import Broker

logger = logging.getLogger(__name__)

STAGED_TOPIC: Final = "__staged"

WINDOW_BYTES: Final = 4 * MIB  # of staged batches that are in memory together, or one if larger
WINDOW_BATCHES: Final = 256
_SEGMENT_MS: Final = 10 * 60 * 1000  # what waits in the active segment keeps it on disk
_READ_BYTES: Final = 1 * MIB

#: All of them, so that no default for users' topics reaches this one. Retention is ours.
_SETTINGS: Final = config_values(
    LogConfig(retention_ms=UNLIMITED, segment_ms=_SEGMENT_MS, max_batch_bytes=MAX_BATCH_BYTES)
)


class Waiting(NamedTuple):
    """What is known of a staged batch without reading it."""

    topic: str
    partition: int
    length: int
    record_count: int


class StagedBatch(NamedTuple):
    """A batch that was read back, for its topic."""

    topic: str
    partition: int
    batch: bytes


class _Step:
    """What all attempts at one step have staged, by position."""

    __slots__ = ("batches", "last_time_us")

    def __init__(self) -> None:
        self.batches: dict[int, Waiting] = {}
        self.last_time_us = 0


class Staging:
    """Belongs to the loop; only `read` is called by reader threads."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topic = InternalTopic(broker.topics, broker.writer, STAGED_TOPIC, _SETTINGS)
        self._steps: dict[str, dict[int, _Step]] = {}
        self._appending: dict[int, int] = {}  # under way -> a position that it cannot be below
        self._last_append = 0
        self.count = 0

    def load(self, is_done: Callable[[str, int], bool]) -> None:
        """Learn what waits from the keys; called before the first connection."""
        log = self._topic.log
        if log is None:
            return
        offset = log.log_start
        while offset < log.durable_end:
            try:
                for batch in split_batches(log.read(offset, _READ_BYTES)):
                    offset = self._load_one(batch, is_done)
            except (SeglogError, ValueError) as error:
                # A commit of what cannot be read is refused; the others must not suffer.
                logger.error("%s: what is staged at %d is lost: %s", log.name, offset, error)
                resume = error.resume_offset if isinstance(error, DamagedLog) else -1
                offset = max(resume, offset + 1)

    def _load_one(self, batch: memoryview, is_done: Callable[[str, int], bool]) -> int:
        # Without its checksum: that would read every byte. Who publishes it makes it.
        columns = decode_batch(batch, verify=False)
        name, step, topic, partition = msgpack.unpackb(columns.keys[0])
        values = columns.raw.values
        if values is None:
            raise ValueError("no value")
        if not is_done(name, step):
            header = unpack_header(values.data[:HEADER_BYTES])
            waiting = Waiting(topic, partition, len(values.data), header.record_count)
            self._add(name, step, columns.base_offset, waiting, columns.header.append_time_us)
        return columns.next_offset

    # --- staging ---------------------------------------------------------------------------------

    async def stage(
        self, name: str, step: int, topic: str, partition: int, batch: Buffer, now_us: int
    ) -> tuple[int, Waiting]:
        """Make a batch durable; `keep` it then, if its step can still be committed."""
        limit = self._broker.config.max_staged_batches
        if self.count + len(self._appending) >= limit:
            raise LimitExceeded(f"{limit} batches are staged, max.staged.batches allows no more")
        target = self._broker.topics.partition(topic, partition).log
        header = check_produced(batch, max_bytes=target.config.max_batch_bytes)
        key = msgpack.packb([name, step, topic, partition])
        self._last_append = number = self._last_append + 1
        log = self._topic.log
        self._appending[number] = 0 if log is None else log.durable_end
        try:
            result = await self._topic.append([key], [bytes(batch)], now_us)
        finally:
            del self._appending[number]
        return result.base_offset, Waiting(topic, partition, len(batch), header.record_count)

    def keep(self, name: str, step: int, position: int, waiting: Waiting, now_us: int) -> None:
        """Let a commit find what `stage` wrote."""
        self._add(name, step, position, waiting, now_us)

    def _add(self, name: str, step: int, position: int, waiting: Waiting, time_us: int) -> None:
        found = self._steps.setdefault(name, {}).setdefault(step, _Step())
        found.batches[position] = waiting
        found.last_time_us = max(found.last_time_us, time_us)
        self.count += 1

    # --- committing ------------------------------------------------------------------------------

    def check(self, name: str, step: int, positions: Sequence[int]) -> list[Waiting]:
        """What waits at these positions. All must be this step's: nobody publishes another's."""
        if len(set(positions)) != len(positions):
            raise BadRequest("positions: one is named twice")
        found = self._steps.get(name, {}).get(step)
        batches = {} if found is None else found.batches
        try:
            return [batches[position] for position in positions]
        except KeyError as missing:
            raise StagedDataGone(
                f"nothing is staged at {missing} for step {step} of {name}"
            ) from None

    def windows(self, name: str, step: int, positions: Sequence[int]) -> Iterator[list[int]]:
        """The positions in order, in pieces of which each may be read into memory at once."""
        window: list[int] = []
        room = WINDOW_BYTES
        for position, waiting in zip(positions, self.check(name, step, positions), strict=True):
            if window and (waiting.length > room or len(window) == WINDOW_BATCHES):
                yield window
                window, room = [], WINDOW_BYTES
            window.append(position)
            room -= waiting.length
        if window:
            yield window

    def read(self, name: str, step: int, positions: Sequence[int]) -> list[StagedBatch]:
        """The batches at these positions, checked again; for a reader's thread."""
        log = self._topic.log
        assert log is not None
        return [_read_one(log, name, step, position) for position in positions]

    # --- letting go ------------------------------------------------------------------------------

    def release(self, name: str, up_to_step: int) -> None:
        """Forget what was staged for these steps: they are published, or passed."""
        steps = self._steps.get(name, {})
        for step in [step for step in steps if step <= up_to_step]:
            self.count -= len(steps.pop(step).batches)
        if not steps:
            self._steps.pop(name, None)

    def expire(self, before_us: int, is_needed: Callable[[str, int], bool]) -> int:
        """Forget the steps that were silent since; how many went."""
        silent = [
            (name, step)
            for name, steps in self._steps.items()
            for step, found in steps.items()
            if found.last_time_us < before_us and not is_needed(name, step)
        ]
        for name, step in silent:
            self.count -= len(self._steps[name].pop(step).batches)
            if not self._steps[name]:
                del self._steps[name]
            logger.info("what was staged for step %d of %s expired", step, name)
        return len(silent)

    async def trim(self) -> None:
        """Delete the segments in which nothing waits any more, as far as they are the first."""
        log = self._topic.log
        if log is None or log.offline_reason:
            return
        lowest = self.first_needed(log)
        if _first_segment(log, lowest) > log.log_start:
            await self._broker.writer.run(lambda: _raise_log_start(log, lowest))

    def first_needed(self, log: Log) -> int:
        """The lowest position that waits, or that may: what is written, and not yet kept.

        What is appended after this look comes behind the durable end of now.
        """
        waiting = (min(s.batches) for steps in self._steps.values() for s in steps.values())
        return min(chain([log.durable_end], self._appending.values(), waiting))


def _read_one(log: Log, name: str, step: int, position: int) -> StagedBatch:
    if not log.log_start <= position < log.durable_end:
        raise StagedDataGone(f"nothing is staged at {position} for step {step} of {name}")
    (batch,) = split_batches(log.read(position, 1))
    record = decode_batch(batch).records()[0]
    assert record.key is not None
    assert record.value is not None
    staged_name, staged_step, topic, partition = msgpack.unpackb(record.key)
    if (staged_name, staged_step) != (name, step) or record.offset != position:
        raise StagedDataGone(f"what is staged at {position} is not of step {step} of {name}")
    return StagedBatch(topic, partition, record.value)


def _first_segment(log: Log, position: int) -> int:
    """The base of the first segment that holds `position` or comes after it."""
    start = log.log_start
    for segment, following in pairwise(log.segments):
        if not isinstance(segment, SealedSegment) or following.base_offset > position:
            break
        start = max(start, following.base_offset)
    return start


def _raise_log_start(log: Log, position: int) -> None:
    if log.is_closed:
        return
    start = _first_segment(log, position)
    if start > log.log_start:
        log.raise_log_start(start)
