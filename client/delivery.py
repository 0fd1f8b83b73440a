"""What becomes of records that were sent: cheap to make, paid for by those who await it.

A `Delivery` is a batch and a position in it. The batch keeps one answer for all of its records; a
future is made only for who awaits before the answer is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..protocol.errors import SeglogError

if TYPE_CHECKING:
    from .batches import Batch


class RecordMetadata(NamedTuple):
    """Where a record is: `offset` is -1 where the broker knows only that it has it."""

    topic: str
    partition: int
    offset: int
    timestamp_us: int


class BatchMetadata(NamedTuple):
    """Where `record_count` records of one batch are; `offset` is the first one's."""

    topic: str
    partition: int
    offset: int
    record_count: int


class Delivery(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Of one record. Awaiting gives its RecordMetadata, or raises why it was not delivered.

    Awaiting also ends the linger of the record's batch, unless its partition has another batch
    under way: then this one goes with that one's answer, or when its linger is over.
    """

    batch: Batch
    index: int

    @property
    def is_done(self) -> bool:
        """Whether awaiting will return, or raise, at once."""
        return self.batch.outcome.is_done

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self.batch.outcome.is_done:
            yield from self.batch.wait()
        return self.batch.record_metadata(self.index)


class BulkDelivery:
    """Of the records of one `send_batch`. Awaiting gives a BatchMetadata for each batch they
    became.

    Their order is that of the records within a partition. All batches are waited for; then the
    first error, if any, is raised.
    """

    __slots__ = ("_batches", "record_count")

    def __init__(self, batches: Sequence[Batch], record_count: int) -> None:
        self._batches = batches
        self.record_count = record_count

    @property
    def is_done(self) -> bool:
        """Whether awaiting will return, or raise, at once."""
        return all(batch.outcome.is_done for batch in self._batches)

    def __await__(self) -> Generator[Any, None, list[BatchMetadata]]:
        for batch in self._batches:
            if not batch.outcome.is_done:
                yield from batch.wait()
        errors = [error for batch in self._batches if (error := batch.report_all()) is not None]
        if errors:
            raise errors[0]
        return [batch.batch_metadata() for batch in self._batches]


class Outcome:
    """The one answer for a batch, and who waits for it."""

    __slots__ = ("_waiters", "base_offset", "error", "is_done", "reported")

    def __init__(self) -> None:
        self.is_done = False
        self.error: SeglogError | None = None
        self.base_offset = -1
        #: Positions of records whose error somebody has seen; None: all of them.
        self.reported: set[int] | None = set()
        self._waiters: list[asyncio.Future[None]] = []

    def settle(self, base_offset: int, error: SeglogError | None) -> None:
        """Called once."""
        self.is_done = True
        self.base_offset = base_offset
        self.error = error
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def wait(self) -> asyncio.Future[None]:
        """Done when it is settled; holds no error. Each caller gets one of its own, to cancel."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.is_done:
            waiter.set_result(None)
        else:
            self._waiters.append(waiter)
        return waiter
