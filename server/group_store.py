"""Where groups are kept: the compacted topic `__groups`. While one write runs the next one gathers.

A change counts in memory at once; whoever reveals it waits for `saved` first. A write that fails is
told to all who wait for it, and what it held is tried again with the next one: so nothing is ever
revealed that a crash could take back, and nothing that was taken in is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ..protocol.constants import MIB
from ..protocol.errors import SeglogError, ShuttingDown
from .internal_topic import InternalTopic

if TYPE_CHECKING:
    from .topics import Topics
    from .writer import Writer

logger = logging.getLogger(__name__)

GROUPS_TOPIC: Final = "__groups"
_BATCH_BYTES: Final = 1 * MIB  # of keys and values; a larger record goes alone
_RETRY_S: Final = 1.0

Records = dict[bytes, bytes | None]


class GroupStore:
    """Belongs to the loop."""

    def __init__(self, topics: Topics, writer: Writer) -> None:
        self._topic = InternalTopic(topics, writer, GROUPS_TOPIC)
        self._gathered: Records = {}
        self._gathered_waiters: list[asyncio.Future[None]] = []
        self._writing_waiters: list[asyncio.Future[None]] | None = None  # None: nothing is written
        self._has_work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def load(self) -> dict[bytes, bytes]:
        """What was saved. Reads the whole log: for the start."""
        return self._topic.load()

    def start(self) -> None:
        self._task = asyncio.create_task(self._write_for_ever())

    async def stop(self) -> None:
        """Write what is gathered, if it can be written. May be called twice."""
        try:
            await self.saved()
        except SeglogError as error:
            logger.error("groups: the last changes could not be saved: %s", error)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set, or with None delete, a record."""
        self._gathered[key] = value
        self._has_work.set()

    async def saved(self) -> None:
        """Return once everything that was put so far is durable; raise where it cannot be."""
        if self._gathered:
            waiters = self._gathered_waiters
            self._has_work.set()
        elif self._writing_waiters is not None:
            waiters = self._writing_waiters
        else:
            return
        if self._task is None or self._task.done():
            raise ShuttingDown("the broker is stopping")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters.append(future)
        await future

    async def _write_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            if not self._gathered:
                continue
            records, self._gathered = self._gathered, {}
            waiters, self._gathered_waiters = self._gathered_waiters, []
            self._writing_waiters = waiters
            failure: Exception | None = None
            try:
                for keys, values in _batches(records):
                    await self._topic.append(keys, values, time.time_ns() // 1000)
            except Exception as error:
                failure = error
                if not isinstance(error, SeglogError):
                    logger.exception("groups could not be saved")
                self._gathered = {**records, **self._gathered}
                loop.call_later(_RETRY_S, self._has_work.set)
            finally:
                self._writing_waiters = None
                _settle(waiters, failure)


def _settle(waiters: list[asyncio.Future[None]], failure: Exception | None) -> None:
    for waiter in waiters:
        if waiter.done():  # whoever waited has gone
            continue
        if failure is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(failure)


def _batches(records: Records) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
    keys: list[bytes] = []
    values: list[bytes | None] = []
    size = 0
    for key, value in records.items():
        length = len(key) + len(value or b"")
        if keys and size + length > _BATCH_BYTES:
            yield keys, values
            keys, values, size = [], [], 0
        keys.append(key)
        values.append(value)
        size += length
    if keys:
        yield keys, values
