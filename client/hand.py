"""What the application has in hand: records that it took and has not moved past.

It moves past them by asking for the next ones, and in no other way. Only what it has moved past is
committed by itself. Records that are taken one by one leave no note anywhere: the cursor's iterator
tells which was the last. Only what came many at once is noted, with the place where the cursor was
left; where the cursor has gone on from there, one by one, the note does not count any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from operator import length_hint

from .cursor import Cursor
from .fetch_state import FetchState


class Hand:
    """Of one consumer."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._noted: dict[FetchState, int] = {}
        self._iterator = cursor.iterator
        self._rest = 0
        self._emptied = asyncio.Event()

    # --- the application's reading ---

    def empty(self) -> None:
        """The application asks for more: it has moved past what it had."""
        self._noted = {}
        self._emptied.set()

    def note(self, state: FetchState, offset: int) -> None:
        """Several records of this partition, from `offset` on, are being taken at once."""
        self._noted.setdefault(state, offset)

    def noted(self) -> None:
        """All of them are taken."""
        self._iterator = self._cursor.iterator
        self._rest = length_hint(self._iterator)

    def keep(self, leave: Callable[[], None]) -> None:
        """Let the cursor `leave` its batch for another reason than that it is finished with."""
        held = dict(self._held())
        leave()
        self._noted = held
        self.noted()

    # --- what others want to know ---

    def finished(self, state: FetchState) -> int:
        """The offset up to which the application has moved past the partition's records."""
        position = self._cursor.position(state)
        return min(self._held().get(state, position), position)

    def holds_any(self, states: Iterable[FetchState]) -> bool:
        held = self._held()
        return any(state in held for state in states)

    async def wait_without(self, states: Iterable[FetchState]) -> None:
        """Until the application has moved past all records of these partitions."""
        states = list(states)
        while self.holds_any(states):
            self._emptied.clear()
            await self._emptied.wait()

    def drop(self, states: Iterable[FetchState]) -> None:
        """What it has of these is another's from now on: nobody waits for it."""
        for state in states:
            self._noted.pop(state, None)
        self._emptied.set()

    def _held(self) -> dict[FetchState, int]:
        """Each partition with records in hand, and the offset of the first of them."""
        iterator = self._cursor.iterator
        if self._noted and iterator is self._iterator and length_hint(iterator) == self._rest:
            return self._noted
        last = self._cursor.last_taken()
        return {} if last is None else {last[0]: last[1]}
