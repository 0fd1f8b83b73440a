"""How far long work has come, on a terminal; nothing in a pipe, and nothing for short work.

It goes to standard error, and is wiped away at the end. While nothing is drawn, nothing that draws
is loaded.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import ProgressColumn, TaskID

SHOWN_AFTER_S: Final = 0.5
REFRESH_S: Final = 0.1

Unit = Literal["bytes", "records", "partitions"]


class Progress:
    """`advance` as often as you like. `total` None: only what was done is known, not what is left.

    Example::

        with Progress("checking", "bytes", total) as progress:
            for piece in pieces:
                progress.advance(len(piece))
    """

    def __init__(
        self, what: str, unit: Unit, total: int | None, *, is_shown: bool | None = None
    ) -> None:
        self._what = what
        self._unit: Unit = unit
        self._total = total
        self._done = 0
        self._is_shown = sys.stderr.isatty() if is_shown is None else is_shown
        self._next_s = time.monotonic() + SHOWN_AFTER_S
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, amount: int) -> None:
        self._done += amount
        if not self._is_shown:
            return
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + REFRESH_S
        if self._bar is None:
            self._bar = self._begun()
        if self._task is not None:
            self._bar.update(self._task, completed=self._done, refresh=True)

    def _begun(self) -> Bar:
        from rich import progress  # noqa: PLC0415 - only where something is drawn
        from rich.console import Console  # noqa: PLC0415

        columns: list[str | ProgressColumn] = [self._what]
        if self._total is not None:
            columns += [progress.BarColumn(), progress.TaskProgressColumn()]
        if self._unit == "bytes":
            columns += [progress.DownloadColumn(), progress.TransferSpeedColumn()]
        else:
            columns.append("{task.completed:,} " + self._unit)
        columns.append(
            progress.TimeElapsedColumn()
            if self._total is None
            else progress.TimeRemainingColumn(compact=True)
        )
        # No thread of its own: it is drawn when there is news. And what goes to standard output
        # must arrive there, in the file or pipe that it is, and not above the bar.
        bar = progress.Progress(
            *columns,
            console=Console(stderr=True),
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
        )
        self._task = bar.add_task(self._what, total=self._total)
        bar.start()
        return bar
