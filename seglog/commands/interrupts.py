"""Ctrl-C and SIGTERM at the right moment: at once where a command waits, else after its step.

    with Interrupts() as interrupts:
        with interrupts.allowed():
            records = wait_for_more()      a signal ends this wait
        write(records)                     a signal waits for this step to be finished …
        interrupts.check()                 … and ends the command here

A second signal ends it anywhere, and so does the first when a step takes longer than GRACE_S: a
command that is told to end does so.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, Self

GRACE_S: Final = 3.0


class Terminated(BaseException):
    """SIGTERM came. As KeyboardInterrupt, it is no Exception: nothing takes it for a failure."""


class Interrupts:
    """For the main thread, one at a time."""

    def __init__(self) -> None:
        self._came: int | None = None
        self._is_allowed = False
        self._before: dict[int, Any] = {}
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:  # as a shell starts what runs in the background
                self._before[number] = before
                signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._timer is not None:
                self._timer.cancel()
                self._timer.join()  # what it may just be sending must find our handler
        finally:
            for number, before in self._before.items():
                signal.signal(number, before)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """A signal raises inside."""
        self._is_allowed = True
        try:
            self.check()
            yield
        finally:
            self._is_allowed = False

    def check(self) -> None:
        """Raise KeyboardInterrupt or Terminated, if a signal has come."""
        if self._came is not None:
            _raise(self._came)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_allowed or self._came is not None:
            self._came = number
            self._is_allowed = False  # what is done on the way out is a step again
            _raise(number)
        self._came = number
        self._timer = threading.Timer(GRACE_S, os.kill, (os.getpid(), number))
        self._timer.daemon = True
        self._timer.start()


def _raise(number: int) -> None:
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated
