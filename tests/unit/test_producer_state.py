"""Idempotent producers: each row of the table at the top of producer_state.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.protocol.errors import (
    DuplicateSequence,
    ProducerFenced,
    SeglogError,
    SequenceGap,
    UnknownProducer,
)
from seglog.protocol.header import BatchHeader, unpack_header
from seglog.server.storage import producer_state, snapshots
from seglog.server.storage.filesystem import FileSystem
from seglog.server.storage.producer_state import AppendedBatch, ProducerState

from tests.storage import append, batch_of, open_at

WRAP = 1 << 32


def header_of(sequence: int, count: int = 1, producer: int = 7, epoch: int = 0) -> BatchHeader:
    return unpack_header(
        batch_of(
            *[b""] * count,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence % WRAP,
        )
    )


def state_after(*headers: BatchHeader) -> ProducerState:
    """The state after these batches, at offsets 100, 200, … and times 1, 2, …"""
    state = ProducerState()
    for number, header in enumerate(headers, start=1):
        assert state.check(header) is None
        state.add(header, 100 * number, number)
    return state


# --- the table -----------------------------------------------------------------------------------


def test_the_next_sequence_is_appended():
    state = state_after(header_of(0, count=3))
    assert state.check(header_of(3)) is None


def test_a_sequence_among_the_last_five_gets_its_first_answer_again():
    headers = [header_of(2 * number, count=2) for number in range(7)]
    state = state_after(*headers)

    for number in (2, 3, 4, 5, 6):
        answer = state.check(headers[number])
        assert answer == AppendedBatch(2 * number, 2 * number + 2, 100 * (number + 1), number + 1)


def test_an_older_sequence_is_a_duplicate_without_an_answer():
    headers = [header_of(2 * number, count=2) for number in range(7)]
    state = state_after(*headers)

    for number in (0, 1):
        with pytest.raises(DuplicateSequence, match="14 comes next"):
            state.check(headers[number])


@pytest.mark.parametrize(("sequence", "count"), [(0, 3), (1, 1), (2, 4)])
def test_other_records_under_a_known_sequence_are_not_taken_for_a_repeat(sequence, count):
    state = state_after(header_of(0, count=2), header_of(2, count=2))
    with pytest.raises(DuplicateSequence):
        state.check(header_of(sequence, count=count))


@pytest.mark.parametrize("further", [1, 2, 1000, WRAP // 2 - 1])
def test_a_sequence_further_on_is_a_gap(further):
    state = state_after(header_of(0, count=3))
    with pytest.raises(SequenceGap, match="3 comes next"):
        state.check(header_of(3 + further))


def test_a_lower_epoch_is_fenced():
    state = state_after(header_of(0, epoch=4))
    for sequence in (0, 1, 2):
        with pytest.raises(ProducerFenced, match="epoch 4 has taken over"):
            state.check(header_of(sequence, epoch=3))


def test_a_higher_epoch_begins_at_sequence_0_and_the_old_one_is_forgotten():
    state = state_after(header_of(0, count=5, epoch=1))
    with pytest.raises(SequenceGap, match="a new epoch begins with sequence 0"):
        state.check(header_of(5, epoch=2))

    first = header_of(0, count=5, epoch=2)
    assert state.check(first) is None
    state.add(first, 900, 9)

    assert state.check(first) == AppendedBatch(0, 5, 900, 9)
    with pytest.raises(ProducerFenced):
        state.check(header_of(5, epoch=1))


def test_an_unknown_producer_begins_at_sequence_0():
    state = state_after(header_of(0, producer=7))
    assert state.check(header_of(0, producer=8)) is None
    with pytest.raises(UnknownProducer, match="producer 8, epoch 0, sequence 1 is not known here"):
        state.check(header_of(1, producer=8))


# --- around it -----------------------------------------------------------------------------------


def test_a_sequence_wraps_at_2_to_the_32():
    last = header_of(WRAP - 2, count=2)
    across = header_of(WRAP - 1, count=3)
    state = ProducerState()
    state.add(last, 10, 1)
    assert state.check(header_of(0)) is None

    state = ProducerState()
    state.add(header_of(WRAP - 3, count=2), 10, 1)
    assert state.check(across) is None
    state.add(across, 12, 2)
    assert state.check(across) == AppendedBatch(WRAP - 1, 2, 12, 2)
    assert state.check(header_of(2)) is None
    with pytest.raises(DuplicateSequence):
        state.check(header_of(WRAP - 4))
    with pytest.raises(SequenceGap):
        state.check(header_of(3))


@given(st.integers(0, WRAP - 1), st.lists(st.integers(1, 5), min_size=1, max_size=9))
def test_wherever_a_producer_stands_its_last_five_batches_are_known_and_no_other(start, counts):
    state = ProducerState()
    headers = []
    sequence = start
    for number, count in enumerate(counts):
        headers.append(header_of(sequence, count=count))
        state.add(headers[-1], number, number)
        sequence += count

    for number, header in enumerate(headers):
        if number >= len(headers) - producer_state.REMEMBERED_BATCHES:
            known = state.check(header)
            assert known is not None
            assert known.base_offset == number
        else:
            with pytest.raises(DuplicateSequence):
                state.check(header)
    assert state.check(header_of(sequence)) is None


def test_a_refused_batch_changes_nothing():
    state = state_after(header_of(0, count=2, epoch=1))
    before = state.dump()
    for header in (header_of(9, epoch=1), header_of(0), header_of(0, count=2, epoch=1)):
        try:
            state.check(header)
        except SeglogError:
            pass
    assert state.dump() == before


def test_what_was_added_can_be_taken_back():
    state = state_after(header_of(0, count=2))
    before = state.dump()
    known, unknown = state.remember(7), state.remember(8)
    state.add(header_of(2), 50, 5)
    state.add(header_of(0, producer=8), 51, 6)

    state.restore(7, known)
    state.restore(8, unknown)

    assert state.dump() == before
    assert state.check(header_of(2)) is None
    with pytest.raises(UnknownProducer):
        state.check(header_of(1, producer=8))


def test_a_silent_producer_is_forgotten_and_a_busy_one_is_not():
    state = state_after(
        header_of(0, producer=1), header_of(0, producer=2), header_of(1, producer=1)
    )

    assert state.expire(before_us=3) == 1  # producer 2 last wrote at time 2, producer 1 at 3
    assert len(state) == 1
    assert state.check(header_of(2, producer=1)) is None
    with pytest.raises(UnknownProducer):
        state.check(header_of(1, producer=2))
    assert state.expire(before_us=3) == 0
    assert state.expire(before_us=4) == 1
    assert len(state) == 0


def test_a_producer_taken_back_to_its_old_time_still_expires():
    state = state_after(header_of(0, producer=1), header_of(0, producer=2))
    before = state.remember(1)
    state.add(header_of(1, producer=1), 300, 3)
    state.restore(1, before)

    state.expire(before_us=2)
    assert [dumped[0] for dumped in state.dump()] == [2]


def test_beyond_the_bound_the_most_silent_producer_goes(monkeypatch):
    monkeypatch.setattr(producer_state, "MAX_PRODUCERS", 3)
    state = state_after(
        *[header_of(0, producer=producer) for producer in (1, 2, 3)],
        header_of(1, producer=1),
        header_of(0, producer=4),
    )

    assert len(state) == 3
    with pytest.raises(UnknownProducer):
        state.check(header_of(1, producer=2))
    assert state.check(header_of(2, producer=1)) is None


# --- snapshots -----------------------------------------------------------------------------------


def test_a_snapshot_comes_back_as_it_was_in_the_same_order(tmp_path):
    fs, folder = FileSystem(), str(tmp_path)
    state = state_after(
        header_of(0, producer=1 << 62),
        header_of(0, producer=0, epoch=WRAP - 1),
        header_of(1, producer=1 << 62),
    )
    snapshots.save(fs, folder, 500, state)

    offset, back = snapshots.load_newest(fs, folder, before=500)

    assert offset == 500
    assert back.dump() == state.dump()


def test_a_damaged_snapshot_costs_only_the_way_to_the_one_before(tmp_path, caplog):
    fs, folder = FileSystem(), str(tmp_path)
    older, newer = state_after(header_of(0)), state_after(header_of(0), header_of(1))
    for offset, state in ((100, older), (200, older), (300, newer)):
        snapshots.save(fs, folder, offset, state)
    assert snapshots.offsets(fs, folder) == [200, 300]
    path = tmp_path / "00000300.producers"
    whole = path.read_bytes()

    for damaged in (whole[:-1], whole[:5], b"", whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(damaged)
        offset, back = snapshots.load_newest(fs, folder, before=300)
        assert (offset, back.dump()) == (200, older.dump())
    assert "rebuilding the producer state without it" in caplog.text


def test_a_log_knows_its_producers_again_after_a_restart_with_and_without_snapshots(tmp_path):
    log = open_at(tmp_path / "log", segment_bytes=600)
    for sequence in range(12):
        append(log, b"x" * 100, producer_id=7, base_sequence=sequence)
    log.close()

    for _ in range(2):
        log = open_at(tmp_path / "log", segment_bytes=600)
        again = append(log, b"x" * 100, producer_id=7, base_sequence=9)
        assert (again.base_offset, again.is_duplicate) == (9, True)
        with pytest.raises(SequenceGap):
            append(log, b"x" * 100, producer_id=7, base_sequence=13)
        log.close()
        for snapshot in (tmp_path / "log").glob("*.producers"):
            snapshot.unlink()
