"""Producer ids: each is given out once in the life of a data folder, also across crashes.

A block of ids is reserved in a small file before the first of them is used; a crash wastes the
rest.
"""

from __future__ import annotations

from typing import Final

from .storage.checked_file import read_checked, write_checked
from .storage.filesystem import FileSystem, storage_error

_MAGIC: Final = b"SGPI"
_FILE: Final = "producer-ids"
BLOCK: Final = 1000


class ProducerIds:
    """`take` is called by the writer: it may touch the disk."""

    def __init__(self, fs: FileSystem, data: str) -> None:
        self._fs = fs
        self._path = f"{data}/{_FILE}"
        self._next = int(read_checked(fs, self._path, _MAGIC)) if fs.exists(self._path) else 0
        self._reserved = self._next

    def take(self) -> int:
        if self._next == self._reserved:
            try:
                write_checked(self._fs, self._path, _MAGIC, self._reserved + BLOCK)
            except OSError as error:
                raise storage_error(error, "reserving producer ids") from error
            self._reserved += BLOCK
        taken = self._next
        self._next += 1
        return taken
