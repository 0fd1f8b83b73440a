"""Sending at a given rate: when each record is due, and a clock that wakes the loop for it.

Time is cut into slots of a millisecond, or longer where fewer than 1,000 records a second are
due: at the begin of each slot its records are due together. Who is late (because a call waited,
or the machine was busy) goes on with the slot that is due next, never skips one, and latency is
counted from when a record was due: so a stall shows in every record that it delayed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from types import TracebackType
from typing import Final, Self

SLOT_NS: Final = 1_000_000
_LONGEST_SLEEP_S: Final = 0.1


class Pace:
    """One producer's slots."""

    def __init__(self, records_per_second: float, start_ns: int) -> None:
        self._per_slot = max(1.0, records_per_second * SLOT_NS / 1e9)
        self.slot_ns = self._per_slot * 1e9 / records_per_second
        self.start_ns = start_ns

    def due_ns(self, slot: int) -> int:
        return self.start_ns + int(slot * self.slot_ns)

    def records_in(self, slot: int) -> int:
        """Rounded so that after any number of slots as many were due as the rate says."""
        return int((slot + 1) * self._per_slot) - int(slot * self._per_slot)


class Waker:
    """Wakes tasks at a time, to some 0.1 ms: the loop's own timers are ten times coarser.

    A thread sleeps and wakes the loop at each slot; while the loop is busy, slots pass without
    gathering up.
    """

    def __init__(self, first_ns: int, slot_ns: float) -> None:
        self._first_ns = first_ns
        self._slot_ns = slot_ns
        self._loop = asyncio.get_running_loop()
        self._waiters: list[asyncio.Future[None]] = []
        self._is_waking = False
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="waker", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_stopped = True
        self._thread.join()

    async def until(self, due_ns: int) -> None:
        """Return at `due_ns` of the monotonic clock or, where that is past, at once."""
        while time.monotonic_ns() < due_ns:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def _run(self) -> None:
        slot = 0
        while not self._is_stopped:
            now = time.monotonic_ns()
            due = self._first_ns + int(slot * self._slot_ns)
            if now < due:
                time.sleep(min((due - now) / 1e9, _LONGEST_SLEEP_S))
                continue
            slot = max(slot, int((now - self._first_ns) / self._slot_ns)) + 1
            if not self._is_waking:
                self._is_waking = True
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
