"""What an application says about its membership in a group, and the topics that this comes to."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from ..protocol import api
from ..protocol.constants import (
    ASSIGNOR_RANGE,
    ASSIGNOR_ROUNDROBIN,
    ASSIGNOR_STICKY,
    INTERNAL_TOPIC_PREFIX,
)
from ..protocol.errors import BadConfig, CallbackFailed
from ..protocol.messages import MetadataRequest, MetadataResponse
from .cluster import Cluster
from .metadata import TopicPartition

#: Told of partitions, sorted; a plain function or a coroutine function.
OnPartitions = Callable[[list[TopicPartition]], Awaitable[None] | None]

DEFAULT_ASSIGNORS: Final = (ASSIGNOR_STICKY, ASSIGNOR_RANGE, ASSIGNOR_ROUNDROBIN)
DEFAULT_SESSION_TIMEOUT_MS: Final = 45_000
DEFAULT_AUTO_COMMIT_INTERVAL_MS: Final = 5_000
DEFAULT_MAX_HOLD_MS: Final = 300_000


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """The arguments of Consumer of the same names."""

    group: str
    instance_id: str | None = None
    assignors: tuple[str, ...] = DEFAULT_ASSIGNORS
    session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS
    auto_commit: bool = True
    auto_commit_interval_ms: int = DEFAULT_AUTO_COMMIT_INTERVAL_MS
    max_hold_ms: int = DEFAULT_MAX_HOLD_MS
    on_assigned: OnPartitions | None = None
    on_revoked: OnPartitions | None = None
    on_lost: OnPartitions | None = None

    def __post_init__(self) -> None:
        for name in ("session_timeout_ms", "auto_commit_interval_ms", "max_hold_ms"):
            if getattr(self, name) < 1:
                raise BadConfig(f"{name} {getattr(self, name)}: at least 1")
        if not self.assignors:
            raise BadConfig(f"assignors: offer at least one of {', '.join(DEFAULT_ASSIGNORS)}")

    @property
    def session_s(self) -> float:
        return self.session_timeout_ms / 1000


async def tell(callback: OnPartitions | None, names: Iterable[TopicPartition]) -> None:
    """Call it, and wait for it where it is a coroutine."""
    names = sorted(names)
    if callback is None or not names:
        return
    try:
        result = callback(names)
        if inspect.isawaitable(result):
            await result
    except Exception as error:
        name = getattr(callback, "__name__", "a callback")
        raise CallbackFailed(f"{name} raised {error!r}") from error


class Subscription:
    """Topics by name, or all whose whole name matches a pattern: looked up here, with `re`."""

    def __init__(self, topics: Iterable[str], pattern: str | re.Pattern[str] | None) -> None:
        self.topics = sorted(set(topics))
        try:
            self._pattern = None if pattern is None else re.compile(pattern)
        except re.error as error:
            raise BadConfig(f"pattern {pattern!r}: {error}") from None
        #: Partitions of these topics when the consumer came: what appears later is new to all.
        self._first_counts: dict[str, int] | None = None

    @property
    def has_pattern(self) -> bool:
        return self._pattern is not None

    async def resolve(self, cluster: Cluster) -> None:
        """Ask which topics there are."""
        request = MetadataRequest(None if self._pattern is not None else self.topics)
        response: MetadataResponse = await cluster.request_to_any(api.METADATA, request)
        cluster.metadata.update(response)
        counts = {each.name: len(each.leaders) for each in response.topics if each.error is None}
        if self._pattern is not None:
            self.topics = sorted(name for name in counts if self._matches(name))
        if self._first_counts is None:
            self._first_counts = counts

    def is_newer(self, name: TopicPartition) -> bool:
        """Whether the partition appeared after the consumer came."""
        return name.partition >= (self._first_counts or {}).get(name.topic, 0)

    def _matches(self, topic: str) -> bool:
        assert self._pattern is not None
        is_internal = topic.startswith(INTERNAL_TOPIC_PREFIX)
        return not is_internal and self._pattern.fullmatch(topic) is not None
