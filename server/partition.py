"""One partition as the broker's loop sees it: its log, and who waits for it to grow."""

from __future__ import annotations

from ..protocol.errors import SeglogError, UnknownTopic
from .fetch_waiters import FetchWaiter
from .metrics import TopicTraffic
from .storage.log import Log


class Partition:
    """Belongs to the event loop; only `log` is shared with the writer's thread."""

    __slots__ = (
        "failure",
        "is_deleted",
        "log_or_none",
        "number",
        "topic",
        "topic_id",
        "traffic",
        "waiters",
    )

    def __init__(
        self,
        topic: str,
        topic_id: str,
        number: int,
        opened: Log | SeglogError,
        traffic: TopicTraffic,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.number = number
        self.log_or_none = opened if isinstance(opened, Log) else None
        self.failure = None if isinstance(opened, Log) else opened
        self.is_deleted = False
        self.traffic = traffic  # the topic's: all its partitions count there
        self.waiters: set[FetchWaiter] = set()

    @property
    def log(self) -> Log:
        """The log, or the error that says why it cannot be served."""
        if self.is_deleted:
            raise UnknownTopic(f"topic {self.topic} was deleted")
        if self.log_or_none is None:
            assert self.failure is not None
            raise type(self.failure)(f"{self.topic}/{self.number}: {self.failure.what}")
        return self.log_or_none

    def grew(self, length: int) -> None:
        """Tell those who wait that `length` bytes more can be read."""
        for waiter in list(self.waiters):
            waiter.arrived(length)

    def wake_all(self) -> None:
        """Let those who wait look again: the partition has changed in another way."""
        for waiter in list(self.waiters):
            waiter.wake()
