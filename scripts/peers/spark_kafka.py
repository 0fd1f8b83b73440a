"""Spark's own Kafka source, for `scripts/bench spark --peers`: its jars, and a topic to read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pyspark
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from scripts.peers.cache import CACHE
from scripts.peers.interface import START_TIMEOUT_S, Missing
from scripts.peers.kafka_server import KafkaServer, install_kafka
from scripts.peers.maven import Artifact, is_complete, resolve

#: The source is released with Spark, and made for it.
VERSION: Final = pyspark.__version__
_JARS: Final = CACHE / f"spark-kafka-{VERSION}"
#: All else that it needs comes with Spark.
_ARTIFACTS: Final = (
    Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", VERSION),
    Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", VERSION),
    Artifact("org.apache.kafka", "kafka-clients", "3.9.1"),
    Artifact("org.apache.commons", "commons-pool2", "2.12.1"),
)
_TIMEOUT_S: Final = 30.0


def missing() -> Missing | None:
    """None: the broker and the source are here."""
    if not is_complete(_JARS):
        reason = f"the jars of Spark's Kafka source {VERSION} are not here"
        return Missing(reason, "scripts/bench spark --peers --install")
    return KafkaServer.missing(is_durable=False)


def install() -> None:
    """Bring the jars of the source and of the broker through Maven."""
    if not is_complete(_JARS):
        resolve(_JARS, _ARTIFACTS, proof="spark-sql-kafka-*.jar", alone=True)
    if KafkaServer.missing(is_durable=False) is not None:
        install_kafka()


def jars() -> str:
    """For the setting `spark.jars`."""
    return ",".join(map(str, sorted((_JARS / "jars").glob("*.jar"))))


class KafkaTopics:
    """A broker with topics that hold given values."""

    def __init__(self, folder: Path) -> None:
        self._server = KafkaServer(folder, is_durable=False)
        self._server.start()
        self.address = self._server.address

    def stop(self) -> None:
        self._server.stop()

    def fill(self, topic: str, partitions: int, parts: Callable[[], Sequence[bytes]],
             count: int) -> None:  # fmt: skip
        """`count` records, dealt to the partitions in pieces as `parts` gives them."""
        self._create(topic, partitions)
        producer = Producer(
            {"bootstrap.servers": self.address, "linger.ms": 20, "batch.size": 1_000_000,
             "queue.buffering.max.messages": 500_000}
        )  # fmt: skip
        sent, place = 0, 0
        while sent < count:
            values = parts()
            for value in values:
                producer.produce(topic, value, partition=place)
            producer.flush(_TIMEOUT_S)
            sent += len(values)
            place = (place + 1) % partitions

    def _create(self, topic: str, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            self._server.check_alive()
            try:
                wanted = NewTopic(topic, num_partitions=partitions, replication_factor=1)
                admin.create_topics([wanted], request_timeout=_TIMEOUT_S)[topic].result()
                return
            except KafkaException:
                if time.monotonic() > end:
                    raise
