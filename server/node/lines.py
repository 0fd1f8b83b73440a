"""Lines out of bytes as they come. What is held of a line that has no end yet is bounded."""

from __future__ import annotations

from typing import Final

from ...protocol.constants import KIB, MAX_BATCH_BYTES

#: The message of any line that is taken fits into a batch, with what a batch has around it.
MAX_LINE_BYTES: Final = MAX_BATCH_BYTES - KIB

Line = bytes | None  # None: it was too long, and is gone


class LineSplitter:
    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []  # of the line that has no end yet
        self._length = 0

    def feed(self, data: bytes) -> list[Line]:
        """The lines that `data` ends."""
        *ends, rest = data.split(b"\n")
        lines = [self._end_line(end) for end in ends]
        self._hold(rest)
        return lines

    def finish(self) -> list[Line]:
        """What came after the last line end, once no more will come."""
        return [self._end_line(b"")] if self._length else []

    def _hold(self, part: bytes) -> None:
        self._length += len(part)
        if self._length <= self._max_bytes:
            self._parts.append(part)
        else:
            self._parts.clear()

    def _end_line(self, end: bytes) -> Line:
        self._hold(end)
        line = b"".join(self._parts) if self._length <= self._max_bytes else None
        self._parts.clear()
        self._length = 0
        return line
