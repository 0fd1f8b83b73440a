"""What a streaming query reads next: the driver's side of the source.

One for each query, in the process that Spark keeps for it. Two rules:

- What Spark may ask for again after a crash (`spans` between two offsets) depends on nothing but
  the two offsets: they say everything (offsets.py).
- Nothing here fails because a broker is away for a while: Spark would end the query.
"""

from __future__ import annotations

import logging
from typing import Final
from uuid import uuid4

from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows

from ..client.log_ends import LogEnds
from ..client.metadata import TopicPartition
from .bookmark import Bookmark
from .broker_view import BrokerView
from .data_loss import report_loss
from .limits import limit_bytes, limit_records
from .offsets import Positions, Span, StreamOffset
from .options import Options
from .places import starting_positions
from .read_options import (
    FAIL_ON_DATA_LOSS,
    GROUP_ID,
    IDLE_WAIT,
    MAX_BYTES,
    MAX_OFFSETS,
)

logger = logging.getLogger(__name__)

_DEFAULT_START: Final = "latest"

Ends = dict[TopicPartition, LogEnds]


class Planner:
    """See the module."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._view = BrokerView(options)
        self._fails = options[FAIL_ON_DATA_LOSS]
        self._initial: StreamOffset | None = None
        self._target: Positions | None = None  # with AvailableNow
        self._latest: Positions = {}
        self._bookmark: Bookmark | None = None

    def initial(self) -> StreamOffset:
        """Where a new query begins. Asked for more than once, answered the same."""
        if self._initial is None:
            names = self._view.names(must_exist=True)
            positions = starting_positions(self._view, self._options, names, _DEFAULT_START)
            reader = f"spark-{uuid4()}" if self._options.has(GROUP_ID) else None
            self._initial = StreamOffset(positions, {}, reader)
        return self._initial

    def aim_at_now(self) -> None:
        """AvailableNow: nothing that comes from here on is read."""
        names = self._view.names(must_exist=False)
        self._target = {name: each.durable_end for name, each in self._view.ends(names).items()}

    def next(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        """The end of the next micro-batch; `start` itself where there is nothing to read.

        Everything before `start` is done: Spark asks once the batch before is finished.
        """
        self._show_progress(start)
        found = self._next(start, limit)
        if found == start and self._target is None:
            positions = {n: offset for n, offset in start.positions.items() if n in self._latest}
            self._view.wait(positions, self._options[IDLE_WAIT])
            found = self._next(start, limit)
        return found

    def latest(self) -> StreamOffset | None:
        """The end of all logs when they were last looked at, for the query's progress."""
        return StreamOffset(self._latest) if self._latest else None

    def done(self, end: StreamOffset) -> None:
        """Spark has finished everything up to here."""
        self._show_progress(end)

    def close(self) -> None:
        """Leave the group. Spark often ends the process without calling this."""
        if self._bookmark is not None:
            self._bookmark.close(self._view.link)

    # --- the next end ---

    def _next(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        ends = self._view.ends(self._view.names(must_exist=False))
        self._latest = {name: each.durable_end for name, each in ends.items()}
        begins = dict(start.positions) if start == self._initial else {}
        begins |= self._begins(start, ends)
        known = {name: begins.get(name, start.positions.get(name, 0)) for name in ends}
        if self._target is not None:
            # What is not in the target came later; what is past it stays where it is.
            known = {name: at for name, at in known.items() if self._is_aimed_at(name, start)}
        begins = {name: at for name, at in begins.items() if name in known}
        reach = {name: max(at, self._reach(name, ends)) for name, at in known.items()}
        positions = self._limited(known, reach, limit)
        if not begins and positions == start.positions:
            return start
        return StreamOffset(positions, begins, start.reader)

    def _is_aimed_at(self, name: TopicPartition, start: StreamOffset) -> bool:
        assert self._target is not None
        return name in self._target or name in start.positions

    def _reach(self, name: TopicPartition, ends: Ends) -> int:
        end = ends[name].durable_end
        return end if self._target is None else min(end, self._target.get(name, 0))

    def _begins(self, start: StreamOffset, ends: Ends) -> Positions:
        """Where partitions begin that are new, or whose position is lost."""
        begins: Positions = {}
        for name in sorted(start.positions.keys() - ends.keys()):
            lost = Span(name, start.positions[name], start.positions[name] + 1)
            report_loss(
                lost, "and all after it: there is no such partition any more", fails=self._fails
            )
        for name, log in ends.items():
            at = start.positions.get(name, 0)
            if name not in start.positions:
                logger.info("%s/%d is new: it is read from its start", *name)
                begins[name] = 0
            if at < log.log_start:
                lost = Span(name, at, log.log_start)
                report_loss(lost, f"the log starts at {log.log_start}", fails=self._fails)
                begins[name] = log.log_start
            elif at > log.durable_end:
                begins[name] = self._back(name, at, log)
        return begins

    def _back(self, name: TopicPartition, at: int, log: LogEnds) -> int:
        """The log ends before the position: it was cut back, or is another one."""
        lost = Span(name, log.durable_end, at)
        why = f"the log ends at {log.durable_end}: it was cut back, or the topic was made anew"
        report_loss(lost, why, fails=self._fails)
        return log.durable_end if self._view.was_cut(name) else log.log_start

    def _limited(self, start: Positions, end: Positions, limit: ReadLimit) -> Positions:
        """By what Spark says, which is one of the options; the other option counts with it."""
        max_records, max_bytes = None, None
        if isinstance(limit, ReadMaxRows):
            max_records, max_bytes = limit.max_rows, self._options.get(MAX_BYTES)
        elif isinstance(limit, ReadMaxBytes):
            max_records, max_bytes = self._options.get(MAX_OFFSETS), limit.max_bytes
        if max_records is not None:
            end = limit_records(start, end, max_records)
        if max_bytes is not None:
            end = limit_bytes(start, end, self._view.segments(end), max_bytes)
        return end

    # --- the bookmark ---

    def _show_progress(self, start: StreamOffset) -> None:
        if start.reader is None:
            return
        if self._bookmark is None:
            self._bookmark = Bookmark(self._options, start.reader)
        self._bookmark.join(self._view.link)
        self._bookmark.commit(self._view.link, start.positions)
