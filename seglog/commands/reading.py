"""The loop of `seglog consume`: batches in, lines out, until the end or a signal.

The client fetches ahead, and keeps a group's session alive, in a thread of its own: a reader of our
output that is slow stops nothing but the output. What was written counts as read; what was not, a
group gets again.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from ..protocol.errors import NotOwner, StaleMemberEpoch, UnknownMember, UnknownPartition
from .common import say
from .interrupts import Interrupts
from .progress import Progress
from .record_lines import Write
from .selection import Filter, Rows

if TYPE_CHECKING:
    from ..client.blocking import SyncConsumer
    from ..protocol.records import Columns

RECORDS_AT_ONCE: Final = 10_000
#: How long to wait for records before looking around: whether the end was reached without one
#: (compaction may have taken the last ones), and whether anybody still reads our output.
LOOK_S: Final = 0.2

_STANDARD_OUTPUT: Final = 1


class Wanted(NamedTuple):
    """What to read, and how to write it."""

    write: Write
    filters: list[Filter]
    ends: Mapping[int, int] | None  # before which offset to stop, by partition; None: nowhere
    max_records: int | None


class Reading:
    """From the starts to the ends, where there are ends."""

    def __init__(
        self, consumer: SyncConsumer, topic: str, wanted: Wanted, starts: Mapping[int, int]
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._wanted = wanted
        self._left = wanted.max_records
        #: Partitions whose end is not reached.
        self._open = {n: end for n, end in (wanted.ends or {}).items() if starts.get(n, 0) < end}

    def run(self, interrupts: Interrupts, progress: Progress) -> None:
        while not self._is_at_end():
            with interrupts.allowed():
                taken = self._consumer.get_batches(RECORDS_AT_ONCE, LOOK_S)
            if not taken:
                self._look_around()
                check_output()
                continue
            rows = self._chosen(taken)
            write_all(b"".join(self._wanted.write(each) for each in rows if len(each)))
            self._note([each.columns for each in rows])
            progress.advance(sum(len(each.columns) for each in rows))
            if self._left == 0:
                return

    def _chosen(self, taken: list[Columns]) -> list[Rows]:
        """What is to be written of these batches, up to the ends and to so many records."""
        chosen = []
        for columns in map(self._cut, taken):
            rows = Rows.of(columns, self._wanted.filters)
            if self._left is not None:
                rows = rows.first(self._left)
                self._left -= len(rows)
            chosen.append(rows)
            if self._left == 0:
                break
        return chosen

    def _cut(self, columns: Columns) -> Columns:
        if self._wanted.ends is None:
            return columns
        return columns.between(0, self._wanted.ends.get(columns.partition, 0))

    def _is_at_end(self) -> bool:
        return self._wanted.ends is not None and not self._open

    def _look_around(self) -> None:
        self._strike_off({n: self._consumer.position(self._topic, n) for n in self._open})

    def _note(self, written: list[Columns]) -> None:
        self._strike_off({columns.partition: columns.next_offset for columns in written})

    def _strike_off(self, reached: Mapping[int, int]) -> None:
        for number, position in reached.items():
            if number in self._open and position >= self._open[number]:
                del self._open[number]
                if self._open:
                    self._consumer.pause((self._topic, number))


class SharedReading(Reading):
    """As a member of a group: which partitions are read is the group's affair. The client commits
    what we have moved past, by the clock and at the end; here, what is in hand at the end."""

    def __init__(self, consumer: SyncConsumer, topic: str, wanted: Wanted) -> None:
        super().__init__(consumer, topic, wanted, {})
        self._written: dict[tuple[str, int], int] = {}

    def run(self, interrupts: Interrupts, progress: Progress) -> None:
        try:
            super().run(interrupts, progress)
        finally:
            self._commit()

    def _cut(self, columns: Columns) -> Columns:
        return columns

    def _is_at_end(self) -> bool:
        """Whether there is nothing left, up to the ends, in the partitions that are ours now."""
        if self._wanted.ends is None:
            return False
        try:
            positions = {n: self._consumer.position(t, n) for t, n in self._consumer.assignment}
        except UnknownPartition:
            return False  # given to another in this moment
        return bool(positions) and all(
            position >= self._wanted.ends.get(number, 0) for number, position in positions.items()
        )

    def _look_around(self) -> None:
        self._written = {}  # all of it is behind us, and so the client's to commit

    def _note(self, written: list[Columns]) -> None:
        self._written = {(each.topic, each.partition): each.next_offset for each in written}

    def _commit(self) -> None:
        if not self._written:
            return
        try:
            self._consumer.commit(self._written)
        except (NotOwner, StaleMemberEpoch, UnknownMember) as error:
            say(f"{error.what}: the new owner reads these records again")


def write_all(data: bytes) -> None:
    """To standard output, past Python's buffer: nothing is left to fail at the exit."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(_STANDARD_OUTPUT, rest) :]


def check_output() -> None:
    """BrokenPipeError where nobody reads standard output any more, though nothing is written."""
    poll = select.poll()
    poll.register(_STANDARD_OUTPUT, 0)
    for _, events in poll.poll(0):
        if events & (select.POLLERR | select.POLLHUP):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
