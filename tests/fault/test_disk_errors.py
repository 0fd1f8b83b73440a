"""A disk that is full or fails: what a producer and a reader see, and what is there after it.

The parameters name the fault: the operation, the path, and how many calls went well before it.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from seglog.protocol.errors import PartitionOffline, SequenceGap, StorageError, StorageFull
from seglog.server.storage.compaction import clean, commit, compact
from seglog.server.storage.log import Log
from seglog.server.storage.retention import apply_retention

from tests.logs import (
    NOON_US,
    SMALL,
    append_values,
    files_in,
    folder_of,
    leave,
    open_on,
    plain,
    read_all,
    sequenced,
    settings,
    stage,
    values_of,
)
from tests.simulated_disk import SimulatedDisk, keep_nothing, keep_some

COMPACTED = settings(segment_bytes=400, index_interval_bytes=100, cleanup_policy="compact")


@pytest.fixture
def disk(tmp_path):
    disk = SimulatedDisk(tmp_path / "disk")
    yield disk
    disk.close()


@pytest.fixture
def log(disk):
    """A log with a sealed segment and an idempotent producer whose next sequence is 2."""
    log = open_on(disk, SMALL)
    append_values(log, b"0", b"1")
    log.append(sequenced(0, b"2", b"3"), NOON_US)
    log.roll()
    append_values(log, b"4")
    return log


def reopened(disk: SimulatedDisk, log: Log) -> Log:
    leave(log)
    disk.close()
    disk.heal()
    return open_on(disk, log.config)


# --- a full disk ---------------------------------------------------------------------------------


def fill(operation: str, path: str = "*", *, partial: int = 0, after: int = 0):
    """A fault: no space left in this operation."""

    def arm(disk: SimulatedDisk) -> None:
        disk.fail(operation, path, error=errno.ENOSPC, partial=partial, after=after, times=None)

    return pytest.param(arm, id=f"{operation} {path} {partial or after}")


@pytest.mark.parametrize(
    "arm",
    [
        fill("allocate"),
        *(fill("write", "*.log", partial=partial) for partial in (0, 1, 27, 28, 100, 180, 250)),
    ],
)
def test_a_full_disk_keeps_nothing_of_an_append_and_takes_it_once_there_is_space(disk, log, arm):
    before, producers = read_all(log), log.producers.dump()
    log.roll()  # so that space must be reserved
    arm(disk)
    group = [sequenced(2, b"no room" * 9), plain(b"no room" * 9), sequenced(3, b"nor here")]
    for _ in range(2):
        with pytest.raises(StorageFull):
            log.write(stage(log, group))
        assert (log.log_end, log.durable_end) == (5, 5)
        assert read_all(log) == before
        assert log.producers.dump() == producers
    disk.heal()

    with pytest.raises(SequenceGap):
        log.append(sequenced(3, b"3"), NOON_US)
    assert log.append(sequenced(2, b"x"), NOON_US).base_offset == 5
    again = reopened(disk, log)
    assert values_of(again) == [b"0", b"1", b"2", b"3", b"4", b"x"]
    assert again.append(sequenced(2, b"x"), NOON_US).is_duplicate


def test_a_disk_that_really_fills_up_refuses_and_takes_again(tmp_path):
    disk = SimulatedDisk(tmp_path / "disk", capacity_bytes=5000)
    log = open_on(disk, SMALL)
    values = [b"%d" % n + bytes(100) for n in range(100)]
    with pytest.raises(StorageFull):
        append_values(log, *values)
    taken = values[: log.log_end]
    assert 10 < len(taken) < 100
    assert values_of(log) == taken
    with pytest.raises(StorageFull):
        append_values(log, bytes(100))

    disk.capacity_bytes = 50_000
    append_values(log, b"taken again")
    assert values_of(reopened(disk, log)) == [*taken, b"taken again"]


#: Everything else that writes, with what it may do to a log that stays as it is.
ACTIONS: dict[str, Callable[[Log], object]] = {
    "roll": Log.roll,
    "checkpoint": Log.checkpoint,
    "delete records": lambda log: log.raise_log_start(3),
    "append that rolls": lambda log: log.append(plain(bytes(600)), NOON_US),
}


@pytest.mark.parametrize("operation", ["create", "write", "sync_folder", "rename"])
@pytest.mark.parametrize("action", ACTIONS)
def test_a_full_disk_stops_housekeeping_and_nothing_else(disk, log, action, operation):
    """At each step of the action in turn; the action is done in full once there is space."""
    before = read_all(log)
    act = ACTIONS[action]
    for after in range(8):
        fault = disk.fail(operation, error=errno.ENOSPC, after=after)
        try:
            act(log)
        except StorageFull:
            assert fault.hits == 1
            assert read_all(log) == before, f"{operation} failed after {after}"
            assert not log.offline_reason
            append_values(log, b"goes on %d" % after)
            before = read_all(log)
        disk.heal()
    act(log)
    ours, start, end = values_of(log), log.log_start, log.log_end
    again = reopened(disk, log)
    assert (values_of(again), again.log_start, again.log_end) == (ours, start, end)


def compacted_log(disk: SimulatedDisk) -> Log:
    log = open_on(disk, COMPACTED)
    for n in range(12):
        log.append(plain(b"%d" % n + bytes(40), key=b"abc"[n % 3 : n % 3 + 1]), NOON_US)
    log.roll()
    return log


@pytest.mark.parametrize("operation", ["create", "write", "sync"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_compaction_that_cannot_write_changes_nothing_and_leaves_no_file(disk, operation, error):
    log = compacted_log(disk)
    before, files = read_all(log), files_in(folder_of(disk))
    for after in range(2):
        disk.fail(operation, "*.cleaned", error=error, after=after)
        with pytest.raises(StorageFull if error == errno.ENOSPC else StorageError):
            clean(log, NOON_US)
        disk.heal()
        assert files_in(folder_of(disk)) == files
        assert read_all(log) == before
        assert not log.offline_reason
    compact(log, NOON_US)
    assert [record.value[:2] for record in read_all(log) if record.value] == [b"9\0", b"10", b"11"]


@pytest.mark.parametrize("operation", ["rename", "sync_folder", "remove", "create", "write"])
def test_a_compaction_that_cannot_be_swapped_in_keeps_the_last_record_of_each_key(
    tmp_path, operation
):
    for after in range(12):
        disk = SimulatedDisk(tmp_path / f"{operation}-{after}")
        log = compacted_log(disk)
        before = read_all(log)
        cleaned = clean(log, NOON_US)
        assert cleaned is not None
        fault = disk.fail(operation, "*", error=errno.ENOSPC, after=after)
        try:
            commit(log, cleaned, NOON_US)
        except (StorageFull, PartitionOffline):
            pass
        disk.heal()
        found = read_all(reopened(disk, log))
        assert found == [record for record in before if record in found], f"{fault}"
        assert found[-3:] == before[-3:], f"{fault}"
        disk.close()


def test_retention_on_a_full_disk_removes_nothing_until_it_can_say_so(disk):
    log = open_on(disk, settings(segment_bytes=300, retention_bytes=0))
    append_values(log, *[b"%d" % n + bytes(60) for n in range(9)])
    before = read_all(log)
    disk.fail("write", "*log-state*", error=errno.ENOSPC)
    with pytest.raises(StorageFull):
        apply_retention(log, NOON_US)
    assert (log.log_start, read_all(log)) == (0, before)
    apply_retention(log, NOON_US)
    assert log.log_start > 0
    assert read_all(log) == [record for record in before if record.offset >= log.log_start]


# --- a disk that fails ---------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_failed_fsync_takes_the_partition_offline_and_is_never_repeated(tmp_path, durability):
    disk = SimulatedDisk(tmp_path / "disk")
    disk.make_folder(f"{disk.root}/other")
    log = open_on(disk, settings(durability=durability, segment_bytes=700))
    append_values(log, b"durable")
    log.sync()
    fault = disk.fail("sync", "partition-0/*.log", times=None)
    staged = stage(log, [plain(b"lost")])
    log.write(staged)

    for attempt in (log.sync, log.sync, log.roll, lambda: append_values(log, b"x")):
        with pytest.raises(PartitionOffline):
            attempt()
    log.checkpoint()
    log.close()

    assert fault.hits == 1, "an fsync was tried again after it had failed"
    assert values_of(log)[:1] == [b"durable"]
    after = SimulatedDisk(tmp_path / "after")
    other = open_on(after, SMALL)  # another partition knows nothing of it
    append_values(other, b"fine")
    again = reopened(disk, log)
    assert values_of(again)[:1] == [b"durable"]
    append_values(again, b"goes on")
    assert values_of(again)[-1] == b"goes on"
    after.close()
    disk.close()


def test_what_a_failed_fsync_covered_is_not_read_and_not_acked_after_a_power_cut(disk, tmp_path):
    log = open_on(disk, SMALL)
    append_values(log, b"durable")
    disk.fail("sync", "*.log")
    with pytest.raises(PartitionOffline):
        append_values(log, b"lost")
    assert values_of(log) == [b"durable"]
    leave(log)

    for number, fate in enumerate([keep_nothing, *map(keep_some, range(20))]):
        cut = SimulatedDisk(disk.power_cut(tmp_path / str(number), fate))
        again = open_on(cut, SMALL)
        assert values_of(again) in ([b"durable"], [b"durable", b"lost"]), fate.description
        leave(again)
        cut.close()
        shutil.rmtree(Path(cut.root))


@pytest.mark.parametrize("partial", [0, 1, 50, 120])
def test_a_failed_write_takes_the_partition_offline_and_a_restart_cuts_what_it_left(
    disk, log, partial
):
    before = read_all(log)
    disk.fail("write", "*.log", error=errno.EIO, partial=partial)
    with pytest.raises(PartitionOffline):
        append_values(log, b"half written" * 9)
    assert read_all(log) == before
    with pytest.raises(PartitionOffline):
        append_values(log, b"refused")

    again = reopened(disk, log)
    assert read_all(again) == before
    append_values(again, b"taken")
    assert values_of(reopened(disk, again))[-1] == b"taken"


@pytest.mark.parametrize("operation", ["truncate", "sync"])
def test_a_partial_write_that_cannot_be_cut_back_takes_the_partition_offline(disk, log, operation):
    before = read_all(log)
    disk.fail("write", "*.log", error=errno.ENOSPC, partial=40)
    disk.fail(operation, "*.log", error=errno.EIO)
    with pytest.raises(PartitionOffline):
        append_values(log, b"half written" * 9)
    assert read_all(log) == before
    assert read_all(reopened(disk, log)) == before


def test_a_failed_read_is_told_and_the_next_one_is_served(disk, log):
    leave(log)
    log = open_on(disk, SMALL)
    disk.fail("open", "*/00000000.log", error=errno.EIO)
    with pytest.raises(StorageError):
        log.read(0, 100)
    assert len(read_all(log)) == 5
