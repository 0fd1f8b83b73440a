"""A compacted topic of the broker's own, used as a small database: the log is the table.

`load` gives the last value of each key; `append` makes changes durable before it returns. One
partition: what happened first is read first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..protocol.batch import decode_batch, encode_batch
from ..protocol.constants import MAX_BATCH_BYTES, MIB
from ..protocol.errors import SeglogError, TopicExists, UnknownTopic
from ..protocol.header import check_produced, split_batches
from ..protocol.records import Record
from .storage.config import LogConfig, config_values
from .storage.log import Log
from .storage.staged import AppendResult

if TYPE_CHECKING:
    from .partition import Partition
    from .topics import Topics
    from .writer import Writer

_READ_BYTES: Final = 1 * MIB

#: Of a table. All of them, so that no default for users' topics reaches it.
_TABLE_SETTINGS: Final = config_values(
    LogConfig(
        cleanup_policy="compact",
        segment_bytes=8 * MIB,  # a start reads what compaction has not seen: sealed often
        delete_retention_ms=60_000,  # nobody reads but a start, which reads all
        max_batch_bytes=MAX_BATCH_BYTES,  # of a transaction, an intent names many positions
    )
)


class InternalTopic:
    """Made with the first record; belongs to the loop."""

    def __init__(
        self,
        topics: Topics,
        writer: Writer,
        name: str,
        settings: Mapping[str, Any] = _TABLE_SETTINGS,
    ) -> None:
        self._topics = topics
        self._writer = writer
        self._name = name
        self._settings = dict(settings)

    @property
    def log(self) -> Log | None:
        """The log; None as long as nothing was ever written."""
        try:
            return self._topics.partition(self._name, 0).log
        except UnknownTopic:
            return None

    def load(self) -> dict[bytes, bytes]:
        """The last value of each key. Reads the whole log: for the start."""
        table: dict[bytes, bytes] = {}
        for record in self.records():
            if record.key is None:
                continue
            if record.value is None:
                table.pop(record.key, None)
            else:
                table[record.key] = record.value
        return table

    def records(self) -> Iterator[Record]:
        log = self.log
        if log is None:
            return
        offset = log.log_start
        while offset < log.durable_end:
            for batch in split_batches(log.read(offset, _READ_BYTES)):
                columns = decode_batch(batch)
                yield from columns.records()
                offset = columns.next_offset

    async def append(
        self, keys: Sequence[bytes], values: Sequence[bytes | None], now_us: int
    ) -> AppendResult:
        """Make one batch of records durable; raises what the writer answers."""
        partition = await self._partition()
        batch = encode_batch(values, keys, now_us)
        header = check_produced(batch)
        result = await self._writer.append(partition, batch, header)
        if isinstance(result, SeglogError):
            raise result
        return result

    async def _partition(self) -> Partition:
        try:
            return self._topics.partition(self._name, 0)
        except UnknownTopic:
            try:
                await self._topics.create(self._name, 1, self._settings)
            except TopicExists:
                pass  # made by another task meanwhile
            return self._topics.partition(self._name, 0)
