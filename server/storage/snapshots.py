"""Producer snapshots: `00000123.producers` is the producer state as it stood before offset 123.

A snapshot saves reading the batch headers below it again. The two newest are kept, so that a
damaged one costs a longer scan and nothing else.
"""

from __future__ import annotations

import logging
import os
from typing import Final

from ...protocol.errors import SeglogError
from .checked_file import read_checked, write_checked
from .filesystem import FileSystem
from .names import PRODUCERS, file_name, parse_file_name
from .producer_state import ProducerState

logger = logging.getLogger(__name__)

_MAGIC: Final = b"SGPS"
KEPT: Final = 2


def save(fs: FileSystem, folder: str, offset: int, producers: ProducerState) -> None:
    """Write a snapshot; its name is durable with the caller's next `sync_folder`."""
    write_checked(fs, _path(folder, offset), _MAGIC, producers.dump(), sync_folder=False)
    for old in [known for known in offsets(fs, folder) if known < offset][:-1]:
        fs.remove(_path(folder, old))


def offsets(fs: FileSystem, folder: str) -> list[int]:
    """The offsets for which there is a snapshot, in order."""
    parsed = [parse_file_name(name) for name in fs.list_folder(folder)]
    return sorted(found[0] for found in parsed if found and found[1] == PRODUCERS)


def load_newest(fs: FileSystem, folder: str, before: int) -> tuple[int, ProducerState]:
    """The newest sound snapshot not after `before`; offset 0 and nobody without one."""
    for offset in reversed(offsets(fs, folder)):
        if offset > before:
            continue
        try:
            return offset, ProducerState.load(read_checked(fs, _path(folder, offset), _MAGIC))
        except SeglogError as damage:
            logger.error("%s: rebuilding the producer state without it", damage.what)
    return 0, ProducerState()


def remove_after(fs: FileSystem, folder: str, offset: int) -> None:
    """Remove the snapshots of offsets that the log does not have (any more)."""
    gone = [known for known in offsets(fs, folder) if known > offset]
    for known in gone:
        fs.remove(_path(folder, known))
    if gone:  # none may come back when the log has grown past it again
        fs.sync_folder(folder)


def _path(folder: str, offset: int) -> str:
    return os.path.join(folder, file_name(offset, PRODUCERS))
