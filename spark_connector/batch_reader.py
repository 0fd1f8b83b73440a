"""The source of a batch query: from the starting offsets to the ending offsets, once.

Both are looked up when Spark plans the query, and stay for its tasks. Spark hands filters down only
when `spark.sql.python.filterPushdown.enabled` is set, and refuses a reader that would take them
when it is not: so there are two classes. The planning process is told of the setting by being
another program: with it Spark runs the worker that pushes filters down, without it another one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from ..client.metadata import TopicPartition
from .broker_view import BrokerView
from .data_loss import report_loss
from .filters import Pushed
from .offsets import Positions, Span
from .options import Options
from .places import ending_positions, starting_positions
from .range_source import read_span
from .read_options import FAIL_ON_DATA_LOSS, MAX_RECORDS_PER_PARTITION, MIN_PARTITIONS
from .splits import Split, split

if TYPE_CHECKING:
    import pyarrow

_PUSHING_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class SeglogReader(DataSourceReader):
    """See the module."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._pushed = Pushed.of(())

    def partitions(self) -> Sequence[InputPartition]:
        view = BrokerView(self._options)
        names = view.names(must_exist=True)
        start = starting_positions(view, self._options, names, "earliest")
        end = ending_positions(view, self._options, names)
        found = self._pushed.cut(self._present(view, names, start, end))
        found = self._not_before(view, found)
        return split(
            found, self._options.get(MIN_PARTITIONS), self._options.get(MAX_RECORDS_PER_PARTITION)
        )

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        # Where there is nothing to read, Spark makes one partition of its own.
        if not isinstance(partition, Split):
            return iter(())
        return read_span(self._options, partition.span, self._pushed.timestamp_us.low)

    def _present(
        self, view: BrokerView, names: Sequence[TopicPartition], start: Positions, end: Positions
    ) -> list[Span]:
        """What is asked for and there; the rest is told."""
        found = []
        for name, log in view.ends(names).items():
            first, last = start[name], end[name]
            fails = self._options[FAIL_ON_DATA_LOSS]
            if first < min(log.log_start, last):
                lost = Span(name, first, min(log.log_start, last))
                report_loss(lost, f"the log starts at {log.log_start}", fails=fails)
                first = log.log_start
            if last > log.durable_end:
                missing = Span(name, max(first, log.durable_end), last)
                report_loss(missing, f"the log ends at {log.durable_end}", fails=fails)
                last = log.durable_end
            found.append(Span(name, first, last))
        return [span for span in found if span.offset_count]

    def _not_before(self, view: BrokerView, spans: list[Span]) -> list[Span]:
        """Without what lies before the first record that is late enough."""
        low = self._pushed.timestamp_us.low
        if low is None or not spans:
            return spans
        first = view.at_time_us([span.name for span in spans], low)
        return [
            Span(span.name, max(span.first_offset, first[span.name]), span.end_offset)
            for span in spans
            if first[span.name] >= 0
        ]


class SeglogFilteringReader(SeglogReader):
    """The same, with filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self._pushed = Pushed.of(filters)
        return filters  # Spark applies them too


def make_reader(options: Options) -> SeglogReader:
    """The class that Spark's settings ask for."""
    return SeglogFilteringReader(options) if _pushes_filters() else SeglogReader(options)


def _pushes_filters() -> bool:
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    return _PUSHING_WORKER in sys.modules or getattr(spec, "name", "") == _PUSHING_WORKER
