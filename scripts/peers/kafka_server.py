"""Apache Kafka: one node in KRaft mode on the loopback, its jars from Maven.

Durable is `flush.messages=1` on the topic: Kafka then syncs every batch that it appends, one by
one, before it acknowledges it. (Kafka's own answer to a power cut is replication, which one machine
cannot have.) Written is its default: the operating system writes back when it likes.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import Final

from scripts.peers.cache import CACHE
from scripts.peers.interface import START_TIMEOUT_S, Missing, NotStarted, Server, free_port
from scripts.peers.maven import Artifact, is_complete, resolve

VERSION: Final = "4.1.0"
JARS: Final = CACHE / f"kafka-{VERSION}"
#: Any will do: a node is alone, and its folder is new.
CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qk"

# What kafka-server-start.sh gives the JVM.
JVM_OPTIONS: Final = (
    "-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)  # fmt: skip

ARTIFACTS: Final = (
    Artifact("org.apache.kafka", "kafka_2.13", VERSION),
    # So that errors can be seen: without it Kafka logs nothing.
    Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),
)

PROPERTIES: Final = """process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
auto.create.topics.enable=false
"""


class KafkaServer(Server):
    @classmethod
    def missing(cls, *, is_durable: bool) -> Missing | None:
        if shutil.which("java") is None:
            return Missing("Kafka needs Java 17", "apt-get install openjdk-17-jre-headless")
        if not is_complete(JARS):
            return Missing(
                f"the jars of Kafka {VERSION} are not here (Maven brings them)",
                "scripts/bench peers --install",
            )
        return None

    @classmethod
    def version(cls) -> str:
        return VERSION

    @classmethod
    def settings(cls, *, is_durable: bool) -> list[str]:
        flush = "flush.messages=1 (a sync for every appended batch)" if is_durable else "defaults"
        return [
            "KRaft, one node that is broker and controller; a topic has one replica",
            "JVM as kafka-server-start.sh has it: -Xms1g -Xmx1g, G1",
            f"topics: {flush}",
        ]

    def prepare(self) -> list[str]:
        """Formats the storage too: that is not part of the start that is measured."""
        properties = self.folder / "server.properties"
        properties.write_text(
            PROPERTIES.format(
                port=self.port, controller_port=free_port(), data=self.folder / "data"
            )
        )
        formatted = subprocess.run(
            [*self._java("kafka.tools.StorageTool"), "format", "--standalone",
             "-t", CLUSTER_ID, "-c", str(properties)],
            capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False,
        )  # fmt: skip
        if formatted.returncode:
            raise NotStarted(f"Kafka's storage: {formatted.stdout}{formatted.stderr}")
        return [*self._java("kafka.Kafka", *JVM_OPTIONS), str(properties)]

    def _java(self, main: str, *options: str) -> list[str]:
        return ["java", *options, "-cp", f"{JARS / 'jars'}/*", main]


def install_kafka() -> None:
    """Resolve Kafka's jars with Maven into the cache."""
    resolve(JARS, ARTIFACTS, proof="kafka_*.jar")
