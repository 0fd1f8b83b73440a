"""confluent-kafka: librdkafka, a C library with threads of its own, from Python.

It blocks, so each process runs it alone in its event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any, Final

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from scripts.peers.interface import (
    BULK,
    FETCH_BYTES,
    Amount,
    Client,
    OnValues,
    in_chunks,
)

#: Its default, better than 0 for latency too where each batch is synced; `flush` ends the linger.
LINGER_MS: Final = 5
BATCH_BYTES: Final = 1_000_000
QUEUE_RECORDS: Final = 200_000
CONSUME_COUNT: Final = 10_000
TIMEOUT_S: Final = 30.0
LOG_LEVEL: Final = 0  # what matters is raised as an exception
FULL_WAIT_S: Final = 0.05
PARTITION: Final = 0


class ConfluentClient(Client):
    settings = (
        f"confluent-kafka: acks=all, idempotent, linger.ms={LINGER_MS}",
        f"batch.size={BATCH_BYTES:,}, queue.buffering.max.messages={QUEUE_RECORDS:,}",
        "record by record: `produce`, `poll(0)`, `flush` at the end",
        f"bulk: `produce_batch` of {BULK:,}",
        f"reading: `poll`; `consume({CONSUME_COUNT:,})`; assigned, not subscribed",
    )

    @classmethod
    def version(cls) -> str:
        return f"{confluent_kafka.version()} (librdkafka {confluent_kafka.libversion()[0]})"

    async def open(self) -> None:
        common: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self.address,
            "log_level": LOG_LEVEL,
        }
        self._failure: KafkaError | None = None
        self._producer = Producer(
            {
                **common,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": LINGER_MS,
                "batch.size": BATCH_BYTES,
                "queue.buffering.max.messages": QUEUE_RECORDS,
                # Successes need no call into Python: `flush` waits, failures are told.
                "delivery.report.only.error": True,
            }
        )
        self._admin = AdminClient(common)
        self._admin.list_topics(timeout=TIMEOUT_S)

    async def close(self) -> None:
        await self.flush()
        self._producer.close()

    async def create(self, topic: str, *, is_durable: bool) -> None:
        config = {"flush.messages": "1"} if is_durable else {}
        wanted = NewTopic(topic, num_partitions=1, replication_factor=1, config=config)
        with _but(KafkaError.TOPIC_ALREADY_EXISTS):
            self._admin.create_topics([wanted])[topic].result(TIMEOUT_S)

    async def delete(self, topic: str) -> None:
        with _but(KafkaError.UNKNOWN_TOPIC_OR_PART):
            self._admin.delete_topics([topic])[topic].result(TIMEOUT_S)

    async def length(self, topic: str) -> int:
        consumer = self._consumer()
        try:
            place = TopicPartition(topic, PARTITION)
            first, end = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
            return end - first
        finally:
            consumer.close()

    def _told(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._failure = error

    def _check(self) -> None:
        if self._failure is not None:
            raise confluent_kafka.KafkaException(self._failure)

    async def hand_over(self, topic: str, values: Sequence[bytes]) -> None:
        produce, poll, told = self._producer.produce, self._producer.poll, self._told
        for value in values:
            while True:
                try:
                    produce(topic, value, on_delivery=told)
                    break
                except BufferError:
                    poll(FULL_WAIT_S)
        poll(0)
        self._check()

    async def produce_bulk(self, topic: str, values: Sequence[bytes], until: float) -> int:
        sent = 0
        chunks: list[list[dict[str, Any]]] = [
            [{"value": value} for value in chunk] for chunk in in_chunks(values, BULK)
        ]
        for chunk in cycle(chunks):
            if time.monotonic() >= until:
                break
            left = chunk
            while self._producer.produce_batch(topic, left, on_delivery=self._told) < len(left):
                # It marks what did not fit into its queue in the dictionaries themselves.
                left = [each for each in left if each.pop("_error", None) is not None]
                self._producer.poll(FULL_WAIT_S)
            self._producer.poll(0)
            self._check()
            sent += BULK
        await self.flush()
        return sent

    async def send_and_wait(self, topic: str, value: bytes) -> None:
        self._producer.produce(topic, value, on_delivery=self._told)
        await self.flush()

    async def flush(self) -> None:
        if self._producer.flush(TIMEOUT_S):
            raise TimeoutError(f"Kafka did not acknowledge in {TIMEOUT_S:g} s")
        self._check()

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.address,
                "log_level": LOG_LEVEL,
                "group.id": "bench",
                "enable.auto.commit": False,
                "max.partition.fetch.bytes": FETCH_BYTES,
                "fetch.wait.max.ms": 500,
            }
        )

    def _reader(self, topic: str) -> Consumer:
        consumer = self._consumer()
        consumer.assign([TopicPartition(topic, PARTITION, OFFSET_BEGINNING)])
        return consumer

    async def read_records(self, topic: str, count: int) -> Amount:
        consumer = self._reader(topic)
        try:
            seen, size = 1, len(_value(consumer.poll(TIMEOUT_S)))
            started = time.monotonic()
            while seen < count:
                record = consumer.poll(TIMEOUT_S)
                size += len(_value(record))
                seen += 1
            ended = time.monotonic()
        finally:
            consumer.close()
        return Amount(seen, size, 1, started, ended)

    async def read_batches(self, topic: str, count: int, on_values: OnValues) -> Amount:
        return await self._read_many(topic, count, on_values, CONSUME_COUNT, TIMEOUT_S)

    async def follow(self, topic: str, count: int, on_values: OnValues) -> Amount:
        """`consume` waits until it has all it was asked for: so a little, and briefly."""
        return await self._read_many(topic, count, on_values, CONSUME_COUNT, 0.001)

    async def _read_many(
        self, topic: str, count: int, on_values: OnValues, at_once: int, timeout_s: float
    ) -> Amount:
        seen = size = first = 0
        started = 0.0
        consumer = self._reader(topic)
        try:
            while seen < count:
                records = consumer.consume(min(at_once, count - seen), timeout=timeout_s)
                if not records:
                    await asyncio.sleep(0)  # where a time limit can end it
                    continue
                values = [_value(record) for record in records]
                on_values(values)
                seen += len(values)
                size += sum(map(len, values))
                if not first:
                    first, started = seen, time.monotonic()
            ended = time.monotonic()
        finally:
            consumer.close()
        return Amount(seen, size, first, started, ended)


@contextmanager
def _but(code: int) -> Iterator[None]:
    """Everything is raised but this error: what is asked for is so already."""
    try:
        yield
    except confluent_kafka.KafkaException as error:
        if error.args[0].code() != code:
            raise


def _value(record: Any) -> bytes:
    if record is None:
        raise TimeoutError(f"Kafka gave no record in {TIMEOUT_S:g} s")
    if record.error() is not None:
        raise confluent_kafka.KafkaException(record.error())
    return bytes(record.value())
