"""aiokafka, Kafka's asynchronous Python client."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from itertools import cycle
from typing import Any, Final

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError

from scripts.peers.interface import (
    BULK,
    FETCH_BYTES,
    Amount,
    Client,
    OnValues,
    in_chunks,
)

LINGER_MS: Final = 5
BATCH_BYTES: Final = 256 * 1024
CREATE_TIMEOUT_MS: Final = 30_000
PARTITION: Final = 0


class AiokafkaClient(Client):
    settings = (
        f"aiokafka: acks=all, idempotent, linger_ms={LINGER_MS}; uvloop",
        f"max_batch_size={BATCH_BYTES // 1024} KiB",
        "record by record: `await producer.send`, `flush` at the end",
        "bulk: `create_batch`, `append`, `send_batch`",
        "latency: linger_ms=0",
        "reading: `async for`; `getmany`; no group",
    )

    @classmethod
    def version(cls) -> str:
        return str(aiokafka.__version__)

    async def open(self) -> None:
        self._producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.address,
            acks="all",
            enable_idempotence=True,
            linger_ms=0 if self.for_latency else LINGER_MS,
            max_batch_size=BATCH_BYTES,
        )
        await self._producer.start()
        self._admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
        await self._admin.start()
        self._acks: deque[Any] = deque()

    async def close(self) -> None:
        await self._producer.stop()
        await self._admin.close()

    async def create(self, topic: str, *, is_durable: bool) -> None:
        config = {"flush.messages": "1"} if is_durable else {}
        answer = await self._admin.create_topics(
            [NewTopic(topic, num_partitions=1, replication_factor=1, topic_configs=config)],
            timeout_ms=CREATE_TIMEOUT_MS,
        )
        for _, code, *message in answer.topic_errors:
            if code not in (0, TopicAlreadyExistsError.errno):
                raise RuntimeError(f"Kafka did not create {topic}: {code} {message}")

    async def delete(self, topic: str) -> None:
        try:
            await self._admin.delete_topics([topic])
        except UnknownTopicOrPartitionError:
            pass

    async def length(self, topic: str) -> int:
        place = aiokafka.TopicPartition(topic, PARTITION)
        consumer = self._consumer()
        await consumer.start()
        try:
            return int((await consumer.end_offsets([place]))[place])
        finally:
            await consumer.stop()

    async def produce_bulk(self, topic: str, values: Sequence[bytes], until: float) -> int:
        sent = 0
        batch = self._producer.create_batch()
        for chunk in cycle(in_chunks(values, BULK)):
            if time.monotonic() >= until:
                break
            for value in chunk:
                if batch.append(key=None, value=value, timestamp=None) is None:  # it is full
                    self._keep(await self._send_batch(batch, topic))
                    batch = self._producer.create_batch()
                    batch.append(key=None, value=value, timestamp=None)
            sent += BULK
        self._keep(await self._send_batch(batch, topic))
        await self.flush()
        return sent

    async def _send_batch(self, batch: Any, topic: str) -> Any:
        return await self._producer.send_batch(batch, topic, partition=PARTITION)

    async def send_and_wait(self, topic: str, value: bytes) -> None:
        await self._producer.send_and_wait(topic, value)

    async def hand_over(self, topic: str, values: Sequence[bytes]) -> None:
        send = self._producer.send
        for value in values:
            last = await send(topic, value)
        self._keep(last)

    def _keep(self, ack: Any) -> None:
        """A log's batches fail together or in order: the last record of a chunk tells of all."""
        self._acks.append(ack)
        while self._acks and self._acks[0].done():
            self._acks.popleft().result()  # raises what was not acknowledged

    async def flush(self) -> None:
        await self._producer.flush()
        while self._acks:
            await self._acks.popleft()

    def _consumer(self) -> Any:
        return aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.address,
            group_id=None,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_partition_fetch_bytes=FETCH_BYTES,
        )

    async def _reader(self, topic: str) -> Any:
        consumer = self._consumer()
        await consumer.start()
        place = aiokafka.TopicPartition(topic, PARTITION)
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        return consumer

    async def read_records(self, topic: str, count: int) -> Amount:
        consumer = await self._reader(topic)
        try:
            first = await anext(consumer)
            started = time.monotonic()
            seen, size = 1, len(first.value)
            async for record in consumer:
                size += len(record.value)
                seen += 1
                if seen >= count:
                    break
            ended = time.monotonic()
        finally:
            await consumer.stop()
        return Amount(seen, size, 1, started, ended)

    async def read_batches(self, topic: str, count: int, on_values: OnValues) -> Amount:
        seen = size = first = 0
        started = 0.0
        consumer = await self._reader(topic)
        try:
            while seen < count:
                found = await consumer.getmany(timeout_ms=1_000)
                for records in found.values():
                    values = [record.value for record in records]
                    on_values(values)
                    seen += len(values)
                    size += sum(map(len, values))
                    if not first:
                        first, started = seen, time.monotonic()
            ended = time.monotonic()
        finally:
            await consumer.stop()
        return Amount(seen, size, first, started, ended)
