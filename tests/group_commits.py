"""A broker without sockets, loop and threads, and what it promised: for power cuts at every step.

`Machine` has the real data folder, topics, logs, journal and group commit. What a broker does
beside its writer waits in `Machine.beside` until the test runs it. `Promises` outlives the machine:
it notes what was asked for, what was acked and what a reader saw, and `check` holds what a cut left
against it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from seglog.protocol.batch import encode_batch
from seglog.protocol.errors import SeglogError
from seglog.protocol.header import check_produced
from seglog.server.config import BrokerConfig
from seglog.server.group_commit import Append, GroupCommit, Outcome
from seglog.server.metrics import Metrics
from seglog.server.partition import Partition
from seglog.server.storage import compaction
from seglog.server.storage.filesystem import FileSystem
from seglog.server.storage.folder import DataFolder
from seglog.server.storage.journal import Journal
from seglog.server.storage.log import Log
from seglog.server.storage.retention import apply_retention
from seglog.server.storage.staged import AppendResult
from seglog.server.topics import Topics

from tests.logs import NOON_US, read_all
from tests.simulated_disk import SimulatedDisk

T = TypeVar("T")

Place = tuple[str, int]  # a topic's name and a partition's number
Share = Sequence[bytes] | Sequence[tuple[bytes, bytes]]  # values, or keys with values: one batch

SMALL_TOPIC: Mapping[str, Any] = {"segment.bytes": 8192, "retention.ms": -1}


# --- what was promised ---------------------------------------------------------------------------


@dataclass
class Written:
    """One partition: all that was sent, in order, and how far the broker vouched for it."""

    sent: list[tuple[bytes | None, bytes]] = field(default_factory=list)  # key, value
    batch_ends: set[int] = field(default_factory=lambda: {0})
    acked_end: int = 0
    seen_end: int = 0
    seen_epoch: int = 0
    highest_log_start: int = 0  # asked for, by retention or by deletion


@dataclass
class Life:
    """One topic, from its creation to its deletion."""

    name: str
    durability: str
    partitions: list[Written]
    delete_was_asked: bool = False
    delete_was_acked: bool = False


@dataclass
class Promises:
    lives: dict[str, Life] = field(default_factory=dict)  # by topic id
    machine: Machine | None = None

    def written(self, partition: Partition) -> Written:
        return self.lives[partition.topic_id].partitions[partition.number]


# --- the machine ---------------------------------------------------------------------------------


class _InlineWriter:
    """Stands in for the writer's thread where a topic is made or deleted."""

    async def run(self, action: Callable[[], T]) -> T:
        return action()


class Machine:
    """Opens what is on the disk, as a broker does at its start."""

    def __init__(
        self, fs: FileSystem, root: str, promises: Promises, *, journal_bytes: int = 64 * 1024
    ) -> None:
        self.fs = fs
        self.promises = promises
        self.beside: list[Callable[[], None]] = []
        self._now_us = NOON_US
        self.folder = DataFolder(fs, root, open_segments=3)
        self.journal = Journal(fs, self.folder.path, journal_bytes, self._run_later)
        self.group_commit = GroupCommit(self.journal, self._tick)
        self.topics = Topics(
            self.folder,
            _InlineWriter(),  # type: ignore[arg-type]
            BrokerConfig(),
            Metrics(),
        )
        self.topics.open_all()

    def _tick(self) -> int:
        self._now_us += 1000
        return self._now_us

    def _run_later(self, work: Callable[[], None]) -> Callable[[], None]:
        self.beside.append(work)
        return self.run_beside

    def run_beside(self) -> None:
        """Do what would have been done meanwhile: sync the logs of a full journal file."""
        while self.beside:
            self.beside.pop(0)()

    # --- topics ---

    def create(self, name: str, partitions: int, **settings: Any) -> None:
        config = {**SMALL_TOPIC, **{key.replace("_", "."): v for key, v in settings.items()}}
        topic = _run(self.topics.create(name, partitions, config))
        self.promises.lives[topic.id] = Life(
            name, topic.config.durability, [Written() for _ in range(partitions)]
        )

    def alter(self, name: str, **settings: Any) -> None:
        config = {key.replace("_", "."): value for key, value in settings.items()}
        topic = _run(self.topics.alter(name, settings=config))
        self.promises.lives[topic.id].durability = topic.config.durability

    def delete(self, name: str) -> None:
        life = self.promises.lives[self.folder.topic(name).id]
        life.delete_was_asked = True
        _run(self.topics.delete(name))
        life.delete_was_acked = True

    def log(self, name: str, partition: int = 0) -> Log:
        return self.topics.partition(name, partition).log

    # --- records ---

    def commit(self, *shares: tuple[str, int, Share]) -> list[Outcome]:
        """One group, of a batch for each share; then readers read all that they may."""
        appends = [self._append(name, number, share) for name, number, share in shares]
        group = appends
        while group:
            done, group, _ = self.group_commit.commit(group)
            for append in done:
                self._note(append)
        self.read()
        return [append.outcome for append in appends if append.outcome is not None]

    def _append(self, name: str, number: int, share: Share) -> Append:
        records = [cell if isinstance(cell, tuple) else (None, cell) for cell in share]
        partition = self.topics.partition(name, number)
        written = self.promises.written(partition)
        written.sent += records
        written.batch_ends.add(len(written.sent))
        batch = encode_batch([value for _, value in records], [key for key, _ in records], NOON_US)
        return Append(partition, batch, check_produced(batch), lambda _: None)

    def _note(self, append: Append) -> None:
        written = self.promises.written(append.partition)
        if isinstance(append.outcome, AppendResult):
            end = append.outcome.base_offset + append.header.offset_span
            written.acked_end = max(written.acked_end, end)

    def read(self) -> None:
        """Note what readers can see now: it must stay as it is."""
        for partition in self.topics.all_partitions():
            log = partition.log
            written = self.promises.written(partition)
            found = [(record.offset, record.value) for record in read_all(log)]
            for offset, value in found:
                assert written.sent[offset][1] == value, f"{log.name}: offset {offset} is {value!r}"
            written.seen_end = max(written.seen_end, log.durable_end)
            written.seen_epoch = log.epoch

    def take_up(self) -> None:
        """Go on where another machine ended: what it did not ack is there, or was never sent."""
        for topic in self.folder.topics.values():
            empty = [Written() for _ in range(topic.partitions)]
            self.promises.lives.setdefault(
                topic.id, Life(topic.name, topic.config.durability, empty)
            )
        for partition in self.topics.all_partitions():
            written, end = self.promises.written(partition), partition.log.durable_end
            assert written.acked_end <= end in written.batch_ends
            del written.sent[end:]
            written.batch_ends = {known for known in written.batch_ends if known <= end}
        self.read()

    # --- beside traffic ---

    def retain(self, name: str, partition: int, segments: int) -> None:
        """Remove all but the last so-many segments, as retention does."""
        log = self.log(name, partition)
        target = log.segments[-segments].base_offset
        written = self.promises.written(self.topics.partition(name, partition))
        written.highest_log_start = max(written.highest_log_start, target)
        bytes_kept = sum(info.size_bytes for info in log.describe()[-segments:])
        log.config = log.config.with_changes({"retention.bytes": bytes_kept})
        assert apply_retention(log, self._tick())
        assert log.log_start == target

    def compact(self, name: str, partition: int) -> None:
        assert compaction.compact(self.log(name, partition), self._tick())

    def close(self) -> None:
        self.topics.close_all()
        self.journal.close()
        self.folder.close()


def _run(change: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(change)


@contextmanager
def machine(folder: str, promises: Promises, **options: Any) -> Any:
    """A machine on a disk of its own, whose files are all closed at the end."""
    disk = SimulatedDisk(folder)
    try:
        yield Machine(disk, folder, promises, **options)
    finally:
        disk.close()


# --- holding what is left against what was promised ----------------------------------------------

Cell = tuple[int, bytes | None, bytes | None]  # offset, key, value


class Look(NamedTuple):
    """What a start finds of one partition."""

    log_start: int
    end: int
    records: list[Cell]
    epoch: int


Found = dict[str, list[Look]]  # by topic id


def check(folder: str, promises: Promises, *, go_on: bool = True) -> None:
    """Every promise holds in what a cut left, a second start finds the same, and work can go on."""
    first = _open_and_look(folder, promises)
    _check_topics(first, promises)
    # With durability=os an epoch may be raised once too often: a reader is told, and loses nothing.
    again = _open_and_look(folder, promises, _append_to_all if go_on else lambda _: None)
    assert _without_epochs(again) == _without_epochs(first), "a second start found something else"
    if not go_on:
        return
    after = _open_and_look(folder, promises)
    for topic_id, partitions in first.items():
        for before, now in zip(partitions, after[topic_id], strict=True):
            assert now.records[: len(before.records)] == before.records
            assert [value for _, _, value in now.records[len(before.records) :]] == [b"later"]


def _without_epochs(found: Found) -> dict[str, list[tuple[object, ...]]]:
    return {topic_id: [look[:3] for look in partitions] for topic_id, partitions in found.items()}


def _open_and_look(
    folder: str, promises: Promises, then: Callable[[Machine], None] = lambda _: None
) -> Found:
    with machine(folder, promises) as opened:
        found = {
            topic.id: [_look(partition) for partition in opened.topics.partitions(topic.name)]
            for topic in opened.folder.topics.values()
        }
        assert not list(Path(folder).glob("journal*")), "the journal is still there"
        then(opened)
    return found


def _append_to_all(opened: Machine) -> None:
    batch = encode_batch([b"later"], None, NOON_US)
    group = [
        Append(partition, batch, check_produced(batch), lambda _: None)
        for partition in opened.topics.all_partitions()
    ]
    done, left_over, _ = opened.group_commit.commit(group)
    while left_over:
        more, left_over, _ = opened.group_commit.commit(left_over)
        done = [*done, *more]
    for append in done:
        assert not isinstance(append.outcome, SeglogError), append.outcome
    opened.close()


def _look(partition: Partition) -> Look:
    log = partition.log
    records = [(record.offset, record.key, record.value) for record in read_all(log)]
    return Look(log.log_start, log.durable_end, records, log.epoch)


def _check_topics(found: Found, promises: Promises) -> None:
    for topic_id, life in promises.lives.items():
        if life.delete_was_acked:
            assert topic_id not in found, f"{life.name} was deleted, and is there again"
        if topic_id not in found:
            assert life.delete_was_asked, f"{life.name} is gone"
            continue
        for number, (partition, written) in enumerate(
            zip(found[topic_id], life.partitions, strict=True)
        ):
            name = f"{life.name}/{number}"
            log_start, end, records, epoch = partition
            assert log_start <= written.highest_log_start, f"{name} starts at {log_start}"
            assert end in written.batch_ends, f"{name} ends at {end}, inside a batch"
            _check_end(name, life, written, end, epoch)
            _check_records(name, written, log_start, end, records)
    for topic_id in found.keys() - promises.lives.keys():  # cut before its creation was answered
        assert not any(look.records for look in found[topic_id])


def _check_end(name: str, life: Life, written: Written, end: int, epoch: int) -> None:
    if life.durability == "fsync":
        assert end >= written.acked_end, f"{name}: {written.acked_end} were acked, {end} are left"
        assert end >= written.seen_end, f"{name}: {written.seen_end} were seen, {end} are left"
    elif end < written.seen_end:
        assert epoch > written.seen_epoch, f"{name}: seen up to {written.seen_end}, cut at {end}"


def _check_records(
    name: str,
    written: Written,
    log_start: int,
    end: int,
    records: list[Cell],
) -> None:
    offsets = [offset for offset, _, _ in records]
    assert offsets == sorted(set(offsets)), f"{name}: offsets {offsets}"
    for offset, key, value in records:
        assert (key, value) == written.sent[offset], f"{name}: offset {offset} is {value!r}"
    for offset in set(range(log_start, end)) - set(offsets):
        key, _ = written.sent[offset]
        later = key and [o for o in offsets if o > offset and written.sent[o][0] == key]
        assert later, f"{name}: offset {offset} is missing"
