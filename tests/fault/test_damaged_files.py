"""Files that do not read back as they were written: rebuilt where that can be, else it is told.

What is damaged is never returned as data, never skipped in silence, and never numbered again; what
is sound is served. A failure names the file and the byte.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from seglog.protocol.batch import decode_batch
from seglog.protocol.errors import DamagedBatch, DamagedLog, SeglogError
from seglog.protocol.header import hop, split_batches
from seglog.server.storage.compaction import compact
from seglog.server.storage.log import Log

from tests.logs import (
    NOON_US,
    SMALL,
    Stored,
    append_values,
    files_in,
    leave,
    open_in,
    plain,
    read_all,
    records_of,
    sequenced,
    settings,
)

FILLED = settings(segment_bytes=700, index_interval_bytes=200, retention_ms=-1)


def served(log: Log, max_bytes: int = 1 << 20) -> list[Stored]:
    """What a consumer gets that goes around every damage it is told of, and how it is told."""
    found: list[Stored] = []
    offset = log.log_start
    while offset < log.durable_end:
        try:
            slice_ = log.read(offset, max_bytes)
        except DamagedLog as damage:
            before, offset = offset, damage.resume_offset
        else:
            before, offset = offset, _take(slice_, offset, found)
        assert offset > before, f"sent from {before} to {offset}"
    assert offset == log.durable_end
    return found


def _take(slice_: memoryview, offset: int, found: list[Stored]) -> int:
    """Take the sound batches of a slice; returns where to read on."""
    start, is_told = offset, False
    try:
        for batch in split_batches(slice_):
            try:
                columns = decode_batch(batch)
            except SeglogError:
                is_told = True
                offset = max(offset + 1, hop(batch, 0).base_offset + 1)
                continue
            assert columns.base_offset <= offset or is_told, f"{columns} for offset {offset}"
            found += [record for record in records_of(columns) if record.offset >= start]
            offset, is_told = columns.next_offset, False
    except DamagedBatch:  # a header: reading on from here tells how far the damage goes
        assert offset > start, "a slice that begins with a damaged header"
    return offset


def flipped(data: bytes, at: int) -> bytes:
    spoiled = bytearray(data)
    spoiled[at] ^= 1 << at % 8
    return bytes(spoiled)


def spoilt(path: Path) -> Iterator[str]:
    """Spoil a file in each way in turn, and put it right again at the end."""
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(flipped(data, at))
        yield f"{path.name}: byte {at} flipped"
    for size in range(0, len(data), 7):
        path.write_bytes(data[:size])
        yield f"{path.name}: cut to {size} bytes"
    path.write_bytes(data + b"\0")
    yield f"{path.name}: one byte longer"
    path.unlink()
    yield f"{path.name}: gone"
    path.write_bytes(data)


# --- what can be made again ----------------------------------------------------------------------


@pytest.fixture(params=["closed", "killed"])
def filled(request, tmp_path):
    """Three segments, deleted records, a raised epoch, an idempotent producer."""
    folder = tmp_path / "filled"
    folder.mkdir()
    log = open_in(folder, FILLED)
    for n in range(4):
        append_values(log, b"%d" % n + bytes(50), b"more" * n)
        log.append(sequenced(n, b"idempotent %d" % n, time_us=NOON_US + n), NOON_US)
    log.active.file.write([b"torn"], log.active.size)  # so that the next start raises the epoch
    leave(log)
    log = open_in(folder, FILLED)
    assert log.epoch == 1
    log.raise_log_start(2)
    log.roll()
    append_values(log, b"last segment", b"its second")
    log.checkpoint()
    append_values(log, b"behind the checkpoint")
    log.close() if request.param == "closed" else leave(log)
    return folder


@pytest.mark.parametrize("pattern", ["*.index", "*.timeindex", "*.producers", "log-state"])
def test_state_that_is_damaged_or_gone_is_rebuilt_and_reads_are_the_same(filled, tmp_path, pattern):
    copy = tmp_path / "copy"
    shutil.copytree(filled, copy)
    log = open_in(copy, FILLED)
    expected, end, epoch = read_all(log), log.log_end, log.epoch
    times = {record.timestamp_us for record in expected}
    by_time = {time: log.offset_for_time(time) for time in times}
    leave(log)
    for path in sorted(filled.glob(pattern)):
        for what in spoilt(path):
            shutil.rmtree(copy)
            shutil.copytree(filled, copy)
            log = open_in(copy, FILLED)
            assert [r for r in read_all(log) if r.offset >= 2] == expected, what
            assert log.log_end == end, what
            if pattern != "log-state":
                assert log.log_start == 2, what
                assert {time: log.offset_for_time(time) for time in times} == by_time, what
            assert log.append(sequenced(3, b"again"), NOON_US).is_duplicate, what
            append_values(log, b"goes on")
            assert log.epoch >= epoch, what
            leave(log)
            log = open_in(copy, FILLED)
            assert log.log_end == end + 1, f"{what}: an acked record is gone after the next start"
            assert log.append(sequenced(4, b"next"), NOON_US).base_offset == end + 1, what
            log.checkpoint()
            leave(log)


# --- what cannot: sealed segments ----------------------------------------------------------------


def sealed_log(folder: Path, groups: int = 5) -> list[Stored]:
    """A sealed segment of several groups, another one, and an active one; closed."""
    folder.mkdir()
    config = settings(segment_bytes=4000, index_interval_bytes=250, retention_ms=-1)
    log = open_in(folder, config)
    for n in range(groups):
        log.append(plain(b"%d" % n, b"%d again" % n, b"%d last" % n, key=b"k%d" % n), NOON_US)
    log.roll()
    append_values(log, b"second")
    log.roll()
    append_values(log, b"third")
    records = read_all(log)
    log.close()
    return records


def without_index(folder: Path) -> None:
    for path in folder.glob("00000000.*index"):
        path.unlink()


@pytest.mark.parametrize("is_indexed", [True, False], ids=["indexed", "index lost"])
@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
def test_a_flipped_bit_in_a_sealed_segment_costs_its_own_batch_and_is_told(
    tmp_path, is_indexed, max_bytes
):
    folder = tmp_path / "log"
    records = sealed_log(folder)
    if not is_indexed:
        without_index(folder)
    segment = folder / "00000000.log"
    data = segment.read_bytes()
    size = len(data) // 5
    for at in range(len(data)):
        segment.write_bytes(flipped(data, at))
        log = open_in(folder, SMALL)
        lost = range(3 * (at // size), 3 * (at // size) + 3)
        assert served(log, max_bytes) == [r for r in records if r.offset not in lost], f"byte {at}"
        for offset in range(log.durable_end):
            first = _first_served(log, offset)
            assert first == (None if offset in lost else records[offset]), f"byte {at}"
        leave(log)


def _first_served(log: Log, offset: int) -> Stored | None:
    """The record at `offset` for a reader that seeks it; None where it is told of damage."""
    try:
        batch = next(split_batches(log.read(offset, 1)))
        record = next(r for r in records_of(decode_batch(batch)) if r.offset >= offset)
    except SeglogError:
        return None
    return record


@pytest.mark.parametrize("is_indexed", [True, False], ids=["indexed", "index lost"])
def test_a_stretch_of_zeros_in_a_sealed_segment_costs_the_batches_it_touches(tmp_path, is_indexed):
    folder = tmp_path / "log"
    records = sealed_log(folder)
    if not is_indexed:
        without_index(folder)
    segment = folder / "00000000.log"
    data = segment.read_bytes()
    size = len(data) // 5
    for start in range(0, len(data), 13):
        for length in (1, size // 2, size, 2 * size, len(data)):
            stop = min(start + length, len(data))
            if not any(data[start:stop]):
                continue
            segment.write_bytes(data[:start] + bytes(stop - start) + data[stop:])
            log = open_in(folder, SMALL)
            touched = [
                n for n in range(5) if any(data[max(start, n * size) : min(stop, (n + 1) * size)])
            ]
            lost = {3 * n + i for n in touched for i in range(3)}
            what = f"zeros from {start} to {stop}"
            assert served(log, 1) == [r for r in records if r.offset not in lost], what
            assert served(log) == [r for r in records if r.offset not in lost], what
            leave(log)


@pytest.mark.parametrize("is_indexed", [True, False], ids=["indexed", "index lost"])
def test_a_sealed_segment_that_was_cut_short_serves_what_is_left_and_tells_the_rest(
    tmp_path, is_indexed
):
    folder = tmp_path / "log"
    records = sealed_log(folder)
    if not is_indexed:
        without_index(folder)
    segment = folder / "00000000.log"
    data = segment.read_bytes()
    for cut in range(len(data)):
        segment.write_bytes(data[:cut])
        log = open_in(folder, SMALL)
        whole = 3 * (cut // (len(data) // 5))
        expected = records[:whole] + records[15:]
        assert served(log, 1) == expected, f"cut to {cut} bytes"
        assert served(log) == expected, f"cut to {cut} bytes"
        assert (log.log_start, log.log_end) == (0, 17)
        leave(log)


@pytest.mark.parametrize("missing", ["00000000", "00000015"])
def test_a_missing_sealed_segment_is_told_and_the_others_are_served(tmp_path, missing):
    folder = tmp_path / "log"
    records = sealed_log(folder)
    log = open_in(folder, SMALL)
    log.raise_log_start(1)  # the log knows where it starts
    log.close()
    for path in folder.glob(f"{missing}.*"):
        path.unlink()

    log = open_in(folder, SMALL)
    with pytest.raises(DamagedLog) as told:
        log.read(int(missing) + 1, 100) if missing == "00000000" else log.read(15, 100)
    assert told.value.resume_offset == (15 if missing == "00000000" else 16)
    kept = records[15:] if missing == "00000000" else records[1:15] + records[16:]
    assert served(log) == kept
    append_values(log, b"goes on")
    assert read_from(log, 16)[-1].offset == 17


def read_from(log: Log, offset: int) -> list[Stored]:
    return records_of(decode_batch(list(split_batches(log.read(offset, 1 << 20)))[-1]))


def test_a_segment_file_that_goes_missing_while_the_log_is_open_is_told(tmp_path):
    folder = tmp_path / "log"
    records = sealed_log(folder)
    log = open_in(folder, SMALL)
    (folder / "00000000.log").unlink()
    with pytest.raises(DamagedLog):
        log.read(0, 100)
    assert read_from(log, 15) == [records[15]]


@pytest.mark.parametrize("what", ["header", "payload", "zeros"])
def test_compaction_leaves_damage_as_it_is_and_loses_nothing_more(tmp_path, what):
    folder = tmp_path / "log"
    records = sealed_log(folder)
    segment = folder / "00000000.log"
    data = segment.read_bytes()
    size = len(data) // 5
    spoil: dict[str, Callable[[], bytes]] = {
        "header": lambda: flipped(data, size + 3),
        "payload": lambda: flipped(data, size + 85),
        "zeros": lambda: data[:size] + bytes(size) + data[2 * size :],
    }
    segment.write_bytes(spoil[what]())
    config = settings(segment_bytes=4000, cleanup_policy="compact", index_interval_bytes=1)
    for is_second in (False, True):
        log = open_in(folder, config)
        compact(log, NOON_US + is_second)
        last = [
            r
            for r in records
            if r.key is None or r.value in {b"0 last", b"2 last", b"3 last", b"4 last"}
        ]
        assert served(log, 1) == last
        assert served(log) == last
        log.roll()
        leave(log)


# --- what cannot: the active segment below durable data ------------------------------------------


def test_damage_below_durable_records_is_no_torn_tail_and_nothing_is_numbered_again(tmp_path):
    """Every byte of a group that two later groups follow: the scan knows it was durable once."""
    origin = tmp_path / "origin"
    origin.mkdir()
    log = open_in(origin, FILLED)
    for n in range(5):
        log.append(sequenced(n, b"group %d" % n), NOON_US)
    records, size = read_all(log), log.active.size // 5
    leave(log)
    data = (origin / "00000000.log").read_bytes()
    copy = tmp_path / "copy"
    for at in range(3 * size):
        shutil.copytree(origin, copy)
        (copy / "00000000.log").write_bytes(flipped(data, at))
        lost = at // size
        log = open_in(copy, FILLED)
        assert served(log) == records[:lost] + records[lost + 1 :], f"byte {at}"
        assert log.log_end == 5, f"byte {at}"
        assert append_values(log, b"goes on")[0].base_offset == 5, f"byte {at}"
        files = files_in(copy)
        leave(log)
        log = open_in(copy, FILLED)
        assert [r.offset for r in served(log)] == [n for n in range(6) if n != lost], f"byte {at}"
        log.close()
        leave(open_in(copy, FILLED))
        assert files.keys() <= files_in(copy).keys(), f"byte {at}"
        shutil.rmtree(copy)


def test_damage_below_the_recovery_point_is_told_to_readers_and_writes_go_on(tmp_path):
    origin = tmp_path / "origin"
    origin.mkdir()
    log = open_in(origin, FILLED)
    append_values(log, *[b"%d" % n for n in range(5)])
    log.checkpoint()
    records, size = read_all(log), log.active.size // 5
    leave(log)
    data = (origin / "00000000.log").read_bytes()
    copy = tmp_path / "copy"
    for at in range(5 * size):
        shutil.copytree(origin, copy)
        (copy / "00000000.log").write_bytes(flipped(data, at))
        log = open_in(copy, FILLED)
        lost = at // size
        assert served(log, 1) == records[:lost] + records[lost + 1 :], f"byte {at}"
        assert append_values(log, b"goes on")[0].base_offset == 5, f"byte {at}"
        leave(log)
        log = open_in(copy, FILLED)
        assert [r.offset for r in served(log)] == [n for n in range(6) if n != lost], f"byte {at}"
        leave(log)
        shutil.rmtree(copy)


def test_an_active_segment_shorter_than_its_index_loses_what_is_gone_and_no_number(tmp_path):
    origin = tmp_path / "origin"
    origin.mkdir()
    log = open_in(origin, FILLED)
    append_values(log, *[b"%d" % n for n in range(5)])
    records, size = read_all(log), log.active.size // 5
    log.checkpoint()
    leave(log)
    data = (origin / "00000000.log").read_bytes()
    copy = tmp_path / "copy"
    for cut in range(5 * size):
        shutil.copytree(origin, copy)
        (copy / "00000000.log").write_bytes(data[:cut])
        log = open_in(copy, FILLED)
        assert log.epoch == 1, f"cut to {cut} bytes"
        assert append_values(log, b"goes on")[0].base_offset == 5, f"cut to {cut} bytes"
        leave(log)
        log = open_in(copy, FILLED)
        assert [r.offset for r in served(log)] == [*range(cut // size), 5], f"cut to {cut} bytes"
        assert served(log)[:-1] == records[: cut // size], f"cut to {cut} bytes"
        leave(log)
        shutil.rmtree(copy)


def test_a_time_is_looked_up_around_damage_or_the_damage_is_told(tmp_path):
    folder = tmp_path / "log"
    folder.mkdir()
    log = open_in(folder, FILLED)
    for n in range(4):
        log.append(plain(b"%d" % n, time_us=NOON_US + n), NOON_US)
    log.roll()
    size = log.segments[0].file_bytes // 4  # type: ignore[union-attr]
    log.close()
    segment = folder / "00000000.log"
    data = segment.read_bytes()
    for at in range(len(data)):
        segment.write_bytes(flipped(data, at))
        log = open_in(folder, FILLED)
        for n in range(4):
            try:
                found = log.offset_for_time(NOON_US + n)
            except SeglogError:
                assert at // size <= n, f"byte {at}: offset {n} lies before the damage"
                continue
            assert found == (n, NOON_US + n), f"byte {at}"
        leave(log)
