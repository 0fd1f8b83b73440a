"""The table of what is measured: a broker and a client library each. Seglog is the first."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from scripts.peers.interface import Client, Server
from scripts.peers.kafka_aiokafka import AiokafkaClient
from scripts.peers.kafka_confluent import ConfluentClient
from scripts.peers.kafka_server import KafkaServer, install_kafka
from scripts.peers.nats_jetstream import BUILT, MODULE, NatsClient, NatsServer
from scripts.peers.redis_streams import RedisClient, RedisServer
from scripts.peers.results import SEGLOG
from scripts.peers.seglog_broker import SeglogClient, SeglogServer

INSTALL_TIMEOUT_S: Final = 900


class System(NamedTuple):
    """Systems with the same server class share one broker process."""

    name: str
    title: str
    server: type[Server]
    client: type[Client]


SYSTEMS: Final = {
    system.name: system
    for system in (
        System(SEGLOG, "Seglog", SeglogServer, SeglogClient),
        System("redis", "Redis Streams", RedisServer, RedisClient),
        System("nats", "NATS JetStream", NatsServer, NatsClient),
        System("aiokafka", "Kafka, aiokafka", KafkaServer, AiokafkaClient),
        System("confluent", "Kafka, confluent-kafka", KafkaServer, ConfluentClient),
    )
}


def install(servers: set[type[Server]]) -> None:
    """Bring what is missing: only ever called because somebody asked for it with --install."""
    if KafkaServer in servers and KafkaServer.missing(is_durable=True):
        install_kafka()
    wanted = {RedisServer: "redis-server", NatsServer: "nats-server"}
    for server, package in wanted.items():
        if server in servers and server.missing(is_durable=False):
            _install_package(package)
    if NatsServer in servers and NatsServer.missing(is_durable=True) and shutil.which("go"):
        BUILT.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "GOBIN": str(BUILT.parent)}
        subprocess.run(
            ["go", "install", MODULE], env=environment, check=True, timeout=INSTALL_TIMEOUT_S
        )


def _install_package(package: str) -> None:
    """With apt; the service that Debian starts with it is stopped again: we run our own."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    commands = [["apt-get", "update"], ["apt-get", "install", "--yes", package]]
    if shutil.which("systemctl") and Path("/run/systemd/system").is_dir():
        commands.append(["systemctl", "disable", "--now", package])
    for command in commands:
        subprocess.run(command, env=environment, check=True, timeout=INSTALL_TIMEOUT_S)
