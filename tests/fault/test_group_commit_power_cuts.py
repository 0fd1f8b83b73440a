"""The power is cut before every file step of what the broker's writer does.

Whatever the cut leaves: every acked record is there once, in order, at its offset; nothing that a
reader could have seen has changed; starting twice finds the same. A failure names the step and the
fate; `only_step=` of `run_with_crash_at_every_step` replays it. SEGLOG_POWER_CUT_SEEDS=20 looks
longer.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from seglog.protocol.constants import KIB
from seglog.protocol.errors import SeglogError
from seglog.server.group_commit import SYNC_IN_PLACE_BYTES

from tests.group_commits import Machine, Promises, check
from tests.simulated_disk import (
    Crash,
    Fate,
    PowerCut,
    SimulatedDisk,
    keep_everything,
    keep_nothing,
    keep_some,
    run_with_crash_at_every_step,
)

Step = Callable[[Machine], object]

SEEDS = int(os.environ.get("SEGLOG_POWER_CUT_SEEDS", "1"))
FATES = [keep_nothing, keep_everything, *map(keep_some, range(SEEDS))]


@pytest.fixture(autouse=True)
def in_memory(monkeypatch):
    """The simulated disk's files need no real disk."""
    if os.access("/dev/shm", os.W_OK):
        monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")


def small(name: str, number: int, round_: int, records: int = 2) -> tuple[str, int, list[bytes]]:
    return name, number, [f"{name}/{number}/{round_}.{n}".encode() for n in range(records)]


def large(name: str, number: int, round_: int) -> tuple[str, int, list[bytes]]:
    """A batch that is synced in place."""
    return name, number, [b"%d" % round_ * SYNC_IN_PLACE_BYTES]


def cut_at_every_step(
    prepare: Step, act: Step, *, journal_bytes: int = 64 * KIB, seeds: int = SEEDS
) -> int:
    """`prepare` a machine, cut the power at every step of `act`, and check what is left."""

    def build(disk: SimulatedDisk) -> Promises:
        promises = Promises()
        promises.machine = Machine(disk, disk.root, promises, journal_bytes=journal_bytes)
        prepare(promises.machine)
        return promises

    def action(disk: SimulatedDisk, promises: Promises) -> None:
        assert promises.machine is not None
        act(promises.machine)

    def compare(folder: str, crash: Crash[Promises]) -> None:
        check(folder, crash.state, go_on=crash.fate is keep_nothing)

    return run_with_crash_at_every_step(build, action, compare, seeds=seeds)


def install(disk: SimulatedDisk, folder: Path, below: str = ".") -> None:
    """Put a copy of what is in a folder on the disk, synced."""
    for source in sorted((folder / below).iterdir()):
        name = str(source.relative_to(folder))
        copy = f"{disk.root}/{name}"
        if source.is_dir():
            disk.make_folder(copy)
            install(disk, folder, name)
        else:
            file = disk.create(copy)
            file.write([source.read_bytes()], 0)
            file.sync()
            file.close()
    disk.sync_folder(f"{disk.root}/{below}")


# --- groups --------------------------------------------------------------------------------------


def test_a_group_over_many_partitions_survives_a_cut_at_any_step():
    def act(machine: Machine) -> None:
        for round_ in range(3):
            machine.commit(*(small("t", n, round_) for n in range(5)), small("t", 2, 10 + round_))

    assert cut_at_every_step(lambda machine: machine.create("t", 5), act) > 100


def test_groups_that_sync_in_place_survive_a_cut_at_any_step():
    def act(machine: Machine) -> None:
        machine.commit(small("t", 0, 0))
        machine.commit(large("t", 0, 1), large("t", 1, 1))
        machine.commit(small("t", 1, 2), small("t", 1, 3))

    cut_at_every_step(lambda machine: machine.create("t", 2, segment_bytes=1 << 20), act)


def test_groups_that_mix_the_journal_with_syncs_in_place_survive_a_cut_at_any_step():
    def prepare(machine: Machine) -> None:
        machine.create("t", 3, segment_bytes=1 << 20)
        machine.create("quick", 2, durability="os")

    def act(machine: Machine) -> None:
        for round_ in range(2):
            machine.commit(
                small("t", 0, round_),
                large("t", 1, round_),
                small("quick", 0, round_),
                small("t", 2, round_),
                small("quick", 1, round_),
            )
            machine.commit(small("t", 0, 10 + round_))
            machine.log("quick", 0).sync_beside()

    cut_at_every_step(prepare, act)


def test_a_group_that_rolls_some_of_its_logs_survives_a_cut_at_any_step():
    def act(machine: Machine) -> None:
        for round_ in range(2):
            machine.commit(*(small("t", n, 10 * round_ + i, 4) for i in range(3) for n in range(2)))

    cut_at_every_step(lambda machine: machine.create("t", 2, segment_bytes=450), act)


# --- the journal's files -------------------------------------------------------------------------


def no_release(machine: Machine) -> None:
    """The logs of a full journal file are still not synced."""


def late_release(machine: Machine) -> None:
    """They are synced after the next group, which finds the journal without room."""
    if len(machine.beside) > 0 and machine.log("t").log_end % 4 == 0:
        machine.run_beside()


@pytest.mark.parametrize("beside", [Machine.run_beside, late_release, no_release])
def test_switching_and_releasing_journal_files_survives_a_cut_at_any_step(beside):
    def act(machine: Machine) -> None:
        for round_ in range(9):
            machine.commit(*(small("t", n, round_) for n in range(3)))
            beside(machine)

    # Two groups fill a file.
    cut_at_every_step(lambda m: m.create("t", 3), act, journal_bytes=1400)


def test_closing_and_removing_the_journal_survives_a_cut_at_any_step():
    def prepare(machine: Machine) -> None:
        machine.create("t", 3)
        for round_ in range(5):
            machine.commit(*(small("t", n, round_) for n in range(3)))
            machine.run_beside()

    cut_at_every_step(prepare, Machine.close, journal_bytes=1400)


@pytest.mark.parametrize("fate", FATES, ids=lambda fate: fate.description)
def test_a_cut_during_the_replay_leaves_a_journal_that_can_be_replayed_again(tmp_path, fate: Fate):
    # Given what a first cut left, with most of it in the journal only
    promises = Promises()
    disk = SimulatedDisk(tmp_path / "first")
    machine = Machine(disk, disk.root, promises, journal_bytes=1400)
    machine.create("t", 4)
    machine.commit(small("t", 0, 0))
    for round_ in range(1, 6):
        machine.commit(*(small("t", n, round_) for n in range(4)))
        if round_ < 4:
            machine.run_beside()
    disk.close()
    left = Path(disk.power_cut(tmp_path / "left", fate))

    # When the power goes again, at any step of the start
    def build(disk: SimulatedDisk) -> Promises:
        install(disk, left)
        return promises

    def action(disk: SimulatedDisk, promises: Promises) -> None:
        Machine(disk, disk.root, promises).read()

    # Then nothing more is lost
    run_with_crash_at_every_step(
        build, action, lambda folder, crash: check(folder, crash.state, go_on=False), seeds=SEEDS
    )


# --- what happens to a log while the journal still holds its data --------------------------------


def test_a_topic_made_anew_under_its_name_gets_nothing_of_the_old_one_from_the_journal():
    def prepare(machine: Machine) -> None:
        machine.create("t", 2)
        machine.create("other", 2)
        machine.commit(*(small(name, n, 0) for name in ("t", "other") for n in range(2)))

    def act(machine: Machine) -> None:
        machine.commit(*(small(name, n, 1) for name in ("t", "other") for n in range(2)))
        machine.delete("t")
        machine.create("t", 2)
        machine.commit(*(small(name, n, 2, 3) for name in ("t", "other") for n in range(2)))

    cut_at_every_step(prepare, act)


def test_segments_that_roll_and_go_by_retention_after_being_journaled_survive_a_cut_at_any_step():
    def act(machine: Machine) -> None:
        for round_ in range(2):
            machine.commit(small("t", 0, round_), small("t", 1, round_))
            machine.log("t", 0).roll()
        machine.commit(small("t", 0, 2), small("t", 1, 2))
        machine.retain("t", 0, segments=2)
        machine.commit(small("t", 0, 3), small("t", 1, 3))
        machine.retain("t", 0, segments=1)

    cut_at_every_step(lambda machine: machine.create("t", 2), act)


def test_segments_that_are_compacted_after_being_journaled_survive_a_cut_at_any_step():
    def keyed(number: int, round_: int) -> tuple[str, int, list[tuple[bytes, bytes]]]:
        return "t", number, [(b"k%d" % (n % 2), b"%d.%d" % (round_, n)) for n in range(3)]

    def act(machine: Machine) -> None:
        for round_ in range(2):
            machine.commit(keyed(0, round_), keyed(1, round_))
            machine.log("t", 0).roll()
        machine.compact("t", 0)
        machine.commit(keyed(0, 5), keyed(1, 5))

    cut_at_every_step(lambda machine: machine.create("t", 2, cleanup_policy="compact"), act)


def test_a_checkpoint_beside_the_journal_survives_a_cut_at_any_step():
    def act(machine: Machine) -> None:
        for round_ in range(3):
            machine.commit(*(small("t", n, round_) for n in range(3)))
            machine.log("t", round_).checkpoint()

    cut_at_every_step(lambda machine: machine.create("t", 3), act)


def test_records_acked_after_a_topic_became_durable_do_not_hang_on_what_was_not():
    """durability=os left records in memory; then fsync, and the journal holds only what follows."""

    def prepare(machine: Machine) -> None:
        machine.create("t", 2, durability="os")
        machine.commit(*(small("t", n, 0) for n in range(2)))

    def act(machine: Machine) -> None:
        machine.alter("t", durability="fsync")
        machine.commit(*(small("t", n, 1) for n in range(2)))

    cut_at_every_step(prepare, act)


# --- faults of the disk, then a cut --------------------------------------------------------------


def commit_rounds(machine: Machine, first: int, count: int) -> None:
    for round_ in range(first, first + count):
        machine.commit(*(small("t", n, round_) for n in range(3)))
        machine.run_beside()


def fail(machine: Machine, operation: str, path_glob: str, **options: int) -> None:
    assert isinstance(machine.fs, SimulatedDisk)
    machine.fs.fail(operation, path_glob, **options)


@pytest.mark.parametrize("operation", ["sync", "write"])
def test_without_its_journal_the_broker_syncs_each_log_and_a_cut_takes_nothing(operation):
    def act(machine: Machine) -> None:
        commit_rounds(machine, 0, 1)
        fail(machine, operation, "journal-*")
        commit_rounds(machine, 1, 2)
        machine.close()

    cut_at_every_step(lambda machine: machine.create("t", 3), act)


def test_what_a_failed_journal_may_hold_is_never_replayed_over_later_records():
    """The journal's sync fails, though it is on disk; then the log's write fails halfway."""

    def act(machine: Machine) -> None:
        commit_rounds(machine, 0, 1)
        fail(machine, "sync", "journal-*")
        fail(machine, "write", "topic-t/partition-1/*", partial=20)
        before = machine.promises.written(machine.topics.partition("t", 1))
        sent = len(before.sent)
        outcomes = machine.commit(*(small("t", n, 1) for n in range(3)))
        assert isinstance(outcomes[1], SeglogError)
        if not machine.log("t", 1).offline_reason:  # taken back, so that its offsets are free
            del before.sent[sent:]
        refused = small("t", 1, 2)
        outcome = machine.commit(refused)[0]
        if isinstance(outcome, SeglogError):
            del before.sent[-len(refused[2]) :]

    cut_at_every_step(lambda machine: machine.create("t", 3), act, seeds=SEEDS + 4)


def test_a_log_that_cannot_be_synced_keeps_the_journal_and_with_it_what_was_acked():
    """Also when the broker stops well: what is in the journal only must not go with it."""

    def act(machine: Machine) -> None:
        commit_rounds(machine, 0, 2)
        fail(machine, "sync", "topic-t/partition-1/*")
        machine.commit(small("t", 1, 2))
        machine.close()

    cut_at_every_step(lambda machine: machine.create("t", 3), act)


def test_a_log_that_fails_during_the_release_keeps_its_journal_file():
    def act(machine: Machine) -> None:
        commit_rounds(machine, 0, 2)
        fail(machine, "sync", "topic-t/partition-1/*")
        for round_ in range(2, 8):
            machine.commit(small("t", 0, round_), small("t", 2, round_))
            machine.run_beside()
        machine.close()

    cut_at_every_step(lambda machine: machine.create("t", 3), act, journal_bytes=1400)


# --- killed first, then cut ----------------------------------------------------------------------


def traffic(machine: Machine) -> None:
    machine.create("late", 2)
    for round_ in range(4):
        machine.commit(*(small("t", n, round_) for n in range(3)))
        machine.commit(small("late", 0, round_))
        if round_ == 1:
            machine.log("t", 0).roll()
            machine.log("t", 1).checkpoint()
    machine.run_beside()


def count_steps(folder: str) -> int:
    disk = SimulatedDisk(folder)
    machine = Machine(disk, disk.root, Promises(), journal_bytes=1400)
    machine.create("t", 3)
    first = disk.steps
    traffic(machine)
    disk.close()
    return disk.steps - first


def test_records_found_after_a_failed_sync_are_on_disk_before_they_are_served(tmp_path):
    """The system may keep in memory, as if it were safe, what it could not write."""
    promises = Promises()
    disk = SimulatedDisk(tmp_path / "disk")
    machine = Machine(disk, disk.root, promises)
    machine.create("t", 3)
    machine.commit(*(small("t", n, 0) for n in range(3)))
    disk.fail("sync", "topic-t/partition-1/*")
    machine.commit(small("t", 1, 1))
    assert machine.log("t", 1).offline_reason
    disk.close()

    again = Machine(disk, disk.root, promises)
    again.take_up()
    again.commit(*(small("t", n, 2) for n in range(3)))
    disk.close()

    for fate in FATES:
        check(disk.power_cut(tmp_path / fate.description, fate), promises)


def test_what_a_killed_broker_left_in_memory_is_safe_once_the_next_one_serves_it(tmp_path):
    """Killed at any step, started again on the same machine, and then the power goes."""
    steps = count_steps(str(tmp_path / "counted"))
    for step in range(1, steps + 2):
        disk = SimulatedDisk(tmp_path / f"disk-{step}")
        promises = Promises()
        machine = Machine(disk, disk.root, promises, journal_bytes=1400)
        machine.create("t", 3)
        disk.crash_at = disk.steps + step
        try:
            traffic(machine)
        except PowerCut:
            pass
        what, disk.crash_at, disk.is_cut = disk.cut_before, None, False
        disk.close()

        again = Machine(disk, disk.root, promises)
        again.take_up()
        try:
            if "late" in again.topics.names():  # in place: the journal would sync names by the way
                again.commit(small("late", 0, 9))
                check(disk.power_cut(tmp_path / f"late-{step}", keep_nothing), promises)
            again.commit(*(small("t", n, 9) for n in range(3)))
            for fate in FATES:
                check(disk.power_cut(tmp_path / f"{step}-{fate.description}", fate), promises)
        except AssertionError as error:
            where = f"killed before step {step} of {steps}, {what}"
            raise AssertionError(f"{where}: {error}") from error
        disk.close()
