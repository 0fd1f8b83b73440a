"""The producer: records in, deliveries out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final, Literal, Self

from ..protocol.columns import Headers
from ..protocol.constants import CODECS, KIB, MAX_BATCH_BYTES, MIB
from ..protocol.errors import (
    BadConfig,
    BatchTooLarge,
    ClientClosed,
    SeglogError,
)
from .accumulator import Accumulator
from .batches import EMPTY_BATCH_BYTES, RECORD_BYTES, Batch, PartitionQueue, record_size
from .bulk import cut, group_by_partition, to_chunk
from .cells import Data, HeadersLike, Timestamp, to_cell, to_headers, to_microseconds
from .cluster import Cluster
from .connection import DEFAULT_REQUEST_TIMEOUT_S
from .delivery import BulkDelivery, Delivery, RecordMetadata
from .failures import Failures
from .partitioner import Partitioner, PartitionerName, find_partitioner
from .sender import Sender
from .topics import TopicQueues

logger = logging.getLogger(__name__)

#: The broker remembers this many batches of a producer: more in flight could not be told apart.
MAX_IN_FLIGHT: Final = 5


class Producer:
    """Sends records; on by default: idempotence, so that a retry never doubles or reorders them.

    Example::

        async with Producer("127.0.0.1:7400") as producer:
            delivery = await producer.send("orders", b"...", key="customer-7")
            print((await delivery).offset)
            await producer.send_batch("orders", [b"a", b"b", b"c"])
            await producer.flush()

    `send` waits only while `buffer_bytes` are not yet acknowledged. Leaving the block sends what is
    left; an error that no awaited delivery or `flush` has told is raised there.

    `linger_ms`: how long a batch waits for company. Shorter where somebody awaits one of its
    records: until what its partition has under way is answered, or not at all.
    `delivery_timeout_s`: after this, records that are not acknowledged fail with DeliveryTimeout.
    `max_in_flight`: batches of one partition under way. Without `idempotent` a retry may double
    records, and reorder them where it is more than 1.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] = "127.0.0.1:7400",
        *,
        linger_ms: float = 5,
        batch_bytes: int = 256 * KIB,
        compression: Literal["zstd", "lz4", "none"] | None = None,
        compression_level: int | None = None,
        idempotent: bool = True,
        max_in_flight: int = MAX_IN_FLIGHT,
        delivery_timeout_s: float = 120.0,
        buffer_bytes: int = 32 * MIB,
        partitioner: PartitionerName | Partitioner = "crc32",
        client_name: str = "seglog-python",
        request_timeout_s: float = DEFAULT_REQUEST_TIMEOUT_S,
    ) -> None:
        if compression is not None and compression not in CODECS:
            raise BadConfig(f"compression {compression!r}: there are {', '.join(CODECS)}")
        if not EMPTY_BATCH_BYTES + RECORD_BYTES < batch_bytes <= MAX_BATCH_BYTES:
            raise BadConfig(f"batch_bytes {batch_bytes}: at most {MAX_BATCH_BYTES}, at least 150")
        if idempotent and not 1 <= max_in_flight <= MAX_IN_FLIGHT:
            raise BadConfig(f"max_in_flight {max_in_flight}: 1 to {MAX_IN_FLIGHT} if idempotent")
        self._partitioner = find_partitioner(partitioner)
        self._batch_bytes = batch_bytes
        self._cluster = Cluster(
            bootstrap, client_name=client_name, request_timeout_s=request_timeout_s
        )
        self._sender = Sender(
            self._cluster,
            is_idempotent=idempotent,
            max_in_flight=max_in_flight,
            codec=CODECS[compression or "none"],
            level=compression_level,
            delivery_timeout_s=delivery_timeout_s,
        )
        self._failures = Failures()
        self._accumulator = Accumulator(
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            linger_s=linger_ms / 1000,
            delivery_timeout_s=delivery_timeout_s,
            on_work=self._sender.work,
            on_failed=self._failures.add,
        )
        self._sender.accumulator = self._accumulator
        self._topics: dict[str, TopicQueues] = {}
        self._is_started = False

    # --- opening and closing ---

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except SeglogError as failure:
            if error is None:
                raise
            # What the block raised is what its caller must see; but this must not be hidden either.
            error.add_note(f"also: {failure}")
            logger.error("%s", failure)

    async def start(self) -> None:
        """Reach a broker and become a producer; NoBroker where there is none."""
        if self._is_started:
            return
        try:
            await self._cluster.start()
            await self._sender.start()
        except BaseException:
            await self._cluster.close()
            raise
        self._cluster.on_refresh = self._add_partitions
        self._accumulator.start()
        self._is_started = True

    async def close(self, timeout_s: float | None = None) -> None:
        """Send what is left, then close; raises what was not delivered and nobody was told.

        May be called twice. After `timeout_s`, or when it is cancelled, it waits no longer: what is
        left fails with ClientClosed.
        """
        if not self._is_started:
            return
        self._accumulator.refuse(ClientClosed("this producer is closed"))
        try:
            async with asyncio.timeout(timeout_s):
                await self._settle_all()
        except TimeoutError:
            pass
        finally:
            reason = ClientClosed("the producer was closed before this was acknowledged")
            for batch in list(self._accumulator.unsettled):
                self._accumulator.settle(batch, -1, reason)
            await self._sender.close()
            await self._cluster.close()
        error = self._failures.take()
        if error is not None:
            raise error

    # --- sending ---

    async def send(
        self,
        topic: str,
        value: Data | None,
        key: Data | None = None,
        partition: int | None = None,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
    ) -> Delivery:
        """Take one record. The result can be awaited for its RecordMetadata, or left alone.

        Waits only where the buffer is full. `timestamp` is an aware datetime or microseconds;
        without one, a record has the time at which its batch was begun.
        """
        accumulator = self._accumulator
        if accumulator.buffered_bytes > accumulator.pause_at:
            await accumulator.pause()
        found = self._topics.get(topic)
        if found is None:
            found = await self._open_topic(topic)
        # The short way, for records that are only a value: all of what follows in one piece.
        if key is None and partition is None and headers is None and timestamp is None:
            batch = found.sticky.opened
            if batch is not None and batch.is_plain and type(value) is bytes:
                size = len(value) + RECORD_BYTES
                total = batch.size_bytes + size
                if total <= accumulator.batch_bytes:
                    batch.size_bytes = total
                    accumulator.buffered_bytes += size
                    values = batch.values
                    values.append(value)
                    return Delivery(batch, len(values) - 1)
        return self._append(
            found,
            to_cell("value", value),
            to_cell("key", key),
            partition,
            None if headers is None else to_headers(headers),
            None if timestamp is None else to_microseconds(timestamp),
        )

    async def send_and_wait(
        self,
        topic: str,
        value: Data | None,
        key: Data | None = None,
        partition: int | None = None,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
    ) -> RecordMetadata:
        """`send`, and wait until the broker has the record."""
        return await (await self.send(topic, value, key, partition, headers, timestamp))

    async def send_batch(
        self,
        topic: str,
        values: Sequence[Data | None],
        keys: Sequence[Data | None] | None = None,
        partition: int | None = None,
        headers: Sequence[HeadersLike | None] | None = None,
        timestamps: Timestamp | Sequence[Timestamp] | None = None,
    ) -> BulkDelivery:
        """Take many records as columns of one length; far cheaper a record than `send`.

        Lists of bytes are used as they are: do not change them after. Cancelled while it waits for
        room, what it has taken so far is sent.
        """
        found = self._topics.get(topic) or await self._open_topic(topic)
        chunk = to_chunk(values, keys, headers, timestamps)
        if not chunk.values:
            return BulkDelivery([], 0)
        if partition is None:
            groups = group_by_partition(chunk, len(found.queues), self._partitioner)
        else:
            groups = [(found.queue(partition).partition, chunk)]
        batches = []
        accumulator = self._accumulator
        for number, group in groups:
            for piece, size in cut(group, self._batch_bytes):
                _check_size(size)
                if accumulator.buffered_bytes > accumulator.pause_at:
                    await accumulator.pause()
                if number is None:
                    queue = self._next_sticky(found)
                else:
                    queue = found.queues[number]
                batches.append(
                    accumulator.append_closed(
                        queue, piece.values, piece.keys, piece.headers, piece.timestamps, size
                    )
                )
        return BulkDelivery(batches, len(chunk.values))

    async def flush(self) -> None:
        """Wait until everything sent so far is acknowledged; raises what was not."""
        failed = await self._settle_all()
        error = self._failures.take(failed)
        if error is not None:
            raise error

    async def partitions_for(self, topic: str, *, fresh: bool = False) -> int:
        """How many partitions a topic has; `fresh`: asked of the broker now, so that those that
        were added lately can be sent to."""
        found = self._topics.get(topic) or await self._open_topic(topic)
        if fresh:
            await self._cluster.retry(lambda: self._cluster.refresh([topic]))
            self._add_partitions()
        return len(found.queues)

    # --- inside ---

    async def _open_topic(self, name: str) -> TopicQueues:
        if not self._is_started:
            raise ClientClosed("this producer is not open")
        await self._cluster.partition_count(name, may_create=True)
        if self._accumulator.refusal is not None:  # closed meanwhile
            raise self._accumulator.refusal
        found = self._topics.get(name)
        if found is None:  # nobody else was quicker
            count = self._cluster.metadata.partition_count(name)
            found = self._topics[name] = TopicQueues(name, count, self._sender.epoch)
        return found

    def _add_partitions(self) -> None:
        """After metadata was refreshed."""
        metadata = self._cluster.metadata
        for topic in self._topics.values():
            if metadata.knows(topic.name):
                topic.grow(metadata.partition_count(topic.name), self._sender.epoch)

    def _append(
        self,
        topic: TopicQueues,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: Headers | None,
        timestamp_us: int | None,
    ) -> Delivery:
        size = record_size(value, key, headers)
        _check_size(size)
        if partition is not None:
            queue = topic.queue(partition)
        elif key is not None:
            queue = topic.queue(self._partitioner(key, len(topic.queues)))
        else:
            queue = topic.sticky
            batch = queue.opened
            if batch is None or batch.size_bytes + size > self._batch_bytes:
                queue = self._next_sticky(topic)
        return self._accumulator.append(queue, value, key, headers, timestamp_us, size)

    def _next_sticky(self, topic: TopicQueues) -> PartitionQueue:
        if topic.sticky.opened is not None:
            self._accumulator.close(topic.sticky.opened)
        return topic.next_sticky()

    async def _settle_all(self) -> list[Batch]:
        """Wait for everything that is there now; those that failed."""
        batches = list(self._accumulator.unsettled)
        for batch in batches:
            self._accumulator.end_linger(batch)
        for batch in batches:
            await batch.outcome.wait()
        return [batch for batch in batches if batch.outcome.error is not None]


def _check_size(size: int) -> None:
    if size + EMPTY_BATCH_BYTES > MAX_BATCH_BYTES:
        raise BatchTooLarge(f"a record of {size} bytes, a batch may have {MAX_BATCH_BYTES}")
