"""A topic as a producer sees it: its partitions, and whose turn it is for records without a key."""

from __future__ import annotations

from ..protocol.errors import UnknownPartition
from .batches import PartitionQueue
from .partitioner import StickyTurn


class TopicQueues:
    """Made with at least one partition; it may get more."""

    __slots__ = ("_turn", "name", "queues", "sticky")

    def __init__(self, name: str, partition_count: int, epoch: int) -> None:
        self.name = name
        self.queues: list[PartitionQueue] = []
        self._turn = StickyTurn()
        self.grow(partition_count, epoch)
        self.sticky = self.next_sticky()

    def grow(self, partition_count: int, epoch: int) -> None:
        """Have queues for this many partitions; never fewer than before."""
        for number in range(len(self.queues), partition_count):
            self.queues.append(PartitionQueue(self.name, number, epoch))

    def queue(self, partition: int) -> PartitionQueue:
        if not 0 <= partition < len(self.queues):
            raise UnknownPartition.beyond(self.name, partition, len(self.queues))
        return self.queues[partition]

    def next_sticky(self) -> PartitionQueue:
        """Let the next partition have its turn."""
        self.sticky = self.queues[self._turn.next(len(self.queues))]
        return self.sticky
