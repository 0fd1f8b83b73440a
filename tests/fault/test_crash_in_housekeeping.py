"""The power goes while nobody appends: in a compaction, a recovery, a snapshot, a change of topics.

Each action is cut before every one of its file operations, with every fate for what was not synced;
a failure names the step and the fate's seed to replay.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from seglog.protocol.errors import PartitionOffline
from seglog.server.storage import snapshots
from seglog.server.storage.compaction import clean, commit
from seglog.server.storage.folder import DataFolder

from tests.crashes import Running, cut_everywhere, open_twice, running
from tests.logs import (
    NOON_US,
    SMALL,
    Stored,
    append_values,
    folder_of,
    leave,
    open_on,
    plain,
    read_all,
    sequenced,
    settings,
    values_of,
)
from tests.simulated_disk import Crash, SimulatedDisk, run_with_crash_at_every_step

DAY_US = 24 * 3600 * 1_000_000
COMPACTED = settings(
    segment_bytes=400,
    index_interval_bytes=100,
    cleanup_policy="compact",
    delete_retention_ms=1000,
)


def keyed_records(state: Running) -> None:
    """Sealed segments: keys written again, a deleted one, neighbours small enough to merge."""
    state.put((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1" * 200), (b"c", None))
    state.log.roll()
    state.put((b"a", b"3"), (b"b", None))
    state.log.roll()
    state.append(b"no key")
    state.put((b"d", b"1"), (b"a", b"4"), (b"d", b"2" * 100), (b"e", b"1"))
    state.log.roll()
    state.append(b"active", key=b"a")


def removed_by_compaction(state: Running, *, tombstones: bool) -> set[int]:
    latest: dict[bytes, Stored] = {}
    sealed = [r for r in state.acked if r.offset < state.log.active.base_offset]
    latest.update((record.key, record) for record in sealed if record.key is not None)
    return {
        record.offset
        for record in sealed
        if record.key is not None
        and (record != latest[record.key] or (tombstones and record.value is None))
    }


def compact_at(state: Running, now_us: int, *, tombstones: bool) -> None:
    state.removable |= removed_by_compaction(state, tombstones=tombstones)
    cleaned = clean(state.log, now_us)
    assert cleaned is not None
    assert len(cleaned.replacements) > 1 or tombstones
    commit(state.log, cleaned, now_us)


def test_a_power_cut_during_compaction_leaves_each_record_once_and_the_last_of_each_key():
    cut_everywhere(
        lambda state: compact_at(state, NOON_US, tombstones=False), COMPACTED, keyed_records
    )


def test_a_power_cut_while_tombstones_are_removed_brings_no_deleted_record_back():
    def prepare(state: Running) -> None:
        keyed_records(state)
        compact_at(state, NOON_US, tombstones=False)
        gone = set(state.removable)
        state.acked = [record for record in state.acked if record.offset not in gone]
        state.asked = [record for record in state.asked if record.offset not in gone]

    cut_everywhere(
        lambda state: compact_at(state, NOON_US + DAY_US, tombstones=True), COMPACTED, prepare
    )


# --- recovery, snapshots, topics -----------------------------------------------------------------


@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize(
    ("operation", "path", "after"),
    [
        ("sync_folder", "*", 0),  # the swap is decided, perhaps
        ("remove", "*.log", 1),  # some of the old segments are gone
        ("rename", "*.swap", 1),  # all of them, and the new one has not its name
        ("rename", "*.swap", 3),  # the same for the second group
    ],
)
def test_a_power_cut_during_recovery_is_recovered_from(durability, operation, path, after):
    """A torn tail and half a swap are left; the power goes again while that is mended."""
    config = settings(
        segment_bytes=400, index_interval_bytes=100, cleanup_policy="compact", durability=durability
    )

    def build(disk: SimulatedDisk) -> Running:
        state = Running(open_on(disk, config))
        keyed_records(state)
        state.log.sync()
        state.removable = removed_by_compaction(state, tombstones=False)
        cleaned = clean(state.log, NOON_US)
        assert cleaned is not None
        disk.fail(operation, path, after=after)
        with pytest.raises(PartitionOffline):
            commit(state.log, cleaned, NOON_US)
        disk.heal()
        torn = plain(b"torn" * 30)
        state.log.active.file.write([torn[:150]], state.log.active.size)
        leave(state.log)
        return state

    def check(root: str, crash: Crash[Running]) -> None:
        log = open_twice(Path(root) / "partition-0", config)
        found = read_all(log)
        kept = [r for r in crash.state.acked if r.offset not in crash.state.removable]
        assert [record for record in found if record in kept] == kept
        assert found == [record for record in crash.state.acked if record in found]
        leave(log)

    def recover(disk: SimulatedDisk, state: Running) -> None:
        leave(open_on(disk, config))

    assert run_with_crash_at_every_step(build, recover, check) > 10


def test_a_power_cut_while_a_snapshot_is_saved_leaves_the_producers_as_they_were():
    def prepare(state: Running) -> None:
        for n in range(3):
            state.log.append(sequenced(n, b"%d" % n), NOON_US)
            state.log.checkpoint()
        state.log.append(sequenced(3, b"3"), NOON_US)

    def save(disk: SimulatedDisk, state: Running) -> None:
        snapshots.save(disk, folder_of(disk), state.log.log_end, state.log.producers)

    def check(root: str, crash: Crash[Running]) -> None:
        log = open_twice(Path(root) / "partition-0", SMALL)
        assert log.producers.dump() == crash.state.log.producers.dump()
        assert log.append(sequenced(3, b"3"), NOON_US).is_duplicate
        leave(log)

    assert run_with_crash_at_every_step(running(SMALL, prepare), save, check) > 10


def test_a_power_cut_while_topics_change_leaves_each_as_it_was_or_as_it_is():
    def build(disk: SimulatedDisk) -> DataFolder:
        data = DataFolder(disk, f"{disk.root}/data")
        data.create_topic("kept", 2, {"segment.bytes": 500})
        data.create_topic("doomed", 1)
        for name in ("kept", "doomed"):
            log = data.open_log(name, 0)
            append_values(log, b"kept")
            log.close()
        return data

    def change(disk: SimulatedDisk, data: DataFolder) -> None:
        data.create_topic("new", 3, {"segment.bytes": 600})
        data.alter_topic("kept", {"segment.bytes": 700}, partitions=3)
        data.discard(data.delete_topic("doomed"))
        data.create_topic("doomed", 2)

    def check(root: str, crash: Crash[DataFolder]) -> None:
        for _ in range(2):
            data = DataFolder(SimulatedDisk(root), f"{root}/data")
            assert not data.damaged
            topics = {t.name: (t.partitions, t.config.segment_bytes) for t in data.topics.values()}
            assert topics.pop("kept") in {(2, 500), (3, 700)}
            assert topics.pop("new", (3, 600)) == (3, 600)
            size = 64 << 20
            doomed = topics.pop("doomed", None)
            assert doomed in {(1, size), (2, size), None}
            assert not topics
            for name in data.topics:
                for number in range(data.topic(name).partitions):
                    log = data.open_log(name, number)
                    is_filled = number == 0 and (
                        name == "kept" or (name, doomed) == ("doomed", (1, size))
                    )
                    assert values_of(log) == ([b"kept"] if is_filled else [])
                    log.close()
            data.close()
        if crash.completed:
            assert set(data.topics) == {"kept", "new", "doomed"}
            assert data.topic("kept").partitions == 3

    assert run_with_crash_at_every_step(build, change, check) > 50
