"""Short words for tests of the log engine: make a batch, open a log, read it whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seglog.protocol.batch import EncodeOptions, decode_batch, encode_batch
from seglog.protocol.header import split_batches
from seglog.protocol.records import Record
from seglog.server.storage.config import make_config
from seglog.server.storage.filesystem import FileSystem
from seglog.server.storage.log import Log
from seglog.server.storage.recovery import open_log
from seglog.server.storage.segment import SegmentCache
from seglog.server.storage.staged import AppendResult

#: A time to count from, in microseconds.
NOON_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US


def open_at(
    folder: Path, fs: FileSystem | None = None, cache: SegmentCache | None = None, **settings: Any
) -> Log:
    """The log in `folder`; settings with underscores in place of their dots."""
    folder.mkdir(exist_ok=True)
    config = make_config({name.replace("_", "."): value for name, value in settings.items()})
    if cache is None:  # an empty one is false
        cache = SegmentCache()
    return open_log(fs or FileSystem(), str(folder), "test/0", config, cache)


def batch_of(
    *values: bytes | None,
    keys: Sequence[bytes | None] | None = None,
    timestamps: int | Sequence[int] = NOON_US,
    **options: Any,
) -> bytearray:
    known: EncodeOptions = options  # type: ignore[assignment]  # the test spells them right
    return encode_batch(values, keys, timestamps, **known)


def append(log: Log, *values: bytes | None, at_us: int = NOON_US, **options: Any) -> AppendResult:
    return log.append(batch_of(*values, **options), at_us)


def read_all(log: Log, offset: int | None = None, *, max_bytes: int = 1 << 20) -> list[Record]:
    """Every record from `offset` (the log start, if not given) to the durable end."""
    at = log.log_start if offset is None else offset
    start = at
    records: list[Record] = []
    while found := log.read(at, max_bytes):
        for batch in split_batches(found):
            columns = decode_batch(batch)
            records += [record for record in columns if record.offset >= start]
            at = columns.next_offset
    return records


def values(log: Log, offset: int | None = None) -> list[bytes | None]:
    return [record.value for record in read_all(log, offset)]


def keyed(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of every record."""
    return [(record.offset, record.key, record.value) for record in read_all(log)]
