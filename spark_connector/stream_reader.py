"""The source of a streaming query, as Spark's Python Data Source API wants it.

Spark makes several of these: one in the process that plans the query, where everything but `read`
is called, and copies for the executors, where only `read` is. So one holds options, and gets a
planner when it is first asked to plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from .offsets import StreamOffset, spans
from .options import Options
from .planner import Planner
from .range_source import read_span
from .read_options import MAX_BYTES, MAX_OFFSETS, MAX_RECORDS_PER_PARTITION, MIN_PARTITIONS
from .splits import Split, split

if TYPE_CHECKING:
    import pyarrow


class SeglogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module. The names are Spark's."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._made: Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_made": None}

    @property
    def _planner(self) -> Planner:
        if self._made is None:
            self._made = Planner(self._options)
        return self._made

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._planner.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        max_records, max_bytes = self._options.get(MAX_OFFSETS), self._options.get(MAX_BYTES)
        if max_records is not None:
            return ReadMaxRows(max_records)
        return ReadAllAvailable() if max_bytes is None else ReadMaxBytes(max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._planner.aim_at_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return self._planner.next(StreamOffset.from_json(start), limit).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        latest = self._planner.latest()
        return None if latest is None else latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """A pure function of the arguments and the options: a replay is split the same."""
        found = spans(StreamOffset.from_json(start), StreamOffset.from_json(end))
        return split(
            found, self._options.get(MIN_PARTITIONS), self._options.get(MAX_RECORDS_PER_PARTITION)
        )

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, Split)
        return read_span(self._options, partition.span)

    def commit(self, end: dict[str, Any]) -> None:
        self._planner.done(StreamOffset.from_json(end))

    def stop(self) -> None:
        if self._made is not None:
            self._made.close()
