"""The consumer: records, one by one or as columns, in the order of each partition."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from time import monotonic
from typing import Self

from ..protocol.constants import MIB
from ..protocol.errors import BadConfig, ClientClosed
from ..protocol.records import Columns, Record
from .cluster import Cluster
from .connection import DEFAULT_REQUEST_TIMEOUT_S
from .cursor import Cursor, OnDataLoss
from .fetcher import Fetcher, OnReset
from .group_offsets import Bookmark, Offsets
from .group_options import (
    DEFAULT_ASSIGNORS,
    DEFAULT_AUTO_COMMIT_INTERVAL_MS,
    DEFAULT_MAX_HOLD_MS,
    DEFAULT_SESSION_TIMEOUT_MS,
    GroupOptions,
    OnPartitions,
    Subscription,
)
from .group_reading import GroupReading
from .hand import Hand
from .metadata import TopicPartition
from .offsets import Start, find_start
from .positions import PartitionName, Positions


class Consumer(Positions):
    """Reads partitions at its own pace; fetching runs ahead in the background.

    Example::

        async with Consumer("orders", bootstrap="127.0.0.1:7400", start="earliest") as consumer:
            async for record in consumer:
                print(record.offset, record.value)

    or, faster, `async for batch in consumer.batches(): batch.values`. A position moves as the
    application takes records, never by fetching. One task at a time may read.

    `on_reset` decides what happens when the next offset is gone (deleted, cut off by a crash of a
    `durability=os` topic, damaged): go on at the `earliest` that is there, skip to the `latest`, or
    raise the `error`. A jump is logged and told to `on_data_loss`, before the records behind it
    come. After an error was raised, reading goes on with the other partitions, and the failed one
    is tried again where it was: `seek` it elsewhere.

    With a `group`, all consumers that name it share the partitions of their topics, and each goes
    on at the group's committed offset; `start` counts where there is none. docs/groups.md tells how
    that works, and of the options: `pattern` (all topics whose whole name matches, also those to
    come), `instance_id`, `assignors`, `session_timeout_ms`, `auto_commit` (what the application has
    moved past, every `auto_commit_interval_ms`, on close and before a partition is given up),
    `max_hold_ms` (how long records of a partition that is to be given up may stay in hand) and the
    callbacks with a list of partitions: `on_assigned`, `on_revoked`, `on_lost`.
    """

    def __init__(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        bootstrap: str | Iterable[str] = "127.0.0.1:7400",
        assign: Iterable[PartitionName] | None = None,
        start: Start = "latest",
        on_reset: OnReset = "error",
        on_data_loss: OnDataLoss | None = None,
        max_buffer_bytes: int = 64 * MIB,
        fetch_max_bytes: int = 8 * MIB,
        partition_max_bytes: int = 2 * MIB,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        client_name: str = "seglog-python",
        request_timeout_s: float = DEFAULT_REQUEST_TIMEOUT_S,
        group: str | None = None,
        pattern: str | re.Pattern[str] | None = None,
        instance_id: str | None = None,
        assignors: Iterable[str] = DEFAULT_ASSIGNORS,
        session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS,
        auto_commit: bool = True,
        auto_commit_interval_ms: int = DEFAULT_AUTO_COMMIT_INTERVAL_MS,
        max_hold_ms: int = DEFAULT_MAX_HOLD_MS,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        if (topics is not None) + (assign is not None) + (pattern is not None) != 1:
            raise BadConfig("give topics to read, a pattern, or assign=[(topic, partition), …]")
        if (group is None and pattern is not None) or (group is not None and assign is not None):
            raise BadConfig("a pattern needs a group, and a group needs topics or a pattern")
        if on_reset not in ("earliest", "latest", "error"):
            raise BadConfig(f"on_reset {on_reset!r}: earliest, latest or error")
        if isinstance(start, str) and start not in ("earliest", "latest"):
            raise BadConfig(f"start {start!r}: earliest, latest, an offset, a time or a mapping")
        self._topics = [topics] if isinstance(topics, str) else list(topics or ())
        self._assigned = [TopicPartition(*name) for name in assign or ()]
        self._start = start
        self._cluster = Cluster(
            bootstrap, client_name=client_name, request_timeout_s=request_timeout_s
        )
        self._fetcher = Fetcher(
            self._cluster,
            on_reset=on_reset,
            max_buffer_bytes=max_buffer_bytes,
            fetch_max_bytes=fetch_max_bytes,
            partition_max_bytes=partition_max_bytes,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
        )
        self._cursor = Cursor(self._fetcher, on_data_loss)
        self._hand = Hand(self._cursor)
        self._group: GroupReading | None = None
        self._subscription = Subscription(self._topics, pattern)
        self._group_options: GroupOptions | None = None
        if group is not None:
            self._group_options = GroupOptions(
                group,
                instance_id,
                tuple(assignors),
                session_timeout_ms,
                auto_commit,
                auto_commit_interval_ms,
                max_hold_ms,
                on_assigned,
                on_revoked,
                on_lost,
            )
        self._is_open = False

    # --- opening and closing ---

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Reach a broker, find the partitions and where to begin."""
        if self._is_open:
            return
        try:
            await self._cluster.start()
            if self._group_options is not None:
                await self._join(self._group_options)
                return
            names = self._assigned
            for topic in dict.fromkeys(self._topics):
                count = await self._cluster.partition_count(topic)
                names = names + [TopicPartition(topic, number) for number in range(count)]
            self._fetcher.assign(await find_start(self._cluster, names, self._start))
        except BaseException:
            await self._cluster.close()
            raise
        self._cluster.on_refresh = self._add_partitions
        self._fetcher.start()
        self._is_open = True

    async def close(self) -> None:
        """Stop fetching and close; may be called twice."""
        self._is_open = False
        self._hand.keep(self._cursor.leave)
        try:
            if self._group is not None:
                await self._group.close()
        finally:
            await self._fetcher.close()
            await self._cluster.close()

    async def _join(self, options: GroupOptions) -> None:
        self._fetcher.waits_for_missing = True
        self._fetcher.start()
        self._group = GroupReading(
            self._cluster,
            self._fetcher,
            self._cursor,
            self._hand,
            options,
            self._subscription,
            self._start,
        )
        try:
            await self._group.start()
        except BaseException:
            await self._fetcher.close()
            raise
        self._is_open = True

    # --- reading ---

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        if self._group is not None and monotonic() > self._group.yield_at:
            await self._group.breathe()
        for record in self._cursor.iterator:
            return record
        while True:
            await self._enter()
            for record in self._cursor.iterator:
                return record

    def batches(self) -> AsyncIterator[Columns]:
        """Batch by batch, as columns; a batch that was begun record by record comes from there on.

        Example::

            async for batch in consumer.batches():
                print(batch.partition, batch.offsets[0], batch.values)
                table = batch.to_arrow()
        """
        return _Batches(self)

    async def next_batch(self) -> Columns:
        """The next batch; waits for it."""
        await self._breathe()
        columns = await self._first_columns()
        self._hand.noted()
        return columns

    async def get_batches(
        self, max_records: int = 10_000, timeout: float | None = None
    ) -> list[Columns]:
        """The batches that are there, until they hold `max_records` or more; waits up to `timeout`
        seconds for the first one. Nothing in time is an empty list.
        """
        await self._breathe()
        try:
            async with asyncio.timeout(timeout):
                taken = [await self._first_columns()]
        except TimeoutError:
            return []
        left = max_records - len(taken[0])
        while left > 0 and (columns := self._cursor.try_take_columns()) is not None:
            self._note(columns)
            taken.append(columns)
            left -= len(columns)
        self._hand.noted()
        return taken

    async def _first_columns(self) -> Columns:
        while True:
            self._check_open()
            self._hand.empty()
            columns = self._cursor.take_columns()
            if columns is not None:
                self._note(columns)
                return columns
            await self._fetcher.wait()

    def _note(self, columns: Columns) -> None:
        name = TopicPartition(columns.topic, columns.partition)
        self._hand.note(self._fetcher.states[name], columns.offsets[0])

    async def getmany(self, max_records: int = 500, timeout: float | None = None) -> list[Record]:
        """What is there, at most `max_records`; waits up to `timeout` seconds for the first one.

        Nothing in time is an empty list. A timeout of 0 looks without waiting, None waits for ever.
        """
        await self._breathe()
        self._check_open()
        self._hand.empty()
        taken = self._take(max_records)
        try:
            async with asyncio.timeout(timeout):
                while not taken:
                    await self._enter()
                    taken = self._take(max_records)
        except TimeoutError:
            return []
        while len(taken) < max_records and self._cursor.try_enter():
            taken += self._take(max_records - len(taken))
        self._hand.noted()
        return taken

    def _take(self, max_records: int) -> list[Record]:
        """Of the batch that the cursor is in."""
        state = self._cursor.state
        if state is None:
            return []
        self._hand.note(state, self._cursor.position(state))
        return list(islice(self._cursor.iterator, max_records))

    def current_records(self) -> Iterator[Record]:
        """What is left of the batch that records are taken from; taking from it moves the position.

        For wrappers of this class, which may so take records without a coroutine each.
        """
        if self._group is not None and monotonic() > self._group.yield_at:
            return iter(())
        return self._cursor.iterator

    async def _breathe(self) -> None:
        """Let heartbeats run where the application itself never waits for anything."""
        if self._group is not None and monotonic() > self._group.yield_at:
            await self._group.breathe()

    async def _enter(self) -> None:
        """Make the next batch the one to take records from."""
        while True:
            self._check_open()
            self._hand.empty()
            if self._cursor.enter():
                return
            await self._fetcher.wait()

    # --- the group's bookmarks ---

    async def commit(self, what: Record | Offsets | None = None) -> None:
        """Commit the positions of all that was taken, or up to and with one record, or exactly
        `{(topic, partition): offset of the next record, or (offset, metadata)}`.

        Durable when it returns. UnknownMember, StaleMemberEpoch, MemberFenced or NotOwner where the
        group has given the partition to another: then the other one goes on at the last commit.
        """
        group = self._in_group()
        if what is None:
            await group.commit_taken()
        elif isinstance(what, Record):
            await group.commit({(what.topic, what.partition): what.offset + 1})
        else:
            await group.commit(what)

    async def committed(self, *partitions: PartitionName) -> dict[TopicPartition, Bookmark]:
        """The group's bookmarks, asked of the broker now, of those that have one; of all partitions
        that are read if none is named."""
        names = [TopicPartition(*name) for name in partitions]
        return await self._in_group().committed(names or None)

    # --- inside ---

    def _in_group(self) -> GroupReading:
        if self._group is None or not self._is_open:
            raise ClientClosed("this consumer is in no group, or not open")
        return self._group

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClientClosed("this consumer is not open")
        if self._group is not None:
            self._group.check()

    def _add_partitions(self) -> None:
        """Read the partitions that topics got meanwhile: from their start, so nothing is missed."""
        for topic in self._topics:
            if self._cluster.metadata.knows(topic):
                count = self._cluster.metadata.partition_count(topic)
                names = [TopicPartition(topic, number) for number in range(count)]
                new = [name for name in names if name not in self._fetcher.states]
                self._fetcher.assign(dict.fromkeys(new, 0))


class _Batches:
    """An iterator, not a generator: cancelling one step does not end it."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Columns:
        return await self._consumer.next_batch()
