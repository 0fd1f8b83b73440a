"""The sparse indexes of a segment."""

from bisect import bisect_right
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.protocol.errors import DamagedLog
from seglog.server.storage.index import HEADER_BYTES, NO_TIMESTAMP, SegmentIndex

from tests.storage import append, open_at, read_all

#: (offset span, bytes, largest timestamp) of each batch
BATCHES = st.lists(
    st.tuples(st.integers(1, 50), st.integers(80, 5000), st.integers(-100, 100)),
    max_size=40,
)


def build(batches, interval_bytes: int = 4096, base: int = 0) -> SegmentIndex:
    index = SegmentIndex(base, interval_bytes)
    for number, (span, length, timestamp) in enumerate(batches):
        offset = index.next_offset
        index.add(offset, offset + span, length, timestamp, 1000 + number, 7)
    return index


def layout(batches, base: int) -> list[tuple[int, int, int, int]]:
    """(base offset, next offset, position, largest timestamp) of each batch."""
    offsets = [*accumulate((span for span, _, _ in batches), initial=base)]
    positions = [*accumulate((length for _, length, _ in batches), initial=0)]
    return [(offsets[i], offsets[i + 1], positions[i], batch[2]) for i, batch in enumerate(batches)]


# --- lookups -------------------------------------------------------------------------------------


@given(BATCHES, st.integers(1, 20_000), st.sampled_from([0, 1000, (1 << 40) + 3]))
def test_hopping_on_from_an_offset_lookup_finds_what_a_linear_scan_finds(batches, interval, base):
    index = build(batches, interval, base)
    placed = layout(batches, base)
    boundaries = [position for _, _, position, _ in placed]

    for offset in range(base, index.next_offset):
        expected = next(position for _, end, position, _ in placed if end > offset)
        found = index.position_of_offset(offset)
        assert found in boundaries
        assert found <= expected
        assert expected - found < interval + 5000  # and it is not far


@given(BATCHES, st.integers(1, 20_000), st.integers(-120, 120))
def test_no_record_of_that_time_or_later_lies_before_a_time_lookup(batches, interval, timestamp):
    index = build(batches, interval)
    found = index.position_of_time(timestamp)

    skipped = [latest for _, _, position, latest in layout(batches, 0) if position < found]
    assert all(latest < timestamp for latest in skipped)


@given(BATCHES, st.integers(1, 20_000), st.integers(0, 300_000))
def test_positions_before_and_after_are_the_entries_around_a_position(batches, interval, position):
    index = build(batches, interval)
    marked = [entry & 0xFFFF_FFFF for entry in index.entries]
    place = bisect_right(marked, position)

    assert index.position_at_or_before(position) == (marked[place - 1] if place else 0)
    assert index.position_after(position) == (marked[place] if place < len(marked) else None)


def test_there_is_an_entry_every_interval_and_no_more():
    index = build([(1, 1000, 0)] * 100, interval_bytes=4000)
    assert [entry & 0xFFFF_FFFF for entry in index.entries] == list(range(0, 100_000, 4000))

    assert len(build([(1, 1000, 0)] * 100, interval_bytes=1).entries) == 100


def test_the_widest_offset_and_position_fit_an_entry():
    index = SegmentIndex(1 << 50, 1)
    index.mark((1 << 50) + 0xFFFF_FFFF, 0xFFFF_FFFF)

    assert index.position_of_offset((1 << 50) + 0xFFFF_FFFF) == 0xFFFF_FFFF
    assert index.position_of_offset((1 << 50) + 0xFFFF_FFFE) == 0


def test_an_empty_index_sends_everyone_to_the_start():
    index = SegmentIndex(500, 4096)

    assert index.position_of_offset(500) == index.position_of_time(0) == 0
    assert index.position_at_or_before(9) == 0
    assert index.position_after(0) is None
    assert (index.next_offset, index.covered_bytes) == (500, 0)
    assert index.max_timestamp_us == NO_TIMESTAMP


# --- the files -----------------------------------------------------------------------------------


@given(BATCHES, st.integers(1, 20_000), st.sampled_from([0, 1 << 45]))
def test_an_index_comes_back_from_its_files_as_it_was(batches, interval, base):
    index = build(batches, interval, base)

    back = SegmentIndex.unpack(base, interval, *index.pack())

    for name in SegmentIndex.__slots__:
        assert getattr(back, name) == getattr(index, name), name


def test_every_flipped_bit_of_either_file_is_detected():
    files = build([(3, 900, 5), (2, 700, 4), (4, 800, 9)], interval_bytes=1000).pack()
    for which in (0, 1):
        for bit in range(8 * len(files[which])):
            damaged = [bytearray(file) for file in files]
            damaged[which][bit // 8] ^= 1 << bit % 8
            with pytest.raises(DamagedLog):
                SegmentIndex.unpack(0, 1000, bytes(damaged[0]), bytes(damaged[1]))


@pytest.mark.parametrize("which", [0, 1])
def test_a_file_that_is_cut_short_or_too_long_is_detected(which):
    files = build([(1, 900, 5)] * 9, interval_bytes=1).pack()
    for size in range(len(files[which])):
        cut = list(files)
        cut[which] = files[which][:size]
        with pytest.raises(DamagedLog):
            SegmentIndex.unpack(0, 1, *cut)
    longer = list(files)
    longer[which] += bytes(8)
    with pytest.raises(DamagedLog):
        SegmentIndex.unpack(0, 1, *longer)


def test_two_sound_files_of_different_times_are_not_taken_together():
    older, newer = build([(1, 900, 5)] * 2, 1), build([(1, 900, 5)] * 3, 1)
    with pytest.raises(DamagedLog, match="do not belong together"):
        SegmentIndex.unpack(0, 1, newer.pack()[0], older.pack()[1])
    with pytest.raises(DamagedLog):  # nor one in the place of the other
        SegmentIndex.unpack(0, 1, *reversed(newer.pack()))


# --- together with a log -------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [1, 300, 4096])
def test_after_several_appends_and_a_restart_every_offset_is_found(tmp_path, interval):
    """Entries lie one behind the other in the index file, whatever the positions in the log.

    A known way to get this wrong: entries written at the log's own position survive one append and
    a restart, and many appends without one; not both.
    """
    log = open_at(tmp_path / "log", index_interval_bytes=interval)
    for number in range(20):
        append(log, b"value %d" % number, b"x" * number * 10)
    log.close()
    index_file = (tmp_path / "log" / "00000000.index").read_bytes()
    log = open_at(tmp_path / "log", index_interval_bytes=interval)

    entries = len(log.active.index.entries)
    assert len(index_file) == HEADER_BYTES + 8 * entries
    assert entries == 20 if interval == 1 else entries < 20
    for offset in range(40):
        first = read_all(log, offset)[0]
        assert first.offset == offset
        assert first.value == (
            b"x" * (offset // 2) * 10 if offset % 2 else b"value %d" % (offset // 2)
        )
