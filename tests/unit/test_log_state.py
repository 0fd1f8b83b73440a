"""What a log remembers besides its batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.protocol.errors import DamagedLog, UnsupportedVersion
from seglog.server.storage.checked_file import write_checked
from seglog.server.storage.filesystem import FileSystem
from seglog.server.storage.log_state import (
    MAX_COMPACTIONS,
    MAX_EPOCHS,
    Compaction,
    Epoch,
    LogState,
    load_log_state,
    save_log_state,
)

U63 = st.integers(0, (1 << 63) - 1)


@given(
    U63,
    st.lists(st.builds(Epoch, U63, U63), min_size=1, max_size=5),
    st.lists(st.builds(Compaction, U63, U63, U63), max_size=5),
)
def test_a_state_comes_back_as_it_was(tmp_path_factory, log_start, epochs, compactions):
    folder = str(tmp_path_factory.mktemp("state"))
    state = LogState(log_start, tuple(epochs), tuple(compactions))

    save_log_state(FileSystem(), folder, state)

    assert load_log_state(FileSystem(), folder) == state


def test_a_log_that_never_saved_its_state_has_none(tmp_path):
    assert load_log_state(FileSystem(), str(tmp_path)) is None


def test_every_flipped_bit_and_every_cut_is_detected(tmp_path):
    save_log_state(FileSystem(), str(tmp_path), LogState(5, (Epoch(1, 2),)))
    path = tmp_path / "log-state"
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises((DamagedLog, UnsupportedVersion)):
            load_log_state(FileSystem(), str(tmp_path))
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedLog):
            load_log_state(FileSystem(), str(tmp_path))


def test_another_kind_of_file_is_not_taken_for_a_state(tmp_path):
    write_checked(FileSystem(), str(tmp_path / "log-state"), b"SGPS", [0, [[0, 0]], []])
    with pytest.raises(DamagedLog):
        load_log_state(FileSystem(), str(tmp_path))


# --- epochs --------------------------------------------------------------------------------------


def test_a_reader_learns_the_lowest_cut_since_it_read():
    state = LogState().with_epoch(1, 100).with_epoch(2, 150).with_epoch(3, 200)

    assert state.epoch == 3
    assert state.cut_since(0, 120) == 100
    assert state.cut_since(0, 300) == 100
    assert state.cut_since(1, 300) == 150
    assert state.cut_since(2, 300) == 200
    assert state.cut_since(3, 300) is None
    assert state.cut_since(0, 100) is None, "it stood at the cut: what it read is all there"


def test_a_deeper_cut_makes_the_epochs_it_emptied_forgotten():
    state = LogState().with_epoch(1, 100).with_epoch(2, 50)

    assert state.epochs == (Epoch(0, 0), Epoch(2, 50))
    assert state.cut_since(1, 120) == 50


def test_a_log_that_is_cut_to_nothing_keeps_its_newest_epoch():
    assert LogState().with_epoch(1, 0).epochs == (Epoch(1, 0),)


def test_epochs_are_bounded():
    state = LogState()
    for number in range(1, 200):
        state = state.with_epoch(number, number * 10)
    assert len(state.epochs) == MAX_EPOCHS
    assert state.epoch == 199


# --- compactions ---------------------------------------------------------------------------------


def test_tombstones_are_due_once_their_pass_is_old_enough():
    state = LogState().with_compaction(100, 1000, 3, 500).with_compaction(200, 1400, 0, 500)

    assert state.compacted_end == 200
    assert state.tombstone_horizon(1499, 500) == 0
    assert state.tombstone_horizon(1500, 500) == 100
    assert state.tombstone_horizon(1900, 500) == 200
    assert not state.has_due_tombstones(1499, 500)
    assert state.has_due_tombstones(1500, 500)


def test_a_pass_that_removed_the_due_tombstones_is_the_only_one_left_to_ask():
    state = LogState().with_compaction(100, 1000, 3, 500)
    state = state.with_compaction(100, 1500, 0, 500)

    assert state.compactions == (Compaction(100, 1500, 0),)
    assert not state.has_due_tombstones(9999, 500)


def test_compactions_are_bounded_and_what_is_dropped_only_keeps_tombstones_longer():
    state = LogState()
    for number in range(1, 200):
        before = state
        state = state.with_compaction(number * 10, number, 1, 10_000)
        assert state.tombstone_horizon(10_050, 10_000) <= max(
            before.tombstone_horizon(10_050, 10_000), number * 10
        )
    assert len(state.compactions) == MAX_COMPACTIONS
    assert state.compacted_end == 1990
