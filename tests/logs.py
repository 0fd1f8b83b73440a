"""What the storage tests share: open a log on a disk, make batches, read everything back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seglog.protocol.batch import decode_batch, encode_batch
from seglog.protocol.header import check_produced, split_batches
from seglog.protocol.records import Columns
from seglog.server.storage.config import LogConfig, make_config
from seglog.server.storage.filesystem import File, FileSystem
from seglog.server.storage.log import Log
from seglog.server.storage.recovery import open_log
from seglog.server.storage.segment import SegmentCache
from seglog.server.storage.staged import AppendResult, Staged

from tests.simulated_disk import SimulatedDisk

NAME = "orders/0"
EVERYTHING = 1 << 30
NOON_US = 1_700_000_000_000_000  # when the tests' clocks begin


class _HastyFile(File):
    def sync(self) -> None:
        pass


class HastyFileSystem(FileSystem):
    """The real disk, for tests that do not ask whether a sync was made: it makes none."""

    def open(self, path: str, *, write: bool = False) -> File:
        file = super().open(path, write=write)
        file.__class__ = _HastyFile
        return file

    def create(self, path: str) -> File:
        file = super().create(path)
        file.__class__ = _HastyFile
        return file

    def sync_folder(self, path: str) -> None:
        pass


class Stored(NamedTuple):
    """One record, as far as two records can differ."""

    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None


def settings(**names: Any) -> LogConfig:
    """Settings by their names with underscores: `segment_bytes=300`."""
    return make_config({name.replace("_", "."): value for name, value in names.items()})


SMALL = settings(segment_bytes=700, index_interval_bytes=150, retention_ms=-1)


def folder_of(disk: SimulatedDisk) -> str:
    return f"{disk.root}/partition-0"


def open_on(disk: SimulatedDisk, config: LogConfig = SMALL) -> Log:
    """The log of this disk, recovered as at the start of a process."""
    folder = folder_of(disk)
    if not disk.exists(folder):
        disk.make_folder(folder)
        disk.sync_folder(disk.root)
    return open_in(folder, config, disk)


def open_in(folder: str | Path, config: LogConfig = SMALL, fs: FileSystem | None = None) -> Log:
    cache = SegmentCache(3)  # few, so that segments are closed and opened again
    return open_log(fs or HastyFileSystem(), str(folder), NAME, config, cache)


def plain(*values: bytes | None, key: bytes | None = None, time_us: int = NOON_US) -> bytearray:
    return encode_batch(list(values), [key] * len(values), time_us)


def sequenced(
    sequence: int, *values: bytes, producer: int = 7, epoch: int = 0, time_us: int = NOON_US
) -> bytearray:
    """A batch of an idempotent producer."""
    return encode_batch(
        list(values),
        timestamps=time_us,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def stage(log: Log, batches: Sequence[bytearray], now_us: int = NOON_US) -> Staged:
    return log.stage([(batch, check_produced(batch)) for batch in batches], now_us)


def append_values(log: Log, *values: bytes, now_us: int = NOON_US) -> list[AppendResult]:
    """Each value as a group of its own, durable and published."""
    return [log.append(plain(value), now_us) for value in values]


def read_batches(log: Log, start: int, max_bytes: int = EVERYTHING) -> Iterator[Columns]:
    """From `start` to the durable end, as a consumer goes; every batch fully checked."""
    while start < log.durable_end:
        slice_ = log.read(start, max_bytes)
        assert slice_, f"nothing at offset {start}, the durable end is {log.durable_end}"
        for batch in split_batches(slice_):
            columns = decode_batch(batch)
            assert columns.next_offset > start, f"batch {columns} again at offset {start}"
            yield columns
            start = columns.next_offset


def records_of(columns: Columns) -> list[Stored]:
    return [
        Stored(record.offset, record.timestamp_us, record.key, record.value) for record in columns
    ]


def read_all(log: Log, max_bytes: int = EVERYTHING) -> list[Stored]:
    """Every record that is not deleted."""
    start = log.log_start
    found = [r for columns in read_batches(log, start, max_bytes) for r in records_of(columns)]
    return [record for record in found if record.offset >= start]


def values_of(log: Log) -> list[bytes | None]:
    return [record.value for record in read_all(log)]


def files_in(folder: str | Path) -> dict[str, bytes]:
    """The files below a folder with their bytes."""
    below = Path(folder)
    return {
        str(path.relative_to(below)): path.read_bytes()
        for path in sorted(below.rglob("*"))
        if path.is_file()
    }


def leave(log: Log) -> None:
    """End the process without a close: what was written stays."""
    log.active.file.close()
