"""The clients for code without an event loop: threads, scripts, Spark executors.

Each is the asynchronous one behind a loop that runs in a thread of its own. They may be used by
several threads at once, and not across a fork: make a new one in the child.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

from ..protocol.messages import DescribeTopicResponse, MetadataResponse
from ..protocol.records import Columns, Record
from .admin import Admin, Settings
from .blocking_groups import SyncGroupAdmin
from .cells import Data, HeadersLike, Timestamp
from .consumer import Consumer
from .delivery import BatchMetadata, BulkDelivery, Delivery, RecordMetadata
from .group_offsets import Bookmark, Offsets
from .loop_thread import LoopThread
from .metadata import TopicPartition
from .offsets import FoundOffset
from .positions import PartitionName
from .producer import Producer


class _Client(Protocol):
    async def start(self) -> None: ...
    async def close(self) -> None: ...


Client = TypeVar("Client", bound=_Client)
T = TypeVar("T")


class Blocking(Generic[Client]):
    """A client and the thread that its loop runs in. Opened when it is made."""

    def __init__(self, make: type[Client], *arguments: Any, **options: Any) -> None:
        self._thread = LoopThread.share()
        self._is_closed = False
        try:
            self._client: Client = self._thread.call(_opened(make, arguments, options))
        except BaseException:
            self._thread.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """As the asynchronous client's; may be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._thread.call(self._client.close())
        finally:
            self._thread.release()


async def _opened(
    make: type[Client], arguments: tuple[Any, ...], options: dict[str, Any]
) -> Client:
    client = make(*arguments, **options)
    await client.start()
    return client


class SyncDelivery:
    """Of one record that a SyncProducer took."""

    __slots__ = ("_delivery", "_thread")

    def __init__(self, thread: LoopThread, delivery: Delivery) -> None:
        self._thread = thread
        self._delivery = delivery

    @property
    def is_done(self) -> bool:
        """Whether `result` returns, or raises, at once."""
        return self._delivery.is_done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the broker's answer; TimeoutError where it does not come in time."""
        return self._thread.call(_await(self._delivery, timeout))


class SyncBulkDelivery:
    """Of the records of one `send_batch`."""

    __slots__ = ("_delivery", "_thread", "record_count")

    def __init__(self, thread: LoopThread, delivery: BulkDelivery) -> None:
        self._thread = thread
        self._delivery = delivery
        self.record_count = delivery.record_count

    @property
    def is_done(self) -> bool:
        """Whether `result` returns, or raises, at once."""
        return self._delivery.is_done

    def result(self, timeout: float | None = None) -> list[BatchMetadata]:
        """Wait for the broker's answers; TimeoutError where they do not come in time."""
        return self._thread.call(_await(self._delivery, timeout))


async def _await(delivery: Awaitable[T], timeout: float | None) -> T:
    async with asyncio.timeout(timeout):
        return await delivery


class SyncProducer(Blocking[Producer]):
    """A Producer that blocks. It takes the same options.

    Example::

        with SyncProducer("127.0.0.1:7400") as producer:
            producer.send("orders", b"...", key="customer-7")
            producer.send_batch("orders", [b"a", b"b"]).result()

    `send` goes through another thread for each record: where there are many, use `send_batch`.
    """

    def __init__(self, bootstrap: str | Iterable[str] = "127.0.0.1:7400", **options: Any) -> None:
        super().__init__(Producer, bootstrap, **options)

    def send(
        self,
        topic: str,
        value: Data | None,
        key: Data | None = None,
        partition: int | None = None,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
    ) -> SyncDelivery:
        """Take one record; waits only where the buffer is full."""
        work = self._client.send(topic, value, key, partition, headers, timestamp)
        return SyncDelivery(self._thread, self._thread.call(work))

    def send_and_wait(
        self,
        topic: str,
        value: Data | None,
        key: Data | None = None,
        partition: int | None = None,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
    ) -> RecordMetadata:
        """`send`, and wait until the broker has the record."""
        work = self._client.send_and_wait(topic, value, key, partition, headers, timestamp)
        return self._thread.call(work)

    def send_batch(
        self,
        topic: str,
        values: Sequence[Data | None],
        keys: Sequence[Data | None] | None = None,
        partition: int | None = None,
        headers: Sequence[HeadersLike | None] | None = None,
        timestamps: Timestamp | Sequence[Timestamp] | None = None,
    ) -> SyncBulkDelivery:
        """Take many records as columns."""
        work = self._client.send_batch(topic, values, keys, partition, headers, timestamps)
        return SyncBulkDelivery(self._thread, self._thread.call(work))

    def flush(self) -> None:
        """Wait until everything sent so far is acknowledged; raises what was not."""
        self._thread.call(self._client.flush())

    def partitions_for(self, topic: str) -> int:
        """How many partitions a topic has; UnknownTopic where there is none."""
        return self._thread.call(self._client.partitions_for(topic))


class SyncConsumer(Blocking[Consumer]):
    """A Consumer that blocks. It takes the same options.

    Example::

        with SyncConsumer("orders", bootstrap="127.0.0.1:7400", start="earliest") as consumer:
            for record in consumer:
                print(record.value)

    A group's callbacks run in the loop's thread: there, use what they are given, not this object.
    """

    def __init__(self, topics: str | Iterable[str] | None = None, **options: Any) -> None:
        super().__init__(Consumer, topics, **options)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        # A list's iterator may be stepped from any thread; only a new batch needs the loop.
        for record in self._client.current_records():
            return record
        return self._thread.call(self._client.__anext__())

    def batches(self) -> Iterator[Columns]:
        """Batch by batch, as columns."""
        while True:
            yield self.next_batch()

    def next_batch(self) -> Columns:
        """The next batch; waits for it."""
        return self._thread.call(self._client.next_batch())

    def get_batches(self, max_records: int = 10_000, timeout: float | None = None) -> list[Columns]:
        """The batches that are there, up to `max_records`; [] where none comes in time."""
        return self._thread.call(self._client.get_batches(max_records, timeout))

    def getmany(self, max_records: int = 500, timeout: float | None = None) -> list[Record]:
        """What is there, at most `max_records`; [] where nothing comes in time."""
        return self._thread.call(self._client.getmany(max_records, timeout))

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read."""
        return self._thread.run(lambda: self._client.assignment)

    def position(self, topic: str, partition: int) -> int:
        """The offset of the next record that the application gets."""
        return self._thread.run(self._client.position, topic, partition)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on at `offset`."""
        self._thread.run(self._client.seek, topic, partition, offset)

    def seek_to_start(self, *partitions: PartitionName) -> None:
        """Go to the log start; of all partitions if none is named."""
        self._thread.call(self._client.seek_to_start(*partitions))

    def seek_to_end(self, *partitions: PartitionName) -> None:
        """Go to the durable end; of all partitions if none is named."""
        self._thread.call(self._client.seek_to_end(*partitions))

    def seek_to_time(self, timestamp: Timestamp, *partitions: PartitionName) -> None:
        """Go to the first record with this time or a later one."""
        self._thread.call(self._client.seek_to_time(timestamp, *partitions))

    def pause(self, *partitions: PartitionName) -> None:
        """Give no records of these partitions until `resume`."""
        self._thread.run(self._client.pause, *partitions)

    def resume(self, *partitions: PartitionName) -> None:
        """Give records of these partitions again."""
        self._thread.run(self._client.resume, *partitions)

    def end_offsets(self, *partitions: PartitionName) -> dict[TopicPartition, int]:
        """The durable end of each partition, asked of the broker now."""
        return self._thread.call(self._client.end_offsets(*partitions))

    def lag(self) -> dict[TopicPartition, int]:
        """How many records there are from each position to the durable end."""
        return self._thread.call(self._client.lag())

    def commit(self, what: Record | Offsets | None = None) -> None:
        """Commit what was taken, or up to and with a record, or exactly these offsets."""
        self._thread.call(self._client.commit(what))

    def committed(self, *partitions: PartitionName) -> dict[TopicPartition, Bookmark]:
        """The group's bookmarks, asked of the broker now."""
        return self._thread.call(self._client.committed(*partitions))


class SyncAdmin(Blocking[Admin], SyncGroupAdmin):
    """An Admin that blocks. It takes the same options."""

    def __init__(self, bootstrap: str | Iterable[str] = "127.0.0.1:7400", **options: Any) -> None:
        super().__init__(Admin, bootstrap, **options)

    @property
    def _groups(self) -> Admin:
        return self._client

    def create_topic(
        self, name: str, partitions: int | None = None, config: Settings | None = None
    ) -> int:
        """Create a topic; how many partitions it has."""
        return self._thread.call(self._client.create_topic(name, partitions, config))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records."""
        self._thread.call(self._client.delete_topic(name))

    def alter_topic(
        self, name: str, partitions: int | None = None, config: Settings | None = None
    ) -> None:
        """Add partitions, or change settings."""
        self._thread.call(self._client.alter_topic(name, partitions, config))

    def list_topics(self) -> list[str]:
        """The names of all topics but internal ones, sorted."""
        return self._thread.call(self._client.list_topics())

    def describe_topic(self, name: str) -> DescribeTopicResponse:
        """Settings, and of each partition its log start, ends, size and segments."""
        return self._thread.call(self._client.describe_topic(name))

    def metadata(self, topics: Iterable[str] | None = None) -> MetadataResponse:
        """Brokers, topics and leaders."""
        return self._thread.call(self._client.metadata(topics))

    def list_offsets(
        self,
        topic: str,
        at: Literal["earliest", "latest"] | Timestamp = "latest",
        partitions: Iterable[int] | None = None,
    ) -> dict[int, FoundOffset]:
        """For each partition the log start, the durable end, or the first record at a time."""
        return self._thread.call(self._client.list_offsets(topic, at, partitions))

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """Delete what lies before an offset; the new log start."""
        return self._thread.call(self._client.delete_records(topic, partition, before_offset))
