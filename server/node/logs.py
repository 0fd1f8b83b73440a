"""The logs of a node: found or made by the strings that messages name them with.

A topic that can be a topic's name is one, and its partitions are its logs; any other string gets a
name made from its hash. A key is the topic of that name, partition 0. So nothing that a message
says leaves the data folder, and a broker can serve the same folder afterwards.

A bounded number of logs is open at a time, so that keys may be many and open files few.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from ...protocol.batch import decode_batch, encode_batch
from ...protocol.constants import (
    GIB,
    INTERNAL_TOPIC_PREFIX,
    MAX_BATCH_BYTES,
    MAX_TOPIC_NAME_LENGTH,
    TOPIC_NAME_PATTERN,
)
from ...protocol.errors import LimitExceeded, SeglogError, StorageFull, UnknownTopic
from ...protocol.header import BatchHeader, check_produced, split_batches
from ..config import BrokerConfig
from ..storage.filesystem import FileSystem
from ..storage.folder import DataFolder
from ..storage.log import Log
from ..storage.names import LOG, file_name
from .refusals import Code, Refusal, refusal_of
from .state import NodeState, load_state, save_state

logger = logging.getLogger(__name__)

HASHED_PREFIX: Final = "sha256-"

# Each takes two descriptors, and some systems allow a process 256.
MAX_OPEN_LOGS: Final = 64
MAX_OPEN_SEGMENTS: Final = 24

MAX_TOPICS: Final = BrokerConfig().max_topics
MAX_PARTITIONS: Final = BrokerConfig().max_partitions

# The range of `segment.bytes`. Two batches take more than the least, so that a smaller limit gives
# the same segments: one message in each.
MIN_SEGMENT_BYTES: Final = 128
MAX_SEGMENT_BYTES: Final = GIB


class Append(NamedTuple):
    """A message for the end of a log."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes


class Appended(NamedTuple):
    """Where the message is now, and on disk."""

    offset: int
    segment: str
    append_time_us: int


Outcome = Appended | Refusal


def topic_name(text: str) -> str:
    """The topic that stands for a string: two strings never share one."""
    if (
        len(text) <= MAX_TOPIC_NAME_LENGTH
        and TOPIC_NAME_PATTERN.fullmatch(text)
        and not text.startswith((INTERNAL_TOPIC_PREFIX, HASHED_PREFIX))
    ):
        return text
    return HASHED_PREFIX + hashlib.sha256(text.encode()).hexdigest()


class NodeLogs:
    """One node's data folder, which nobody else may use meanwhile."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        *,
        max_open_logs: int = MAX_OPEN_LOGS,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._fs = fs
        self._max_open_logs = max_open_logs
        self._clock_us = clock_us
        self._folder = DataFolder(fs, path, open_segments=MAX_OPEN_SEGMENTS)
        self._open: OrderedDict[tuple[str, int], Log] = OrderedDict()  # the last used comes last
        try:
            self._state = load_state(fs, self._folder.path)
        except BaseException:
            self._folder.close()
            raise

    def close(self) -> None:
        """Leave logs that open without a scan. May be called twice."""
        for log in self._open.values():
            _close(log)
        self._open.clear()
        self._folder.close()

    # --- appending -------------------------------------------------------------------------------

    def append(self, appends: Sequence[Append]) -> list[Outcome]:
        """Append all, in order, making what is missing; with one sync for each log and segment."""
        outcomes: list[Outcome | None] = [None] * len(appends)
        by_log: dict[tuple[str, int], list[int]] = {}
        for place, append in enumerate(appends):
            by_log.setdefault((append.topic, append.partition), []).append(place)
        for (topic, partition), places in by_log.items():
            try:
                log = self._open_or_make(topic, partition)
                done = self._append_to(log, [appends[place] for place in places])
            except Exception as error:
                done = [refusal_of(error)] * len(places)
            for place, outcome in zip(places, done, strict=True):
                outcomes[place] = outcome
        return [outcome for outcome in outcomes if outcome is not None]

    def _append_to(self, log: Log, appends: Sequence[Append]) -> list[Outcome]:
        now_us = self._clock_us()
        # One batch for each message, so that where a segment ends does not depend on how many
        # messages happened to come together.
        pending = [_to_batch(append, now_us) for append in appends]
        outcomes: list[Outcome] = []
        while pending:
            try:
                staged = log.stage(pending, now_us)
            except SeglogError as error:  # nothing of it is written
                return outcomes + [refusal_of(error)] * len(pending)
            pending = pending[staged.taken :]
            segment = file_name(staged.segment.base_offset, LOG)
            try:
                log.write(staged)
                log.sync()
            except SeglogError as error:
                outcomes += [_after_writing(error)] * staged.taken
                continue
            log.publish()
            outcomes += [
                refusal_of(result)
                if isinstance(result, SeglogError)
                else Appended(result.base_offset, segment, result.append_time_us)
                for result in staged.results
            ]
        return outcomes

    # --- reading ---------------------------------------------------------------------------------

    def read(
        self, topic: str, partition: int, offset: int, max_bytes: int
    ) -> list[tuple[int, bytes | None]]:
        """Offsets and values from `offset` on, at least one where there is one; at most as many
        batches as `max_bytes` hold, and one.
        """
        log = self.log(topic, partition)
        found: list[tuple[int, bytes | None]] = []
        while not found and (batches := log.read(offset, max_bytes)):
            for batch in split_batches(batches):
                columns = decode_batch(batch)
                wanted = columns.between(offset, columns.next_offset)
                found += zip(wanted.offsets, wanted.values, strict=True)
                offset = columns.next_offset
        return found

    def exists(self, topic: str) -> bool:
        """Whether there is such a topic, be it one that cannot be served."""
        name = topic_name(topic)
        return name in self._folder.topics or name in self._folder.damaged

    def log(self, topic: str, partition: int) -> Log:
        if not self.exists(topic):
            raise UnknownTopic(f"there is no topic {topic[:64]!r}")
        return self._open_log(topic_name(topic), partition)

    def last_used(self) -> Log | None:
        """The log that was used last; in a new run the first by name; None where there is none."""
        if self._open:
            return next(reversed(self._open.values()))
        names = [n for n in self._folder.topics if not n.startswith(INTERNAL_TOPIC_PREFIX)]
        return self._open_log(min(names), 0) if names else None

    # --- opening ---------------------------------------------------------------------------------

    def _open_or_make(self, topic: str, partition: int) -> Log:
        name, count = topic_name(topic), partition + 1
        known = self._folder.topics.get(name)
        if not self.exists(topic):
            if len(self._folder.topics) >= MAX_TOPICS:
                raise LimitExceeded(f"{MAX_TOPICS} topics or keys are allowed")
            self._check_partitions(count)
            # As large as a line may bring it; the rest is the broker's default.
            self._folder.create_topic(name, count, {"max.batch.bytes": MAX_BATCH_BYTES})
        elif known is not None and known.partitions < count:
            self._check_partitions(count - known.partitions)
            self._folder.alter_topic(name, partitions=count)
        return self._open_log(name, partition)

    def _check_partitions(self, added: int) -> None:
        present = sum(topic.partitions for topic in self._folder.topics.values())
        if present + added > MAX_PARTITIONS:
            raise LimitExceeded(f"{MAX_PARTITIONS} partitions are allowed, {present} are there")

    def _open_log(self, name: str, partition: int) -> Log:
        log = self._open.get((name, partition))
        if log is None:
            self._make_room()
            log = self._folder.open_log(name, partition)
            self._configure(log)
            self._open[name, partition] = log
        self._open.move_to_end((name, partition))
        return log

    def _make_room(self) -> None:
        """Close the log that was not used for longest.

        One that is offline stays: after a failed sync the system's memory and the disk may differ,
        and opening the log again would read from memory.
        """
        if len(self._open) < self._max_open_logs:
            return
        online = (place for place, log in self._open.items() if not log.offline_reason)
        place = next(online, None)
        if place is not None:
            _close(self._open.pop(place))

    # --- what is kept beside the logs ------------------------------------------------------------

    def set_max_segment_bytes(self, size: int) -> None:
        """For all logs, from their next append on."""
        size = min(max(size, MIN_SEGMENT_BYTES), MAX_SEGMENT_BYTES)
        self._save(self._state._replace(segment_bytes=size))
        for log in self._open.values():
            self._configure(log)

    def _configure(self, log: Log) -> None:
        if self._state.segment_bytes is not None:
            log.config = log.config.with_changes({"segment.bytes": self._state.segment_bytes})

    def commit(self, offsets: dict[str, int]) -> None:
        """Remember an offset for each key: all of them, or none and an error."""
        unknown = next((key for key in offsets if not self.exists(key)), None)
        if unknown is not None:
            raise UnknownTopic(f"there is no key {unknown[:64]!r}")
        new = {self._folder.topic(topic_name(key)).id: at for key, at in offsets.items()}
        self._save(self._state._replace(committed={**self._state.committed, **new}))

    def committed(self, keys: Iterable[str]) -> dict[str, int]:
        """Of the keys that have one."""
        known = {key: self._folder.topics.get(topic_name(key)) for key in keys}
        committed = self._state.committed
        return {
            key: committed[topic.id]
            for key, topic in known.items()
            if topic is not None and topic.id in committed
        }

    def _save(self, state: NodeState) -> None:
        if state != self._state:
            save_state(self._fs, self._folder.path, state)
            self._state = state


def _to_batch(append: Append, now_us: int) -> tuple[bytearray, BatchHeader]:
    batch = encode_batch([append.value], [append.key], now_us)
    return batch, check_produced(batch)


def _after_writing(error: SeglogError) -> Refusal:
    """What was written to a full disk has been taken back; after any other error nobody knows."""
    if isinstance(error, StorageFull):
        return refusal_of(error)
    return Refusal(Code.CRASH, error.what)


def _close(log: Log) -> None:
    try:
        log.close()
    except SeglogError as error:  # what was answered is on disk: the next start scans for it
        logger.warning("%s: %s", log.name, error.what)
