"""The part of Consumer that knows and moves positions: which partitions, where in them, and how far
that is from the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol.constants import EARLIEST, LATEST
from ..protocol.errors import BadConfig, UnknownPartition
from .cells import Timestamp, to_time_sought
from .cluster import Cluster
from .cursor import Cursor
from .fetch_state import FetchState
from .fetcher import Fetcher
from .hand import Hand
from .metadata import TopicPartition
from .offsets import find_positions

PartitionName = tuple[str, int]


class Positions:
    """Needs what is named here."""

    _cluster: Cluster
    _fetcher: Fetcher
    _cursor: Cursor
    _hand: Hand

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read."""
        return sorted(self._fetcher.states)

    def position(self, topic: str, partition: int) -> int:
        """The offset of the next record that the application gets."""
        return self._cursor.position(self._state(topic, partition))

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on at `offset`. What was fetched is dropped."""
        if offset < 0:
            raise BadConfig(f"seek to offset {offset}")
        state = self._state(topic, partition)
        if state is self._cursor.state:
            self._hand.keep(self._cursor.leave)
        self._fetcher.seek(state.name, offset)

    async def seek_to_start(self, *partitions: PartitionName) -> None:
        """Go to the log start; of all partitions if none is named."""
        await self._seek_to(EARLIEST, partitions)

    async def seek_to_end(self, *partitions: PartitionName) -> None:
        """Go to the durable end, past everything that is there now; of all if none is named."""
        await self._seek_to(LATEST, partitions)

    async def seek_to_time(self, timestamp: Timestamp, *partitions: PartitionName) -> None:
        """Go to the first record with this time (aware datetime, or microseconds) or a later one;
        to the end where there is none."""
        await self._seek_to(to_time_sought(timestamp), partitions)

    async def _seek_to(self, time_us: int, partitions: Sequence[PartitionName]) -> None:
        wanted = dict.fromkeys(self._names(partitions), time_us)
        for name, offset in (await find_positions(self._cluster, wanted)).items():
            self.seek(*name, offset)

    def pause(self, *partitions: PartitionName) -> None:
        """Give no records of these partitions until `resume`; of all if none is named."""
        for name in self._names(partitions):
            if self._fetcher.states[name] is self._cursor.state:
                self._hand.keep(self._cursor.put_back)
            self._fetcher.pause(name)

    def resume(self, *partitions: PartitionName) -> None:
        """Give records of these partitions again; of all if none is named."""
        for name in self._names(partitions):
            self._fetcher.resume(name)

    def paused(self) -> list[TopicPartition]:
        """The partitions that give no records now."""
        return sorted(n for n, state in self._fetcher.states.items() if state.is_paused)

    async def end_offsets(self, *partitions: PartitionName) -> dict[TopicPartition, int]:
        """The durable end of each partition, asked of the broker now; of all if none is named."""
        return await find_positions(self._cluster, dict.fromkeys(self._names(partitions), LATEST))

    async def lag(self) -> dict[TopicPartition, int]:
        """How many records there are from each position to the durable end."""
        ends = await self.end_offsets()
        return {name: max(0, end - self.position(*name)) for name, end in ends.items()}

    # --- inside ---

    def _state(self, topic: str, partition: int) -> FetchState:
        try:
            return self._fetcher.states[TopicPartition(topic, partition)]
        except KeyError:
            raise UnknownPartition(f"{topic}/{partition} is not read by this consumer") from None

    def _names(self, partitions: Sequence[PartitionName]) -> list[TopicPartition]:
        if not partitions:
            return self.assignment
        return [self._state(*name).name for name in partitions]
