"""One partition's log: appending, rolling, reading. Crashes are tests/fault's affair."""

import errno
import os
import threading
from pathlib import Path

import pytest

from seglog.protocol.batch import decode_batch, encode_batch, encode_compacted
from seglog.protocol.constants import MAX_RELATIVE_OFFSET
from seglog.protocol.errors import (
    BatchTooLarge,
    DamagedBatch,
    LogTruncated,
    OffsetOutOfRange,
    PartitionOffline,
    SequenceGap,
    StorageFull,
)
from seglog.protocol.header import (
    check_produced,
    count_records,
    pack_body,
    pack_prefix,
    split_batches,
)
from seglog.server.storage.filesystem import Buffer, File, FileSystem
from seglog.server.storage.log import Log
from seglog.server.storage.reading import TimePosition
from seglog.server.storage.segment import SegmentCache
from seglog.server.storage.staged import AppendResult, SegmentInfo

from tests.storage import HOUR_US, NOON_US, append, batch_of, open_at, read_all, values


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


def checked(*batches: bytearray):
    return [(batch, check_produced(batch)) for batch in batches]


def offsets_of(found: memoryview) -> list[int]:
    return [decode_batch(batch).base_offset for batch in split_batches(found)]


# --- appending and restarting --------------------------------------------------------------------


def test_appending_past_the_segment_size_and_again_after_a_restart_leaves_every_offset_readable(
    folder,
):
    # given: a log that was appended to beyond its segment size, and closed
    log = open_at(folder, segment_bytes=200)
    append(log, b"Hello World" * 5)
    append(log, b"HelloW" * 10)
    assert len(log.segments) == 2
    log.close()

    # when: it is opened again and appended to
    log = open_at(folder, segment_bytes=200)
    result = append(log, b"Should be appended at the right place")

    # then: every offset reads back, in whatever order it is asked for
    assert result.base_offset == 2
    assert values(log, 1)[0] == b"HelloW" * 10
    assert values(log, 2)[0] == b"Should be appended at the right place"
    assert values(log, 0)[0] == b"Hello World" * 5
    assert len(values(log)) == 3


def test_offsets_count_records_and_grow_by_one(folder):
    log = open_at(folder)

    results = [append(log, b"a", b"b", b"c"), append(log, b"d"), append(log, b"e", b"f")]

    assert [result.base_offset for result in results] == [0, 3, 4]
    assert (log.log_start, log.durable_end, log.log_end) == (0, 6, 6)
    assert [(record.offset, record.value) for record in read_all(log)] == list(
        enumerate([b"a", b"b", b"c", b"d", b"e", b"f"])
    )


def test_append_times_never_go_back_also_across_a_restart(folder):
    log = open_at(folder, segment_bytes=300)
    times = [append(log, b"x" * 100, at_us=at).append_time_us for at in (1000, 900, 2000, 2000)]
    log.close()
    log = open_at(folder, segment_bytes=300)
    times.append(append(log, b"x" * 100, at_us=5).append_time_us)

    assert times == [1000, 1001, 2000, 2001, 2002]


def test_a_closed_log_opens_without_a_scan(folder):
    log = open_at(folder)
    append(log, b"x" * 1000)
    log.close()
    log.close()
    with (folder / "00000000.log").open("r+b") as file:  # a scan would cut this off
        file.seek(500)
        file.write(b"damage")

    log = open_at(folder)

    assert log.durable_end == 1
    with pytest.raises(DamagedBatch):
        read_all(log)
    log.close()
    with pytest.raises(PartitionOffline, match="is closed"):
        append(log, b"late")


def test_a_repeated_batch_gets_its_first_answer_and_takes_no_room(folder):
    log = open_at(folder)
    batch = batch_of(b"a", b"b", producer_id=5, base_sequence=0)

    first, again = log.append(batch, NOON_US), log.append(batch, NOON_US + 99)

    assert first == AppendResult(0, NOON_US)
    assert again == AppendResult(0, NOON_US, is_duplicate=True)
    assert values(log) == [b"a", b"b"]
    with pytest.raises(SequenceGap):
        append(log, b"c", producer_id=5, base_sequence=9)
    assert log.log_end == 2


def test_a_batch_beyond_the_topics_own_limit_is_refused(folder):
    log = open_at(folder, max_batch_bytes=200)
    with pytest.raises(BatchTooLarge):
        append(log, b"x" * 200)
    append(log, b"x" * 20)
    assert log.log_end == 1


# --- staging a group -----------------------------------------------------------------------------


class RecordingFile(File):
    """Keeps the buffers of every write."""

    written: list[list[Buffer]]

    def _write_once(self, buffers: list[Buffer], position: int) -> int:
        self.written.append(list(buffers))
        return super()._write_once(buffers, position)


class RecordingFileSystem(FileSystem):
    def __init__(self) -> None:
        self.written: list[list[Buffer]] = []

    def create(self, path: str) -> File:
        file = super().create(path)
        recording = RecordingFile(path, os.dup(file.descriptor))
        recording.written = self.written
        file.close()
        return recording


def test_nothing_is_copied_on_the_way_to_the_disk(folder):
    fs = RecordingFileSystem()
    log = open_at(folder, fs)
    batches = [batch_of(b"one" * 100), batch_of(b"two" * 50), batch_of(b"three")]

    log.write(log.stage(checked(*batches), NOON_US))

    assert len(fs.written) == 1, "a group is one write"
    buffers = fs.written[0]
    assert len(buffers) == 6
    for batch, prefix, rest in zip(batches, buffers[::2], buffers[1::2], strict=True):
        assert len(prefix) == 28
        assert isinstance(rest, memoryview)
        assert rest.obj is batch, "the producer's own bytes"
        assert bytes(rest) == batch[28:]


def test_a_group_takes_what_fits_the_segment_and_leaves_the_rest_for_the_next(folder):
    batch = batch_of(b"x" * 100)
    log = open_at(folder, segment_bytes=3 * len(batch) + 10)
    group = checked(*[batch] * 7)

    taken = []
    while group:
        staged = log.stage(group, NOON_US)
        log.write(staged)
        taken.append(staged.taken)
        group = group[staged.taken :]
    log.sync()
    log.publish()

    assert taken == [3, 3, 1]
    assert [info.end_offset - info.start_offset for info in log.describe()] == taken
    assert len(values(log)) == 7


def test_refused_and_repeated_batches_of_a_group_are_answered_in_their_place(folder):
    log = open_at(folder)
    first = batch_of(b"a", producer_id=5, base_sequence=0)
    gap = batch_of(b"z", producer_id=5, base_sequence=9)

    staged = log.stage(checked(first, gap, first, batch_of(b"b")), NOON_US)

    assert staged.results[0] == AppendResult(0, NOON_US)
    assert isinstance(staged.results[1], SequenceGap)
    assert staged.results[2] == AppendResult(0, NOON_US, is_duplicate=True)
    assert staged.results[3] == AppendResult(1, NOON_US)
    log.write(staged)
    log.publish()
    assert values(log) == [b"a", b"b"]


def test_nobody_reads_what_is_not_published(folder):
    log = open_at(folder)
    append(log, b"old")
    log.write(log.stage(checked(batch_of(b"new")), NOON_US))

    assert (log.durable_end, log.log_end) == (1, 2)
    assert values(log) == [b"old"]
    assert not log.read(1, 1000)
    with pytest.raises(OffsetOutOfRange):
        log.read(2, 1000)

    log.sync()
    log.publish()
    assert values(log) == [b"old", b"new"]


class FullFile(File):
    """A disk that is full while `space` says so; half of a write gets through."""

    space: dict[str, bool]

    def _write_once(self, buffers: list[Buffer], position: int) -> int:
        if not self.space["left"]:
            if position % 2 == 0 and len(buffers) > 1:
                return super()._write_once([buffers[0][:7]], position)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super()._write_once(buffers, position)


class FullFileSystem(FileSystem):
    def __init__(self) -> None:
        self.space = {"left": True}

    def create(self, path: str) -> File:
        file = super().create(path)
        full = FullFile(path, os.dup(file.descriptor))
        full.space = self.space
        file.close()
        return full


def test_a_full_disk_leaves_nothing_of_the_batch_and_writes_resume_with_space(folder):
    fs = FullFileSystem()
    log = open_at(folder, fs)
    append(log, b"before", producer_id=5, base_sequence=0)
    fs.space["left"] = False
    for _ in range(2):
        with pytest.raises(StorageFull):
            append(log, b"lost", producer_id=5, base_sequence=1)
    assert values(log) == [b"before"]

    fs.space["left"] = True
    assert append(log, b"after", producer_id=5, base_sequence=1) == AppendResult(1, NOON_US + 1)
    assert values(log) == [b"before", b"after"]
    log.close()
    assert values(open_at(folder)) == [b"before", b"after"]


def test_a_cut_takes_back_what_no_reader_saw_and_nothing_else(folder):
    log = open_at(folder)
    append(log, b"seen", producer_id=5, base_sequence=0)
    for sequence in (1, 2):
        batch = batch_of(b"unseen", b"x", producer_id=5, base_sequence=2 * sequence - 1)
        log.write(log.stage(checked(batch), NOON_US))

    for wrong in (0, 2, 6):
        with pytest.raises(OffsetOutOfRange):
            log.truncate(wrong)
    log.truncate(1)

    assert log.log_end == 1
    append(log, b"next", producer_id=5, base_sequence=1)
    assert values(log) == [b"seen", b"next"]


# --- rolling -------------------------------------------------------------------------------------


def test_a_segment_is_sealed_before_it_would_pass_its_size(folder):
    batch = batch_of(b"x" * 100)
    log = open_at(folder, segment_bytes=2 * len(batch))
    for _ in range(5):
        log.append(batch, NOON_US)

    names = sorted(path.name for path in folder.glob("*.log"))
    assert names == ["00000000.log", "00000002.log", "00000004.log"]
    assert [(folder / name).stat().st_size for name in names[:2]] == [2 * len(batch)] * 2


def test_a_batch_larger_than_a_segment_gets_one_for_itself(folder):
    log = open_at(folder, segment_bytes=200)
    for size in (10, 1000, 10, 2000):
        append(log, b"x" * size)

    assert [info.start_offset for info in log.describe()] == [0, 1, 2, 3]
    assert [len(value or b"") for value in values(log)] == [10, 1000, 10, 2000]


def test_a_segment_is_sealed_when_its_time_has_passed(folder):
    log = open_at(folder, segment_ms=3_600_000)
    for at in (NOON_US, NOON_US + HOUR_US - 1, NOON_US + HOUR_US, NOON_US + HOUR_US + 1):
        append(log, b"x", at_us=at)
    assert [info.start_offset for info in log.describe()] == [0, 2]

    assert not log.roll_if_due(NOON_US + HOUR_US + 2)
    assert log.roll_if_due(NOON_US + 2 * HOUR_US)
    assert not log.roll_if_due(NOON_US + 9 * HOUR_US), "an empty segment stays"


def test_the_time_of_a_segment_counts_from_its_first_batch_also_after_a_restart(folder):
    log = open_at(folder, segment_ms=3_600_000)
    append(log, b"x", at_us=NOON_US)
    append(log, b"x", at_us=NOON_US + HOUR_US // 2)
    log.close()
    log = open_at(folder, segment_ms=3_600_000)

    assert not log.roll_if_due(NOON_US + HOUR_US - 1)
    assert log.roll_if_due(NOON_US + HOUR_US)


def wide_batch(span: int) -> bytes:
    """A stored batch as compaction may leave it: one record, and a span of many."""
    columns = decode_batch(
        pack_prefix(0, NOON_US, len(small := batch_of(b"first", b"second")), 0) + small[28:]
    )
    compacted = encode_compacted(columns, [0])
    header = columns.header
    body = pack_body(
        compacted[80:],
        codec=header.codec,
        flags=1,
        record_count=1,
        offset_span=span,
        base_sequence=0,
        producer_id=-1,
        producer_epoch=0,
        uncompressed_length=len(compacted) - 80,
        first_timestamp_us=header.first_timestamp_us,
        max_timestamp_us=header.first_timestamp_us,
    )
    return pack_prefix(0, NOON_US, len(compacted), 0) + body + compacted[80:]


def test_a_segment_is_sealed_before_an_offset_would_not_fit_its_index(folder):
    # given: a segment whose batches already reach up to the last two offsets that an entry can hold
    folder.mkdir()
    (folder / "00000000.log").write_bytes(wide_batch(MAX_RELATIVE_OFFSET - 1))
    log = open_at(folder, index_interval_bytes=1)
    assert (log.log_end, len(log.segments)) == (MAX_RELATIVE_OFFSET - 1, 1)

    # when: three records come as one batch, two would still fit
    result = append(log, b"a", b"b", b"c")

    # then: they are in a new segment, and found
    assert result.base_offset == MAX_RELATIVE_OFFSET - 1
    assert [info.start_offset for info in log.describe()] == [0, MAX_RELATIVE_OFFSET - 1]
    assert values(log, result.base_offset) == [b"a", b"b", b"c"]


def test_the_last_offset_that_fits_the_index_stays_in_its_segment(folder):
    folder.mkdir()
    (folder / "00000000.log").write_bytes(wide_batch(MAX_RELATIVE_OFFSET - 1))
    log = open_at(folder, index_interval_bytes=1)
    append(log, b"a", b"b")
    assert len(log.segments) == 1
    assert values(log, MAX_RELATIVE_OFFSET) == [b"b"]
    append(log, b"c")
    assert len(log.segments) == 2


def test_a_description_names_every_segment_with_its_offsets_and_size(folder):
    log = open_at(folder, segment_bytes=300)
    for _ in range(4):
        append(log, b"x" * 40, b"y" * 40)
    sizes = [path.stat().st_size for path in sorted(folder.glob("*.log"))]

    described = log.describe()

    assert described == [
        SegmentInfo("00000000.log", 0, 2, sizes[0], is_sealed=True),
        SegmentInfo("00000002.log", 2, 4, sizes[1], is_sealed=True),
        SegmentInfo("00000004.log", 4, 6, sizes[2], is_sealed=True),
        SegmentInfo("00000006.log", 6, 8, sizes[0], is_sealed=False),
    ]
    assert log.size_bytes == 4 * sizes[0]
    log.close()
    assert open_at(folder, segment_bytes=300).describe() == described


# --- reading -------------------------------------------------------------------------------------


def test_two_readers_at_their_own_bookmarks_do_not_disturb_each_other(folder):
    log = open_at(folder, segment_bytes=300)
    for number in range(10):
        append(log, b"%d" % number * 50)
    seen: dict[str, list[int]] = {"slow": [], "fast": []}
    bookmarks = {"slow": 0, "fast": 4}

    for turn in range(30):
        reader = "fast" if turn % 3 else "slow"
        if found := log.read(bookmarks[reader], 1):
            columns = decode_batch(found)
            seen[reader] += columns.offsets
            bookmarks[reader] = columns.next_offset

    assert seen == {"slow": list(range(10)), "fast": list(range(4, 10))}


def test_a_read_is_whole_batches_within_its_bound_and_at_least_one(folder):
    log = open_at(folder, index_interval_bytes=500)
    batches = [batch_of(b"x" * size) for size in (50, 500, 50, 50, 900, 50, 50, 50)]
    for batch in batches:
        log.append(batch, NOON_US)
    lengths = [len(batch) for batch in batches]

    for start in range(len(lengths)):
        for bound in range(1, sum(lengths) + 200, 7):
            fitting = 1
            while (
                start + fitting < len(lengths)
                and sum(lengths[start : start + fitting + 1]) <= bound
            ):
                fitting += 1
            found = log.read(start, bound)
            assert offsets_of(found) == list(range(start, start + fitting)), (start, bound)


def test_a_read_in_the_middle_of_a_batch_gives_the_whole_batch(folder):
    log = open_at(folder)
    append(log, b"a", b"b", b"c")
    append(log, b"d")

    for offset in (0, 1, 2):
        assert offsets_of(log.read(offset, 1)) == [0]
    assert values(log, 2) == [b"c", b"d"]


def test_a_read_stays_inside_one_segment_and_goes_on_in_the_next(folder):
    log = open_at(folder, segment_bytes=400)
    for number in range(9):
        append(log, b"%d" % number * 100)
    assert len(log.segments) > 2

    assert len(offsets_of(log.read(0, 1 << 30))) < 9
    assert len(values(log)) == 9


@pytest.mark.parametrize("offset", [-1, 3, 1 << 60])
def test_an_offset_that_is_not_there_is_refused_with_what_is(folder, offset):
    log = open_at(folder)
    append(log, b"a", b"b")
    with pytest.raises(OffsetOutOfRange) as raised:
        log.read(offset, 100)
    assert (raised.value.log_start, raised.value.durable_end) == (0, 2)
    assert not log.read(2, 100), "at the end there is nothing yet, and that is no error"


def test_a_slice_survives_the_removal_of_its_segment_and_the_growth_of_the_log(folder):
    log = open_at(folder, segment_bytes=300, cache=SegmentCache(1))
    for number in range(9):
        append(log, b"%d" % number * 100)
    old, last = log.read(0, 1), log.read(8, 1)
    before = bytes(old), bytes(last)

    log.raise_log_start(8)
    for _ in range(20):
        append(log, b"x" * 100)
    log.close()

    assert not (folder / "00000000.log").exists()
    assert (bytes(old), bytes(last)) == before


def test_open_files_do_not_grow_with_the_log(folder):
    cache = SegmentCache(4)
    log = open_at(folder, segment_bytes=200, cache=cache)
    before = len(list(Path("/dev/fd").iterdir()))
    for number in range(50):
        append(log, b"%d" % number * 60)
    assert len(values(log)) == 50

    assert len(log.segments) > 20
    assert len(cache) == 4
    assert len(list(Path("/dev/fd").iterdir())) - before < 2 * 4 + 4


def test_readers_in_other_threads_see_every_record_once_while_the_writer_writes(folder):
    log = open_at(folder, segment_bytes=2000, durability="os", cache=SegmentCache(2))
    total = 200
    seen: list[list[bytes | None]] = [[], []]
    done = threading.Event()

    def follow(into: list[bytes | None]) -> None:
        offset = 0
        while offset < total and not done.is_set():
            for batch in split_batches(log.read(offset, 700)):
                columns = decode_batch(batch)
                into += columns.values
                offset = columns.next_offset

    threads = [threading.Thread(target=follow, args=(into,)) for into in seen]
    for thread in threads:
        thread.start()
    try:
        for number in range(total):
            append(log, b"%d" % number)
        for thread in threads:
            thread.join(20)
    finally:
        done.set()

    assert seen == [[b"%d" % number for number in range(total)]] * 2


def test_what_is_in_memory_is_read_at_once_and_what_is_not_open_is_left_to_warm(folder):
    log = open_at(folder, segment_bytes=300, cache=SegmentCache(8))
    for number in range(6):
        append(log, b"%d" % number * 100)
    log.close()
    log = open_at(folder, segment_bytes=300, cache=SegmentCache(8))

    assert log.read_if_cached(0, 100) is None
    log.warm(0, 100)
    found = log.read_if_cached(0, 100)
    if found is not None:  # some file systems cannot tell what is in memory
        assert bytes(found) == bytes(log.read(0, 100))
    assert log.append_time_of(0) == NOON_US
    assert log.append_time_of(6) is None


@pytest.mark.parametrize("max_bytes", [1, 400, 700, 1 << 20])
def test_what_is_found_tells_the_offsets_it_spans_within_a_segment_and_at_its_end(
    folder, max_bytes
):
    log = open_at(folder, segment_bytes=1000)
    for number in range(12):
        append(log, *[b"%d" % number * 50] * (1 + number % 3))
    offset = 0
    while offset < log.log_end:
        batches, base_offset, next_offset = log.find(offset, max_bytes)
        assert base_offset == offset
        assert next_offset == base_offset + count_records(batches) > offset
        offset = next_offset
    assert tuple(log.find(offset, max_bytes)) == (b"", offset, offset)


def test_damage_behind_what_is_found_does_not_change_the_offsets_it_spans(folder):
    log = open_at(folder)
    append(log, b"one", b"two")
    end = log.active.size
    append(log, b"three")
    log.active.file.write([b"\xff" * 8], end)
    assert log.find(0, 1)[1:] == (0, 2)


# --- by time -------------------------------------------------------------------------------------


def linear_search(log: Log, timestamp_us: int) -> TimePosition | None:
    for record in read_all(log):
        if record.timestamp_us >= timestamp_us:
            return TimePosition(record.offset, record.timestamp_us)
    return None


@pytest.mark.parametrize("interval", [1, 250, 4096])
def test_a_time_is_found_as_a_linear_scan_finds_it_also_out_of_order(folder, interval):
    log = open_at(folder, segment_bytes=500, index_interval_bytes=interval)
    for timestamps in ([5, 3], [9, 1], [2, 2], [7], [30, 20, 25], [4], [8, 8, 40], [1], [6, 50]):
        append(log, *[b"x" * 20] * len(timestamps), timestamps=timestamps)
    assert len(log.segments) > 2

    for timestamp in range(52):
        assert log.offset_for_time(timestamp) == linear_search(log, timestamp), timestamp
    log.raise_log_start(5)
    for timestamp in range(52):
        assert log.offset_for_time(timestamp) == linear_search(log, timestamp), timestamp
    log.close()
    log = open_at(folder, segment_bytes=500, index_interval_bytes=interval)
    for timestamp in range(52):
        assert log.offset_for_time(timestamp) == linear_search(log, timestamp), timestamp


def test_a_time_after_the_last_record_finds_nothing_and_nor_does_an_empty_log(folder):
    log = open_at(folder)
    assert log.offset_for_time(0) is None
    append(log, b"x", timestamps=[100])
    assert log.offset_for_time(101) is None
    log.write(log.stage(checked(encode_batch([b"y"], timestamps=[200])), NOON_US))
    assert log.offset_for_time(101) is None, "it is not published"


# --- epochs and the log start --------------------------------------------------------------------


def test_a_reader_that_was_ahead_of_a_cut_is_told_where_it_was(folder):
    log = open_at(folder, durability="os")
    append(log, b"a")
    log.checkpoint()
    append(log, b"b")
    reader = (log.durable_end, log.epoch)
    size = log.active.size
    log.active.file.close()  # a crash, and the second batch did not reach the disk
    with (folder / "00000000.log").open("r+b") as file:
        file.truncate(size - 5)

    log = open_at(folder, durability="os")

    assert (log.durable_end, log.epoch) == (1, reader[1] + 1)
    append(log, b"c", b"d")
    with pytest.raises(LogTruncated) as raised:
        log.check_epoch(*reader)
    assert raised.value.cut_offset == 1
    log.check_epoch(1, reader[1])
    log.check_epoch(2, log.epoch)


def test_the_log_start_rises_and_stays_after_a_restart(folder):
    log = open_at(folder, segment_bytes=300)
    for number in range(6):
        append(log, b"%d" % number * 100)

    gone = log.raise_log_start(3)

    assert [info.end_offset <= 3 for info in gone] == [True] * len(gone)
    assert log.log_start == 3
    assert values(log)[0] == b"3" * 100
    for wrong in (2, 7):
        with pytest.raises(OffsetOutOfRange):
            log.raise_log_start(wrong)
    with pytest.raises(OffsetOutOfRange):
        log.read(2, 100)
    log.close()
    log = open_at(folder, segment_bytes=300)
    assert (log.log_start, values(log)[0]) == (3, b"3" * 100)


def test_an_emptied_log_goes_on_with_its_numbers(folder):
    log = open_at(folder)
    append(log, b"a", b"b")
    log.raise_log_start(2)
    assert values(log) == []
    log.close()
    log = open_at(folder)
    assert append(log, b"c").base_offset == 2
    assert values(log) == [b"c"]
