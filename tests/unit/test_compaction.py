"""Compaction: what stays, what goes, and that readers only notice the gaps."""

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.protocol.batch import decode_batch
from seglog.protocol.errors import DamagedBatch, DamagedLog
from seglog.protocol.header import hop, split_batches
from seglog.server.storage import compaction
from seglog.server.storage.compaction import Cleaned, clean, commit, compact
from seglog.server.storage.log import Log
from seglog.server.storage.retention import apply_retention
from seglog.server.storage.segment import SegmentCache

from tests.storage import HOUR_US, NOON_US, append, keyed, open_at, read_all, values

DAY_US = 24 * HOUR_US
DAY_MS = DAY_US // 1000


def open_compacted(folder: Path, **settings: Any) -> Log:
    chosen: dict[str, Any] = {"cleanup_policy": "compact", "segment_bytes": 700} | settings
    return open_at(folder, cache=SegmentCache(3), **chosen)


def put(log: Log, *pairs: tuple[bytes | None, bytes | None], at_us: int = NOON_US) -> None:
    """One batch of (key, value)."""
    append(log, *[value for _, value in pairs], keys=[key for key, _ in pairs], at_us=at_us)


def compact_all(log: Log, now_us: int = NOON_US) -> Cleaned | None:
    """Seal what there is, then compact it."""
    log.roll()
    return compact(log, now_us)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


# --- what stays ----------------------------------------------------------------------------------


def test_of_each_key_the_last_record_stays_under_its_own_offset(folder):
    log = open_compacted(folder)
    put(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    put(log, (b"c", b"1"), (b"b", b"2"))
    put(log, (b"a", b"3"))

    cleaned = compact_all(log)

    assert cleaned is not None
    assert cleaned.removed_records == 3
    assert keyed(log) == [(3, b"c", b"1"), (4, b"b", b"2"), (5, b"a", b"3")]
    assert (log.log_start, log.durable_end) == (0, 6)


def test_the_active_segment_is_left_alone(folder):
    log = open_compacted(folder)
    put(log, (b"a", b"1"))
    log.roll()
    put(log, (b"a", b"2"))
    put(log, (b"a", b"3"))

    compact(log, NOON_US)

    assert keyed(log) == [(0, b"a", b"1"), (1, b"a", b"2"), (2, b"a", b"3")]


def test_records_without_a_key_stay(folder):
    log = open_compacted(folder)
    put(log, (None, b"1"), (b"a", b"1"), (None, None), (b"a", b"2"))
    compact_all(log)
    assert keyed(log) == [(0, None, b"1"), (2, None, None), (3, b"a", b"2")]


def test_timestamps_headers_producers_and_append_times_stay(folder):
    log = open_compacted(folder)
    append(
        log, b"1", b"2", b"3",
        keys=[b"a", b"b", b"a"], timestamps=[30, 10, 20],
        producer_id=9, producer_epoch=2, base_sequence=0, at_us=NOON_US,
    )  # fmt: skip
    before = decode_batch(log.read(0, 1)).header
    compact_all(log)

    batch = decode_batch(log.read(0, 1))

    assert list(batch.offsets) == [1, 2]
    assert list(batch.timestamps) == [10, 20]
    for name in ("base_offset", "append_time_us", "offset_span", "producer_id", "producer_epoch",
                 "base_sequence", "log_epoch"):  # fmt: skip
        assert getattr(batch.header, name) == getattr(before, name), name
    assert batch.header.is_compacted
    assert log.offset_for_time(15) == (2, 20)
    again = append(
        log, b"1", b"2", b"3", keys=[b"a", b"b", b"a"], timestamps=[30, 10, 20],
        producer_id=9, producer_epoch=2, base_sequence=0,
    )  # fmt: skip
    assert again.is_duplicate


def test_a_segment_that_is_emptied_still_knows_its_last_offset(folder):
    log = open_compacted(folder, segment_bytes=150)
    put(log, (b"a", b"x" * 40))
    put(log, (b"a", b"y" * 40))
    put(log, (b"b", b"z" * 40))
    assert len(log.segments) == 3

    compact_all(log)

    assert keyed(log) == [(1, b"a", b"y" * 40), (2, b"b", b"z" * 40)]
    first = decode_batch(log.read(0, 1))
    assert (len(first), first.next_offset) == (0, 1), "a reader at 0 is sent on, without an error"
    log.close()
    assert keyed(open_compacted(folder, segment_bytes=150))[0][0] == 1


def test_what_was_compacted_stays_so_after_a_restart_also_without_its_indexes(folder):
    log = open_compacted(folder)
    for number in range(30):
        put(log, (b"%d" % (number % 4), b"%d" % number), (None, b"n%d" % number))
    compact_all(log)
    expected = keyed(log)
    log.close()
    for index in [*folder.glob("*.index"), *folder.glob("*.timeindex")]:
        index.unlink()

    assert keyed(open_compacted(folder)) == expected


def test_neighbours_that_fit_one_segment_become_one(folder):
    log = open_compacted(folder)
    for number in range(40):
        put(log, (b"same", b"x" * 100 + b"%d" % number))
    log.roll()
    before = len(log.segments)

    for _ in range(6):  # by their size now: each pass leaves less
        put(log, (b"same", b"x" * 100))
        compact_all(log)

    assert before > 8
    assert len(log.segments) <= 3
    assert [key for _, key, _ in keyed(log)] == [b"same"]
    described = log.describe()
    assert [info.end_offset for info in described[:-1]] == [
        info.start_offset for info in described[1:]
    ], "no offset is between two segments"


def test_nothing_to_do_is_said_and_leaves_no_file(folder):
    log = open_compacted(folder)
    put(log, (b"a", b"1"), (b"a", b"2"))
    assert compact(log, NOON_US) is None
    assert compact_all(log) is not None
    names = sorted(path.name for path in folder.iterdir())
    assert compact(log, NOON_US + DAY_US * 9) is None
    assert sorted(path.name for path in folder.iterdir()) == names


# --- tombstones ----------------------------------------------------------------------------------


def test_a_tombstone_removes_its_key_and_stays_for_its_time_then_goes(folder):
    log = open_compacted(folder, delete_retention_ms=DAY_MS)
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", None))
    compact_all(log, NOON_US)
    assert keyed(log) == [(1, b"b", b"1"), (2, b"a", None)]

    assert compact(log, NOON_US + DAY_US - 1) is None
    assert keyed(log) == [(1, b"b", b"1"), (2, b"a", None)]

    compact(log, NOON_US + DAY_US)
    assert keyed(log) == [(1, b"b", b"1")]


def test_the_time_of_a_tombstone_counts_from_the_pass_that_removed_what_it_deletes(folder):
    """Not from the tombstone itself: a reader on its way must have that long to see it."""
    log = open_compacted(folder, delete_retention_ms=DAY_MS)
    put(log, (b"a", b"1"), (b"a", None), at_us=NOON_US)
    compact_all(log, NOON_US + 5 * DAY_US)
    assert keyed(log) == [(1, b"a", None)]

    compact(log, NOON_US + 6 * DAY_US - 1)
    assert keyed(log) == [(1, b"a", None)]
    compact(log, NOON_US + 6 * DAY_US)
    assert keyed(log) == []


def test_a_key_written_again_after_its_tombstone_lives(folder):
    log = open_compacted(folder, delete_retention_ms=0)
    put(log, (b"a", b"1"), (b"a", None), (b"a", b"2"))
    for day in range(3):
        compact_all(log, NOON_US + day * DAY_US)
    assert keyed(log) == [(2, b"a", b"2")]


# --- bounds, damage, company ---------------------------------------------------------------------


def test_a_pass_that_is_bounded_goes_on_the_next_time(folder, monkeypatch):
    log = open_compacted(folder, segment_bytes=400)
    monkeypatch.setattr(compaction, "MAX_KEYS", 3)
    for number in range(24):
        put(log, (b"key %d" % (number % 8), b"%d" % number * 20))
    log.roll()
    ends = []
    for _ in range(20):
        cleaned = compact(log, NOON_US)
        if cleaned is None:
            break
        ends.append(cleaned.end_offset)

    assert len(ends) > 2
    assert ends == sorted(set(ends))
    assert ends[-1] == 24
    assert [(key, value) for _, key, value in keyed(log)] == [
        (b"key %d" % (number % 8), b"%d" % number * 20) for number in range(16, 24)
    ]


def corrupt(log: Log, offset: int, at: int) -> None:
    """Flip a bit of the stored batch at `offset`, `at` bytes into it."""
    segment = log.segments[log._chain.place(offset)]
    opened = log.cache.open(segment)  # type: ignore[arg-type]  # a sealed one
    position = opened.locate(offset, opened.index.covered_bytes)
    path = Path(opened.file.path)
    data = bytearray(path.read_bytes())
    data[position + at] ^= 0x10
    with path.open("r+b") as file:  # in place: it is mapped
        file.write(data)


def test_a_batch_that_cannot_be_unpacked_is_kept_as_it_is(folder):
    log = open_compacted(folder)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"damaged"))
    put(log, (b"a", b"3"))
    log.roll()
    corrupt(log, 1, at=90)
    damaged = bytes(log.read(1, 1))

    compact(log, NOON_US)

    assert bytes(log.read(1, 1)) == damaged
    with pytest.raises(DamagedBatch):
        read_all(log)
    assert [record.value for record in read_all(log, 2)] == [b"3"]


@pytest.mark.timeout(120)  # it may not go round for ever
@pytest.mark.parametrize("at", [2, 16, 17, 24], ids=["offset", "length", "length", "checksum"])
def test_a_batch_whose_header_is_damaged_is_kept_and_the_sound_ones_are_compacted(folder, at):
    log = open_compacted(folder, index_interval_bytes=1)
    put(log, (b"a", b"1"))
    put(log, (b"b", b"damaged"))
    put(log, (b"a", b"2"), (b"c", b"1"))
    put(log, (b"a", b"3"))
    log.roll()
    corrupt(log, 1, at=at)

    cleaned = compact(log, NOON_US)

    assert cleaned is not None
    assert cleaned.removed_records == 2
    with pytest.raises(DamagedLog) as raised:
        log.read(1, 1)
    assert raised.value.resume_offset == 2
    expected = [(3, b"c", b"1"), (4, b"a", b"3")]
    assert [(r.offset, r.key, r.value) for r in read_all(log, 2)] == expected
    log.close()
    log = open_compacted(folder, index_interval_bytes=1)
    assert [(r.offset, r.key, r.value) for r in read_all(log, 2)] == expected
    compact(log, NOON_US + 9 * DAY_US)
    assert [(r.offset, r.key, r.value) for r in read_all(log, 2)] == expected


def test_retention_may_be_quicker_than_a_pass(folder):
    log = open_compacted(folder, cleanup_policy="compact,delete", retention_bytes=0)
    put(log, (b"a", b"1"), (b"a", b"2"))
    log.roll()
    put(log, (b"b", b"1"))
    cleaned = clean(log, NOON_US)
    assert cleaned is not None
    apply_retention(log, NOON_US)

    commit(log, cleaned, NOON_US)

    assert keyed(log) == [(2, b"b", b"1")]
    assert not list(folder.glob("*.cleaned"))
    assert not list(folder.glob("*.swap"))


def test_a_deleted_record_does_not_come_back_where_retention_was_quicker_than_a_pass(folder):
    log = open_compacted(folder, cleanup_policy="compact,delete", delete_retention_ms=1)
    put(log, (b"a", b"1"))
    log.roll()
    put(log, (b"b", b"1"))  # one replacement for both; the first segment is deleted meanwhile
    log.roll()
    put(log, (b"c", b"1" * 500), (b"b", None))
    log.roll()
    cleaned = clean(log, NOON_US)
    log.raise_log_start(1)
    assert cleaned is not None
    commit(log, cleaned, NOON_US)

    compact(log, NOON_US + HOUR_US)
    compact(log, NOON_US + 2 * HOUR_US)

    assert [(key, value) for _, key, value in keyed(log)] == [(b"c", b"1" * 500)]


def test_a_pass_can_be_given_up_and_leaves_nothing(folder):
    log = open_compacted(folder)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    log.roll()
    calls = 0

    def give_up() -> None:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise KeyboardInterrupt

    names = sorted(path.name for path in folder.iterdir())
    with pytest.raises(KeyboardInterrupt):
        clean(log, NOON_US, give_up)
    assert sorted(path.name for path in folder.iterdir()) == names
    assert values(log) == [b"1", b"2"]


def test_a_slice_survives_the_swap_of_its_segment(folder):
    log = open_compacted(folder)
    put(log, (b"a", b"1" * 100))
    put(log, (b"a", b"2" * 100))
    log.roll()
    held = log.read(0, 1)
    before = bytes(held)

    compact(log, NOON_US)

    assert bytes(held) == before
    assert values(log) == [b"2" * 100]


def test_readers_during_swaps_see_every_last_record_and_no_error(folder):
    log = open_compacted(folder, segment_bytes=400)
    for number in range(60):
        put(log, (b"key %d" % (number % 7), b"%d" % number * 9), (None, b"always %d" % number))
    log.roll()
    lasting = {value for key, value in ((k, v) for _, k, v in keyed(log)) if key is None}
    lasting |= {b"%d" % number * 9 for number in range(53, 60)}
    stop = threading.Event()
    wrong: list[object] = []

    def read_round() -> None:
        while not stop.is_set():
            try:
                seen, offset = set(), 0
                while found := log.read(offset, 300):
                    for batch in split_batches(found):
                        columns = decode_batch(batch)
                        seen |= set(columns.values)
                        offset = columns.next_offset
                if not lasting <= seen:
                    wrong.append(lasting - seen)
            except Exception as error:
                wrong.append(error)
                return

    readers = [threading.Thread(target=read_round) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(8):
            put(log, (b"other", b"x"))
            compact_all(log)
    finally:
        stop.set()
    for reader in readers:
        reader.join(20)

    assert not wrong


KEYS = st.sampled_from([None, b"a", b"b", b"c"])
VALUES = st.one_of(st.none(), st.binary(max_size=60))


@given(st.lists(st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=4), max_size=12), st.data())
def test_compacting_at_any_time_leaves_what_a_plain_list_compacted_would(
    tmp_path_factory, batches, data
):
    log = open_compacted(
        tmp_path_factory.mktemp("log"), segment_bytes=300, delete_retention_ms=1 << 40
    )
    written: list[tuple[int, bytes | None, bytes | None]] = []
    for batch in batches:
        put(log, *batch)
        written += [(len(written) + i, key, value) for i, (key, value) in enumerate(batch)]
        if data.draw(st.booleans(), label="compact"):
            compact_all(log)
    compact_all(log)

    latest = {key: offset for offset, key, _ in written if key is not None}
    assert keyed(log) == [
        (offset, key, value)
        for offset, key, value in written
        if key is None or latest[key] == offset
    ]
    for offset in range(log.durable_end):
        assert hop(log.read(offset, 1), 0).next_offset > offset, "every offset leads on"
