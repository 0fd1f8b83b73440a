"""The batch that an application is in, and how far it came in it.

A position is not counted record by record: a list's iterator knows how many are left, so taking a
record costs nothing more than the iterator's step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from operator import length_hint
from typing import Final

from ..protocol.batch import decode_batch
from ..protocol.errors import SeglogError
from ..protocol.records import Columns, Record
from .fetch_state import FetchState, Jump, RawBatch
from .fetcher import Fetcher
from .metadata import TopicPartition

logger = logging.getLogger(__name__)

#: Called as on_data_loss(topic, partition, from_offset, to_offset) when records are jumped over.
OnDataLoss = Callable[[str, int, int, int], None]

_NOTHING: Final[list[Record]] = []


class Cursor:
    """At most one batch at a time; `iterator` has its records that were not taken."""

    def __init__(self, fetcher: Fetcher, on_data_loss: OnDataLoss | None) -> None:
        self._fetcher = fetcher
        self._on_data_loss = on_data_loss
        self.state: FetchState | None = None
        self._columns: Columns | None = None
        self._records: list[Record] = _NOTHING
        self.iterator: Iterator[Record] = iter(_NOTHING)
        self._postponed: SeglogError | None = None

    def enter(self) -> bool:
        """Go to the next batch, if one is there; raises what comes before it."""
        self.leave()
        self._raise_postponed()
        found = self._take()
        if found is None:
            return False
        self.state, self._columns = found
        self._records = self._columns.records()
        self.iterator = iter(self._records)
        return True

    def try_enter(self) -> bool:
        """As `enter`, for one who has records in hand: an error waits for the next call."""
        try:
            return self.enter()
        except SeglogError as error:
            self._postponed = error
            return False

    def take_columns(self) -> Columns | None:
        """What is left of the current batch, or the next one; None where none is there."""
        self._raise_postponed()
        rest = length_hint(self.iterator)
        if rest and self._columns is not None and self.state is not None:
            state = self.state
            columns = self._columns.window(len(self._columns) - rest, len(self._columns))
            self.leave()
        else:
            self.leave()
            found = self._take()
            if found is None:
                return None
            state, columns = found
        state.position = columns.next_offset
        return columns

    def try_take_columns(self) -> Columns | None:
        """As `take_columns`, for one who has a batch in hand: an error waits for the next call."""
        try:
            return self.take_columns()
        except SeglogError as error:
            self._postponed = error
            return None

    def leave(self) -> None:
        """Note how far the application came, and be in no batch. What is left is forgotten."""
        if self.state is not None:
            self.state.position = self.position(self.state)
        self.state = self._columns = None
        self._records = _NOTHING
        self.iterator = iter(_NOTHING)

    def put_back(self) -> None:
        """Leave the current batch with the rest of it still to come: it is fetched again."""
        state = self.state
        if state is not None:
            self.leave()
            self._fetcher.seek(state.name, state.position)

    def position(self, state: FetchState) -> int:
        """The offset of the next record that the application gets of this partition."""
        if state is not self.state or self._columns is None:
            return state.position
        rest = length_hint(self.iterator)
        if not rest:
            return self._columns.next_offset
        taken = len(self._records) - rest
        return self._records[taken].offset if taken else state.position

    def last_taken(self) -> tuple[FetchState, int] | None:
        """The partition and offset of the last record that was taken of the current batch."""
        taken = len(self._records) - length_hint(self.iterator)
        if self.state is None or not taken:
            return None
        return self.state, self._records[taken - 1].offset

    def _raise_postponed(self) -> None:
        error, self._postponed = self._postponed, None
        if error is not None:
            raise error

    def _take(self) -> tuple[FetchState, Columns] | None:
        """The next batch with a record that was asked for, decoded. Tells of jumps on the way."""
        while (found := self._fetcher.take()) is not None:
            state, item = found
            if isinstance(item, Jump):
                state.position = item.to_offset
                self._report(state.name, item)
            elif isinstance(item, RawBatch):
                columns = self._decode(state, item)
                if len(columns):
                    state.taken_epoch = columns.header.log_epoch
                    return state, columns
                # Compaction took them all, or they lie before what was asked for.
                state.position = max(state.position, item.next_offset)
            else:
                raise item
        return None

    def _decode(self, state: FetchState, item: RawBatch) -> Columns:
        topic, partition = state.name
        try:
            columns = decode_batch(item.data, topic=topic, partition=partition)
        except SeglogError as error:
            # It may have been damaged on its way here, and what came with it too: all of it again.
            self._fetcher.seek(state.name, state.position)
            error.what = f"{topic}/{partition} at offset {state.position}: {error.what}"
            raise
        if columns.base_offset < state.position:
            columns = columns.between(state.position, item.next_offset)
        return columns

    def _report(self, name: TopicPartition, jump: Jump) -> None:
        logger.warning(
            "%s/%d: reading goes on at offset %d instead of %d: %s",
            *name, jump.to_offset, jump.from_offset, jump.error,
        )  # fmt: skip
        if self._on_data_loss is not None:
            self._on_data_loss(*name, jump.from_offset, jump.to_offset)
