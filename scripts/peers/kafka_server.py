"""Apache Kafka: one node in KRaft mode on the loopback, its jars from Maven.

Durable is `flush.messages=1` on the topic: Kafka then syncs every batch that it appends, one by
one, before it acknowledges it. (Kafka's own answer to a power cut is replication, which one machine
cannot have.) Written is its default: the operating system writes back when it likes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from scripts.peers.cache import CACHE
from scripts.peers.interface import START_TIMEOUT_S, Missing, NotStarted, Server, free_port

VERSION: Final = "4.1.0"
JARS: Final = CACHE / f"kafka-{VERSION}"
#: Written last by --install: without it the folder is not whole.
COMPLETE: Final = JARS / "complete"
RESOLVE_TIMEOUT_S: Final = 900
#: Any will do: a node is alone, and its folder is new.
CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qk"

# What kafka-server-start.sh gives the JVM.
JVM_OPTIONS: Final = (
    "-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)  # fmt: skip

DEPENDENCY: Final = """
    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>"""
POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>seglog.bench</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>{dependencies}
  </dependencies>
</project>
"""
ARTIFACTS: Final = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    # So that errors can be seen: without it Kafka logs nothing.
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),
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
        if not COMPLETE.exists():
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
    maven = shutil.which("mvn")
    if maven is None:
        raise NotStarted("Kafka's jars come through Maven: apt-get install maven")
    JARS.mkdir(parents=True, exist_ok=True)
    dependencies = "".join(
        DEPENDENCY.format(group=group, artifact=artifact, version=version)
        for group, artifact, version in ARTIFACTS
    )
    (JARS / "pom.xml").write_text(POM.format(dependencies=dependencies))
    command = [
        maven, "--batch-mode", "--quiet", "dependency:copy-dependencies",
        "-DincludeScope=runtime", f"-DoutputDirectory={JARS / 'jars'}",
    ]  # fmt: skip
    subprocess.run(command, cwd=JARS, check=True, timeout=RESOLVE_TIMEOUT_S, env=dict(os.environ))
    if not list(Path(JARS / "jars").glob("kafka_*.jar")):
        raise NotStarted(f"Maven left no jar of Kafka in {JARS}")
    COMPLETE.touch()
