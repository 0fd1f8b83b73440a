"""Ranges into tasks: a pure function, so that a batch that is read again is split as before.

One task a partition, unless `maxRecordsPerPartition` or `minPartitions` ask for more. A task costs
Spark some 25 ms, so nothing is split that nobody asked to have split.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from .offsets import Span


class Split(InputPartition):
    """What one task reads."""

    def __init__(self, span: Span) -> None:
        super().__init__(tuple(span))
        self.span = span


def split(
    spans: Sequence[Span], min_partitions: int | None, max_records: int | None
) -> list[Split]:
    """In the order of `spans`; every offset in exactly one split, none of them empty."""
    spans = [span for span in spans if span.offset_count]
    parts = [1 if max_records is None else -(-span.offset_count // max_records) for span in spans]
    if min_partitions is not None and sum(parts) < min_partitions:
        total = sum(span.offset_count for span in spans)
        # As many as its share asks for, but no more than it has records.
        shares = [-(-min_partitions * span.offset_count // total) for span in spans]
        parts = [
            max(part, min(share, span.offset_count))
            for part, share, span in zip(parts, shares, spans, strict=True)
        ]
    return [
        Split(piece)
        for span, count in zip(spans, parts, strict=True)
        for piece in _pieces(span, count)
    ]


def _pieces(span: Span, count: int) -> list[Span]:
    """As equal as can be."""
    bounds = [span.first_offset + span.offset_count * place // count for place in range(count + 1)]
    return [Span(span.name, first, end) for first, end in pairwise(bounds)]
