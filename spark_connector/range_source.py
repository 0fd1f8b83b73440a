"""What a task does: read one range, from the broker into RecordBatches.

Fetching goes on in the loop's thread while Spark takes what came. A gap in the range is told as
`failOnDataLoss` asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..client.range_reader import Chunk, Gap, RangeReader
from .arrow import record_batches
from .connections import link
from .data_loss import report_loss
from .offsets import Span
from .options import Options
from .read_options import FAIL_ON_DATA_LOSS, FETCH_BYTES, INCLUDE_HEADERS

if TYPE_CHECKING:
    import pyarrow


def read_span(
    options: Options, span: Span, not_before_us: int | None = None
) -> Iterator[pyarrow.RecordBatch]:
    """All records of the span that are there, in order."""
    way = link(options)
    reader = RangeReader(
        way.thread, way.cluster, patience_s=way.patience_s, fetch_bytes=options[FETCH_BYTES]
    )
    found = reader.read(span.name, span.first_offset, span.end_offset)
    return record_batches(
        _chunks(options, span, found),
        span,
        include_headers=options[INCLUDE_HEADERS],
        not_before_us=not_before_us,
    )


def _chunks(options: Options, span: Span, found: Iterator[Chunk | Gap]) -> Iterator[memoryview]:
    for each in found:
        if isinstance(each, Gap):
            lost = Span(span.name, each.first_offset, each.end_offset)
            why = "the log ends before them" if each.reason is None else each.reason.what
            report_loss(lost, why, fails=options[FAIL_ON_DATA_LOSS])
        else:
            yield each.batches
