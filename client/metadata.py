"""What a client remembers of a cluster: brokers and their addresses, topics and their leaders."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ..protocol.constants import DEFAULT_PORT
from ..protocol.errors import BadConfig, SeglogError, UnknownPartition, UnknownTopic
from ..protocol.messages import MetadataResponse


class TopicPartition(NamedTuple):
    """The name of a partition. Wherever one is asked for, a plain `("topic", 0)` will do."""

    topic: str
    partition: int


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_bootstrap(bootstrap: str | Iterable[str]) -> list[Address]:
    """`"host:port,host:port"`, or several such; a missing port is 7400. IPv6 stands in brackets."""
    texts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses = [_parse(text.strip()) for text in texts if text.strip()]
    if not addresses:
        raise BadConfig("bootstrap is empty: give host:port of a broker")
    return addresses


def _parse(text: str) -> Address:
    host, bracket, rest = text.rpartition("]")
    if bracket:
        host, port = host.removeprefix("["), rest.removeprefix(":")
    elif ":" in text:
        host, _, port = text.rpartition(":")
    else:
        host, port = text, ""
    if not host or (port and not port.isdigit()) or not 0 < int(port or DEFAULT_PORT) < 65_536:
        raise BadConfig(f"bootstrap: {text!r} is not host:port")
    return Address(host, int(port or DEFAULT_PORT))


#: Topics that are not there: what was said of so many is remembered.
MAX_ERRORS: Final = 1_000


class Metadata:
    """A cache, filled from responses; it asks nobody itself."""

    def __init__(self) -> None:
        self.brokers: dict[int, Address] = {}
        self._leaders: dict[str, list[int]] = {}
        self._errors: dict[str, SeglogError] = {}

    def update(self, response: MetadataResponse) -> None:
        for broker in response.brokers:
            self.brokers[broker.broker_id] = Address(broker.host, broker.port)
        for topic in response.topics:
            if topic.error is None:
                self._leaders[topic.name] = topic.leaders
                self._errors.pop(topic.name, None)
            else:
                self._leaders.pop(topic.name, None)
                self._errors[topic.name] = topic.error.to_exception()
                if len(self._errors) > MAX_ERRORS:
                    del self._errors[next(iter(self._errors))]

    def topics(self) -> list[str]:
        """The topics that were asked for so far and are there."""
        return list(self._leaders)

    def knows(self, topic: str) -> bool:
        return topic in self._leaders

    def partition_count(self, topic: str) -> int:
        """UnknownTopic, or what else the broker said, where there is no such topic."""
        leaders = self._leaders.get(topic)
        if leaders is None:
            raise self._errors.get(topic) or UnknownTopic(f"no topic {topic!r}")
        return len(leaders)

    def leader(self, topic: str, partition: int) -> int:
        """The broker_id that serves the partition."""
        count = self.partition_count(topic)
        if not 0 <= partition < count:
            raise UnknownPartition.beyond(topic, partition, count)
        return self._leaders[topic][partition]
