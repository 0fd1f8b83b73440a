"""What a task does: read one range, from the broker into RecordBatches.

The broker sends on while Spark takes what came. A gap in the range is told as `failOnDataLoss`
asks.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from ..client.range_reader import Chunk, Gap, RangeReader
from .arrow import record_batches
from .connections import link
from .data_loss import report_loss
from .offsets import Span
from .options import Options
from .read_options import FAIL_ON_DATA_LOSS, FETCH_BYTES, INCLUDE_HEADERS


def read_span(
    options: Options, span: Span, not_before_us: int | None = None
) -> Iterator[pa.RecordBatch]:
    """All records of the span that are there, in order."""
    way = link(options)
    reader = RangeReader(
        way.thread,
        way.cluster,
        patience_s=way.patience_s,
        fetch_bytes=options[FETCH_BYTES],
        allocate=_arrow_memory,
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


def _arrow_memory(size: int) -> memoryview:
    """Of Arrow's own pool: not filled with zeros first, as a bytearray is, and not given back to
    the system after each chunk.
    """
    return memoryview(pa.allocate_buffer(size)).cast("B")
