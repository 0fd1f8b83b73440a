"""What was not delivered and nobody was told: kept until flush or close tells it."""

from __future__ import annotations

from typing import Final

from ..protocol.errors import SeglogError, error_from_wire
from .batches import Batch

#: Failed batches that are kept one by one; beyond, their records are only counted.
MAX_KEPT: Final = 1000


class Failures:
    """Told of every batch that fails."""

    def __init__(self) -> None:
        self._batches: dict[Batch, None] = {}
        self._others = 0

    def add(self, batch: Batch) -> None:
        if len(self._batches) < MAX_KEPT:
            self._batches[batch] = None
        else:
            self._others += batch.record_count

    def take(self, count_again: tuple[Batch, ...] | list[Batch] = ()) -> SeglogError | None:
        """One error for all of them, of the first one's kind; from now on they count as told.

        Batches of `count_again` are told whether or not somebody knows already.
        """
        again = dict.fromkeys(count_again)
        batches = {**self._batches, **again}
        count, self._others = self._others, 0
        self._batches = {}
        first: SeglogError | None = None
        for batch in batches:
            count += batch.record_count if batch in again else batch.unreported_count
            error = batch.report_all()
            first = first or error
        if not count or first is None:
            return None
        what = f"{count} records were not delivered, the first because: {first.what}"
        told = error_from_wire(first.code, what, first.details())
        told.__cause__ = first
        return told
