"""How far a bookmark is behind the durable end: in records, and in time since the first of them."""

from __future__ import annotations

from .storage.log import Log


def first_unread(log: Log, offset: int) -> int:
    """The first record that a bookmark leaves to read; what was deleted below it does not count."""
    return max(offset, log.log_start)


def append_time_us(log: Log, offset: int) -> int | None:
    """When the record at `offset` was appended; None at the durable end. For a reader thread.

    What is cold is read before the map touches it: a page fault would stop every thread.
    """
    if log.read_if_cached(offset, 1) is None:
        log.warm(offset, 1)
    return log.append_time_of(offset)
