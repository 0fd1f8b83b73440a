"""The log engine: appending and reading against the bare file, lookups, opening after a crash.

    append   the log's four steps, against pwritev and fdatasync of the same bytes into a file that
             was preallocated whole
    read     log.read and a copy of what it gives, against copying the same bytes from a plain map
    lookup   log.read of one small batch at random offsets, in a short log and in a long one
    open     a log that was closed and one that crashed, small and large, with the same number of
             bytes in the last segment

Everything is in the page cache, as it is for a reader that keeps up.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import typer

from scripts.figures import Figure, alternate, median_ratio, report, timed
from seglog.protocol.batch import encode_batch
from seglog.protocol.constants import MIB, PREFIX_BYTES
from seglog.protocol.header import check_produced, pack_prefix
from seglog.server.storage.config import make_config
from seglog.server.storage.filesystem import File, FileSystem
from seglog.server.storage.log import Log
from seglog.server.storage.recovery import open_log
from seglog.server.storage.segment import SegmentCache

KB: Final = 1000
RECORD_BYTES: Final = 100
NOW_US: Final = 1_700_000_000_000_000

LOOKUP_AIM_US: Final = 20
GROWTH_AIM: Final = 1.5
APPEND_AIM: Final = 0.8


class UnsyncedFile(File):
    """Reaches the page cache and no further."""

    def sync(self) -> None:
        pass


class UnsyncedFileSystem(FileSystem):
    """Builds a large log quickly: nothing waits for the disk."""

    def open(self, path: str, *, write: bool = False) -> File:
        return self._unsynced(super().open(path, write=write))

    def create(self, path: str) -> File:
        return self._unsynced(super().create(path))

    def sync_folder(self, path: str) -> None:
        pass

    def _unsynced(self, file: File) -> File:
        unsynced = UnsyncedFile(file.path, os.dup(file.descriptor))
        file.close()
        return unsynced


def make_batch(size_bytes: int) -> bytearray:
    """A batch of about that size, of records that do not compress."""
    count = max(1, size_bytes // (RECORD_BYTES + 4))
    chance = random.Random(size_bytes)
    return encode_batch([chance.randbytes(RECORD_BYTES) for _ in range(count)], timestamps=NOW_US)


def open_at(
    folder: Path, fs: FileSystem | None = None, capacity: int = 128, **settings: int
) -> Log:
    folder.mkdir(exist_ok=True)
    config = make_config({name.replace("_", "."): value for name, value in settings.items()})
    return open_log(fs or FileSystem(), str(folder), "bench/0", config, SegmentCache(capacity))


# --- append --------------------------------------------------------------------------------------


class BareFile:
    """The least that a durable append can cost: prefix and batch, uncopied, into reserved disk."""

    def __init__(self, path: Path, batch: bytearray, batches: int) -> None:
        self.batch = batch
        self.position = 0
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        os.posix_fallocate(self.descriptor, 0, len(batch) * batches)

    def append(self, count: int, group: int) -> None:
        prefix, rest = pack_prefix(0, NOW_US, len(self.batch), 0), memoryview(self.batch)
        buffers: list[bytes | memoryview] = [prefix, rest[PREFIX_BYTES:]] * group
        for _ in range(count // group):
            self.position += os.pwritev(self.descriptor, buffers, self.position)
            os.fdatasync(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


def append_to_log(log: Log, batch: bytearray, count: int, group: int) -> None:
    """As the broker's writer does, the check of the producer's bytes included."""
    if group == 1:
        for _ in range(count):
            log.append(batch, NOW_US)
        return
    for _ in range(count // group):
        waiting = [(batch, check_produced(batch)) for _ in range(group)]
        while waiting:
            staged = log.stage(waiting, NOW_US)
            log.write(staged)
            log.sync()
            waiting = waiting[staged.taken :]
        log.publish()


class Race:
    """The log and the bare file, each taking the same batches in the same groups."""

    def __init__(self, folder: Path, size_bytes: int, count: int, group: int, rounds: int) -> None:
        self.count, self.group = count, group
        self.batch = make_batch(size_bytes)
        self.log = open_at(folder / "log")
        self.bare = BareFile(folder / "bare", self.batch, count * (rounds + 1))
        append_to_log(self.log, self.batch, group, group)
        self.bare.append(group, group)

    def append_to_bare_file(self) -> None:
        self.bare.append(self.count, self.group)

    def append_to_log(self) -> None:
        append_to_log(self.log, self.batch, self.count, self.group)

    def close(self) -> None:
        self.log.close()
        self.bare.close()


def bench_append(folder: Path, rounds: int) -> Iterator[Figure]:
    heading = "append, as a part of bare pwritev + fdatasync"
    for size_bytes, count, group in (
        (100 * KB, 640, 1),
        (100 * KB, 640, 16),
        (4 * KB, 1024, 1),
        (4 * KB, 16384, 64),
    ):
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            race = Race(Path(temporary), size_bytes, count, group, rounds)
            bare_s, log_s = alternate(race.append_to_bare_file, race.append_to_log, rounds)
            race.close()
        megabytes = len(race.batch) * count / 1e6
        how = "one by one" if group == 1 else f"in groups of {group}"
        name = f"{size_bytes // KB} kB batches, synced {how}"
        note = f"{megabytes / median(log_s):.0f} MB/s; bare {megabytes / median(bare_s):.0f}"
        ratio = median_ratio(bare_s, log_s)
        if size_bytes >= 100 * KB:
            yield Figure.at_least(heading, name, ratio, APPEND_AIM, note)
        else:
            yield Figure(heading, name, ratio, "×", note=note)


# --- read ----------------------------------------------------------------------------------------


def bench_read(folder: Path, rounds: int) -> Iterator[Figure]:
    for size_bytes in (100 * KB, 4 * KB):
        batch = make_batch(size_bytes)
        records = check_produced(batch).record_count
        log = open_at(folder / "read", UnsyncedFileSystem())
        while log.size_bytes < 128 * MIB:
            append_to_log(log, batch, 64, 64)
        maps = []
        for info in log.describe():
            with (folder / "read" / info.file).open("rb") as file:
                maps.append(
                    memoryview(mmap.mmap(file.fileno(), info.size_bytes, prot=mmap.PROT_READ))
                )

        def read_log(log: Log = log, length: int = len(batch), records: int = records) -> None:
            offset = 0
            while data := bytes(log.read(offset, MIB)):
                offset += len(data) // length * records

        def read_maps(maps: list[memoryview] = maps, step: int = MIB) -> None:
            for view in maps:
                for position in range(0, len(view), step):
                    bytes(view[position : position + step])

        read_log()
        read_maps()
        map_s, log_s = alternate(read_maps, read_log, rounds)
        megabytes = log.size_bytes / 1e6
        yield Figure(
            "read, as a part of copying the mapped bytes",
            f"{size_bytes // KB} kB batches, 1 MiB at a time",
            median_ratio(map_s, log_s),
            "×",
            note=f"{megabytes / median(log_s):,.0f} MB/s; bare {megabytes / median(map_s):,.0f}",
        )
        log.close()
        shutil.rmtree(folder / "read")


# --- lookup --------------------------------------------------------------------------------------

SMALL_BATCHES: Final = 256  # in a segment
HOT_SEGMENTS: Final = 100  # fewer than the segments that are kept open


class Lookups:
    """A log of so many segments, and random offsets in those that are open."""

    def __init__(self, folder: Path, segments: int) -> None:
        batch = make_batch(KB)
        self.log = open_at(
            folder,
            UnsyncedFileSystem(),
            segment_bytes=SMALL_BATCHES * len(batch),
            segment_ms=1 << 50,
        )
        while len(self.log.segments) <= segments:
            append_to_log(self.log, batch, SMALL_BATCHES, SMALL_BATCHES)
        chance = random.Random(segments)
        self.sealed = self.log.segments[:-1]
        hot = chance.sample(self.sealed, min(segments, HOT_SEGMENTS))
        width = self.sealed[1].base_offset
        self.offsets = [
            chance.choice(hot).base_offset + chance.randrange(width) for _ in range(5000)
        ]
        self.look_up()

    def look_up(self) -> None:
        read = self.log.read
        for offset in self.offsets:
            read(offset, 1)

    def open_cold(self) -> None:
        """One read in each segment, in an order that finds none of them open."""
        for segment in self.sealed:
            self.log.cache.forget(segment)  # type: ignore[arg-type]  # all but the last are sealed
            self.log.read(segment.base_offset, 1)


def bench_lookup(folder: Path, rounds: int, long_log: int) -> Iterator[Figure]:
    short = Lookups(folder / "short", 10)
    long = Lookups(folder / "long", long_log)
    short_s, long_s = alternate(short.look_up, long.look_up, rounds)
    each = 1e6 / len(short.offsets)
    group = "lookup of one small batch at a random offset"
    for lookups, seconds in ((short, short_s), (long, long_s)):
        name = f"in a log of {len(lookups.sealed):,} segments"
        yield Figure.at_most(group, name, median(seconds) * each, LOOKUP_AIM_US, "µs", "")
    growth = median_ratio(long_s, short_s)
    yield Figure.at_most(group, "the longer, times the shorter", growth, GROWTH_AIM, "×", "")
    cold_s = timed(long.open_cold) / len(long.sealed)
    yield Figure(group, "where the segment must be opened first", cold_s * 1e6, "µs")
    for lookups in (short, long):
        lookups.log.close()
    for name in ("short", "long"):
        shutil.rmtree(folder / name)


# --- open ----------------------------------------------------------------------------------------

SEGMENT_BYTES: Final = 64 * MIB
LAST_SEGMENT_BYTES: Final = 32 * MIB


class Reopened:
    """A log as a close left it, and as a crash did, with nothing saved since its last roll."""

    def __init__(self, folder: Path, sealed_segments: int) -> None:
        self.clean, self.crashed = folder / "clean", folder / "crashed"
        folder.mkdir()
        batch = make_batch(100 * KB)
        log = open_at(self.clean, UnsyncedFileSystem())
        while len(log.segments) <= sealed_segments or log.active.size < LAST_SEGMENT_BYTES:
            append_to_log(log, batch, 10, 10)
        self.crashed.mkdir()
        self.last = self.crashed / Path(log.active.file.path).name
        for path in self.clean.iterdir():
            if path.name == self.last.name:
                shutil.copyfile(path, self.last)
            else:
                os.link(path, self.crashed / path.name)
        self.last_bytes = self.last.stat().st_size  # the preallocated tail included
        self.size_bytes = log.size_bytes
        self.end = log.log_end
        log.close()

    def open_clean(self) -> None:
        assert open_at(self.clean).log_end == self.end

    def open_crashed(self) -> None:
        assert open_at(self.crashed).log_end == self.end

    def crash_again(self) -> None:
        """Recovery cut the tail: put it back."""
        with self.last.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, self.last_bytes)


def bench_open(folder: Path, rounds: int, sealed_segments: int) -> Iterator[Figure]:
    small = Reopened(folder / "small", 1)
    large = Reopened(folder / "large", sealed_segments)
    for kind in ("clean", "crashed"):
        seconds: dict[str, list[float]] = {"small": [], "large": []}
        for number in range(rounds):
            for name, log in (("small", small), ("large", large))[:: 1 if number % 2 else -1]:
                log.crash_again()
                seconds[name].append(timed(log.open_clean if kind == "clean" else log.open_crashed))
        group = f"open a {kind} log, {LAST_SEGMENT_BYTES // MIB} MiB of it in the last segment"
        for name, log in (("small", small), ("large", large)):
            size = f"{log.size_bytes / 1e6:,.0f} MB"
            yield Figure(group, f"of {size}", median(seconds[name]) * 1000, "ms")
        growth = median_ratio(seconds["large"], seconds["small"])
        name = "the larger, times the smaller"
        if kind == "crashed":
            yield Figure.at_most(group, name, growth, GROWTH_AIM, "×", "")
        else:  # no scan at all: what is left is a look at each name, and shows beside nothing
            yield Figure(group, name, growth, "×")
    for name in ("small", "large"):
        shutil.rmtree(folder / name)


# --- all -----------------------------------------------------------------------------------------


def main(
    folder: Annotated[
        Path | None,
        typer.Option(help="On the disk to measure; the system's temporary one if not given."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each side takes its turn.")] = 9,
    full: Annotated[bool, typer.Option("--full", help="Open a log of 5 GB, not of 1.")] = False,
    only: Annotated[str, typer.Option(help="append, read, lookup or open.")] = "",
    json: Annotated[Path | None, typer.Option(help="Save the figures here as well.")] = None,
) -> None:
    """Takes one to three minutes and up to 2 GB of disk (6 GB with --full), and cleans up."""
    parts: dict[str, Callable[[Path], Iterator[Figure]]] = {
        "append": lambda at: bench_append(at, rounds),
        "read": lambda at: bench_read(at, rounds),
        "lookup": lambda at: bench_lookup(at, rounds, 2000),
        "open": lambda at: bench_open(at, rounds, 79 if full else 15),
    }
    if only and only not in parts:
        raise typer.BadParameter(f"{only}: one of {', '.join(parts)}")
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="seglog-bench-", dir=folder) as temporary:
        for name, part in parts.items():
            if only in {"", name}:
                figures += part(Path(temporary))
    report(figures, "scripts/bench storage" + (" --full" if full else ""), json)
