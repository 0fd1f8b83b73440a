"""Fetches that wait for data: woken by an append or by their deadline, never by polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .partition import Partition


class FetchWaiter:
    """One fetch that waits for more. Wakes once: with enough bytes, or at its deadline."""

    __slots__ = ("_deadline", "_missing_bytes", "_on_wake", "_partitions")

    def __init__(
        self,
        partitions: Sequence[Partition],
        missing_bytes: int,
        timeout_s: float,
        on_wake: Callable[[], None],
    ) -> None:
        self._partitions = partitions
        self._missing_bytes = missing_bytes
        self._on_wake: Callable[[], None] | None = on_wake
        self._deadline = asyncio.get_running_loop().call_later(timeout_s, self.wake)
        for partition in partitions:
            partition.waiters.add(self)

    def arrived(self, length: int) -> None:
        self._missing_bytes -= length
        if self._missing_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        """Answer now, with what is there."""
        on_wake = self._on_wake
        if on_wake is not None:
            self.cancel()
            on_wake()

    def cancel(self) -> None:
        """Stop waiting, for a connection that is gone. May be called twice."""
        self._on_wake = None
        self._deadline.cancel()
        for partition in self._partitions:
            partition.waiters.discard(self)
