"""Segment files seen from outside: which there are, and what each holds.

    segment_files    finding and listing them
    segment_walk     the batches of one, and the stretches between that hold none
    segment_check    every checksum
    segment_repair   opening them as a broker does

All but repair take no lock and change nothing, so a running broker does not notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ..protocol.errors import SeglogError
from ..server.storage.filesystem import FileSystem
from ..server.storage.names import (
    LOCK,
    LOG,
    PARTITION_PREFIX,
    TOPIC_PREFIX,
    file_name,
    parse_file_name,
    partition_number,
)
from ..server.storage.segment import load_index
from .segment_walk import Batch, walk

ANY_INTERVAL: Final = 4096  # an index that is only looked at has no use for its own


class PartitionFolder(NamedTuple):
    topic: str
    partition: int
    path: Path

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.partition}"


class SegmentFile(NamedTuple):
    """One row of the list; `size_bytes` counts batches, not the room that is kept for more."""

    partition: str
    file: str
    start_offset: int
    end_offset: int
    size_bytes: int
    is_sealed: bool


def find_partitions(path: Path) -> list[PartitionFolder]:
    """Of a data folder, a topic's folder or a partition's folder."""
    path = path.absolute()
    if not path.is_dir():
        raise SeglogError(f"{path} is not a folder. Give a data folder, or a folder in it")
    if partition_number(path.name) is not None:
        return [_partition(path)]
    folders = [
        inner
        for outer in ([path] if path.name.startswith(TOPIC_PREFIX) else _topics(path))
        for inner in outer.iterdir()
        if inner.is_dir() and partition_number(inner.name) is not None
    ]
    if not folders and not (path / LOCK).exists():
        raise SeglogError(
            f"{path} holds no topics. Give the folder that `seglog serve --data` had, "
            f"or {TOPIC_PREFIX}NAME or {PARTITION_PREFIX}N in it"
        )
    return sorted(map(_partition, folders))


def _topics(data: Path) -> list[Path]:
    return [p for p in data.iterdir() if p.is_dir() and p.name.startswith(TOPIC_PREFIX)]


def _partition(path: Path) -> PartitionFolder:
    topic = path.parent.name.removeprefix(TOPIC_PREFIX)
    return PartitionFolder(topic, partition_number(path.name) or 0, path)


def segment_bases(folder: PartitionFolder) -> list[int]:
    parsed = [parse_file_name(entry.name) for entry in folder.path.iterdir()]
    return sorted(found[0] for found in parsed if found and found[1] == LOG)


def size_bytes(folders: Iterable[PartitionFolder]) -> int:
    """Of all their segment files, with the room that is kept for more."""
    files = (path for folder in folders for path in folder.path.glob(f"*{LOG}"))
    return sum(path.stat().st_size for path in files)


def list_segments(folder: PartitionFolder) -> Iterator[SegmentFile]:
    fs = FileSystem()
    bases = segment_bases(folder)
    for base in bases:
        is_sealed = base != bases[-1]
        try:
            end, size = _extent(fs, folder, base, is_sealed)
        except FileNotFoundError:
            continue  # deleted by retention since it was listed
        yield SegmentFile(folder.name, file_name(base, LOG), base, end, size, is_sealed)


def _extent(fs: FileSystem, folder: PartitionFolder, base: int, is_sealed: bool) -> tuple[int, int]:
    path = str(folder.path / file_name(base, LOG))
    if is_sealed:
        index = load_index(fs, str(folder.path), base, ANY_INTERVAL)
        if index is not None and index.covered_bytes == fs.size(path):
            return index.next_offset, index.covered_bytes
    end, size = base, 0
    for found in walk(fs, path, base, check=False):
        if isinstance(found, Batch):
            end, size = found.header.next_offset, found.position + found.header.length
    return end, size
