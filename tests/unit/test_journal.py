"""The journal's format, its replay, and when its files may be used again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from seglog.server.storage.filesystem import FileSystem
from seglog.server.storage.journal import (
    Entry,
    Journal,
    Kept,
    ReplayReport,
    in_a_thread,
    remove_journal,
    replay_journal,
)
from seglog.server.storage.log import Log
from seglog.server.storage.staged import Staged

from tests.logs import NOON_US, open_in, plain, settings, stage, values_of
from tests.simulated_disk import SimulatedDisk

SIZE = 4096
CONFIG = settings(segment_bytes=8192, retention_ms=-1)


@pytest.fixture
def disk(tmp_path):
    disk = SimulatedDisk(tmp_path / "disk")
    yield disk
    disk.close()


class Logs:
    """Some logs, `a/0` and so on, that are written through a journal."""

    def __init__(self, disk: SimulatedDisk, names: str = "ab", *, size: int = SIZE) -> None:
        self.disk = disk
        self.beside: list[Callable[[], None]] = []
        self.journal = Journal(disk, disk.root, size, self._later)
        self.logs = {name: self._open(name) for name in names}

    def _later(self, work: Callable[[], None]) -> Callable[[], None]:
        self.beside.append(work)
        return lambda: None

    def _open(self, name: str) -> Log:
        folder = f"{self.disk.root}/{name}"
        if not self.disk.exists(folder):
            self.disk.make_folder(folder)
            self.disk.sync_folder(self.disk.root)
        return open_in(folder, CONFIG, self.disk)

    def stage(self, **values: bytes) -> dict[str, Staged]:
        return {name: stage(self.logs[name], [plain(v)]) for name, v in values.items()}

    def journal_only(self, **values: bytes) -> Kept:
        """Bring a group into the journal, as if the power went before its logs were written."""
        return self.journal.append([self.entry(n, s) for n, s in self.stage(**values).items()])

    def entry(self, name: str, staged: Staged) -> Entry:
        segment = staged.segment.base_offset
        place = (name, 0, segment, staged.position, staged.length)
        return Entry(*place, staged.buffers, self.logs[name])

    def append(self, **values: bytes) -> Kept:
        staged = self.stage(**values)
        kept = self.journal.append([self.entry(name, part) for name, part in staged.items()])
        for name, part in staged.items():
            self.logs[name].write(part, may_be_replayed=kept is not Kept.NO)
            self.logs[name].publish()
        return kept

    def replay(self, gone: str = "") -> ReplayReport:
        """As the next start does; `gone` are topics that are not there any more."""

        def home(topic_id: str, partition: int) -> str | None:
            assert partition == 0
            return None if topic_id in gone else f"{self.disk.root}/{topic_id}"

        return replay_journal(self.disk, self.disk.root, home)

    def values(self, name: str) -> list[bytes | None]:
        return values_of(open_in(f"{self.disk.root}/{name}", CONFIG, self.disk))

    def journal_path(self, number: int = 0) -> Path:
        return Path(self.disk.root) / f"journal-{number}"


@pytest.fixture
def logs(disk):
    return Logs(disk)


# --- format --------------------------------------------------------------------------------------


def test_what_is_appended_is_replayed_to_its_place_and_the_files_are_removed(logs):
    assert logs.journal_only(a=b"one", b=b"two") is Kept.YES

    report = logs.replay()

    assert (report.groups, report.entries) == (1, 2)
    assert (logs.values("a"), logs.values("b")) == ([b"one"], [b"two"])
    assert not logs.journal_path(0).exists()
    assert not logs.journal_path(1).exists()


def test_groups_are_replayed_in_order_also_from_two_files(disk):
    logs = Logs(disk, size=700)
    expected = [b"%d" % round_ * 30 for round_ in range(5)]
    for value in expected:
        assert logs.append(a=value, b=value) is Kept.YES
        while logs.beside:
            logs.beside.pop()()
    assert {logs.journal_path(n).stat().st_size for n in range(2)} == {700}

    report = logs.replay()

    assert 2 <= report.groups < 5
    assert logs.values("a") == logs.values("b") == expected


@pytest.mark.parametrize("field", ["magic", "checksum", "generation", "number", "lengths", "bytes"])
def test_a_group_that_is_not_whole_ends_the_replay(logs, field):
    logs.append(a=b"one", b=b"two")
    end = logs.journal._files[0].end
    logs.journal_only(a=b"torn", b=b"torn")
    logs.journal._files[0].end = end
    at = {"magic": 0, "checksum": 4, "generation": 8, "number": 16, "lengths": 24, "bytes": 150}
    flip(logs, end + at[field])

    report = logs.replay()

    assert report.groups == 1
    assert (logs.values("a"), logs.values("b")) == ([b"one"], [b"two"])


def flip(logs: Logs, position: int) -> None:
    with logs.journal_path().open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


def test_a_length_that_points_past_the_end_is_no_group(logs):
    logs.append(a=b"one", b=b"two")
    with logs.journal_path().open("r+b") as file:
        file.write(b"SGJR" + bytes(20) + b"\xff" * 8)

    assert logs.replay().groups == 0


def test_what_an_older_generation_left_behind_is_not_replayed(disk):
    logs = Logs(disk, size=1000)
    # Three groups fit a file: the last one is alone in a new generation, and just as long as the
    # first, whose two positions take two bytes less each.
    values = [b"0--", b"1", b"2", b"3", b"4", b"5", b"6"]
    for value in values:
        assert logs.append(a=value, b=value) is Kept.YES
        while logs.beside:
            logs.beside.pop()()
    assert [made.generation for made in logs.journal._files] == [3, 2]
    assert logs.journal_path(0).read_bytes().count(b"SGJR") == 3  # two whole ones are left behind

    report = logs.replay()

    assert report.groups == 1 + 3
    assert logs.values("a") == values


# --- replay --------------------------------------------------------------------------------------


def test_replaying_again_changes_nothing(logs):
    logs.append(a=b"one", b=b"two")
    logs.append(a=b"three", b=b"four")
    copies = {number: logs.journal_path(number).read_bytes() for number in range(2)}
    logs.replay()
    before = {name: Path(logs.disk.root, name, "00000000.log").read_bytes() for name in "ab"}
    for number, data in copies.items():  # as if the power had gone before they were removed
        file = logs.disk.create(str(logs.journal_path(number)))
        file.write([data], 0)
        file.close()

    assert logs.replay().groups == 2

    for name, data in before.items():
        assert Path(logs.disk.root, name, "00000000.log").read_bytes() == data
    assert logs.values("a") == [b"one", b"three"]


def test_a_topic_that_is_gone_is_passed_over(logs):
    logs.journal_only(a=b"one", b=b"two")

    assert logs.replay(gone="a").entries == 1

    assert (logs.values("a"), logs.values("b")) == ([], [b"two"])


def test_a_partition_whose_folder_is_gone_is_passed_over(logs):
    logs.journal_only(a=b"one", b=b"two")
    logs.disk.rename(f"{logs.disk.root}/a", f"{logs.disk.root}/elsewhere")

    assert logs.replay().entries == 1

    assert logs.values("b") == [b"two"]


def test_a_segment_that_was_rolled_is_passed_over(logs):
    logs.append(a=b"one", b=b"two")
    logs.logs["a"].roll()
    path = Path(logs.disk.root, "a", "00000000.log")
    sealed = path.read_bytes()

    assert logs.replay().entries == 1

    assert path.read_bytes() == sealed
    assert logs.values("a") == [b"one"]


def test_a_segment_that_is_gone_is_not_made_again(logs):
    logs.append(a=b"one", b=b"two")
    log = logs.logs["a"]
    log.roll()
    log.raise_log_start(1)

    logs.replay()

    assert not Path(logs.disk.root, "a", "00000000.log").exists()
    assert logs.values("a") == []


def test_what_lies_below_the_recovery_point_is_not_written_again(logs):
    logs.append(a=b"one", b=b"two")
    logs.logs["a"].checkpoint()
    logs.append(a=b"three", b=b"four")
    writes = len(logs.disk.trace)

    report = logs.replay()

    assert (report.groups, report.entries) == (2, 3)
    written = [step for step in logs.disk.trace[writes:] if step.startswith("write a/")]
    assert len(written) == 1
    assert logs.values("a") == [b"one", b"three"]


def test_a_folder_without_a_journal_has_nothing_to_replay(disk):
    assert replay_journal(disk, disk.root, lambda *_: None) == ReplayReport(0, 0, 0)


# --- its files -----------------------------------------------------------------------------------


def test_a_group_larger_than_a_file_is_left_to_its_caller(logs):
    assert logs.journal_only(a=b"x" * SIZE, b=b"y") is Kept.NO
    assert not logs.journal_path().exists()


def test_while_the_logs_of_both_files_wait_to_be_synced_the_caller_syncs_its_own(disk):
    logs = Logs(disk, size=300)
    assert logs.append(a=b"1", b=b"1") is Kept.YES
    assert logs.append(a=b"2", b=b"2") is Kept.YES  # in the other file
    assert logs.append(a=b"3", b=b"3") is Kept.NO

    logs.beside.pop()()

    assert logs.append(a=b"4", b=b"4") is Kept.YES


def test_a_log_that_cannot_be_synced_keeps_its_file_from_being_used_again(disk):
    logs = Logs(disk, "abc", size=300)
    logs.append(a=b"1", b=b"1")
    disk.fail("sync", "a/*")
    assert logs.append(b=b"2", c=b"2") is Kept.YES
    logs.beside.pop()()  # a cannot be synced

    assert "syncing failed" in logs.logs["a"].offline_reason
    assert logs.append(b=b"3", c=b"3") is Kept.NO
    for log in logs.logs.values():
        log.close()
    logs.journal.close()

    assert logs.journal_path().exists()
    assert logs.replay().groups == 2
    assert logs.values("a") == [b"1"]


def test_a_log_that_went_offline_keeps_the_file_that_is_not_full_yet(logs):
    """Or a stop would remove the only place where the record is."""
    logs.append(a=b"1", b=b"1")
    logs.disk.fail("sync", "a/*")
    with pytest.raises(Exception, match="offline"):
        logs.logs["a"].sync()
    for log in logs.logs.values():
        log.close()

    logs.journal.close()

    assert logs.journal_path().exists()


def test_after_a_log_failed_a_sync_that_succeeds_frees_nothing(disk):
    """The system tells of a failed sync once; the next one says nothing of what was lost."""
    logs = Logs(disk, "abc", size=300)
    logs.append(a=b"1", b=b"1")
    disk.fail("sync", "a/*", times=1)
    with pytest.raises(Exception, match="offline"):
        logs.logs["a"].sync()

    logs.append(b=b"2", c=b"2")
    logs.beside.pop()()

    assert logs.append(b=b"3", c=b"3") is Kept.NO


def test_a_log_that_was_deleted_holds_up_nothing(disk):
    logs = Logs(disk, "abc", size=300)
    logs.append(a=b"1", b=b"1")
    logs.append(b=b"2", c=b"2")
    logs.logs["a"].abandon()
    logs.beside.pop()()
    assert logs.append(b=b"3", c=b"3") is Kept.YES
    for log in logs.logs.values():
        log.close()

    logs.journal.close()

    assert not logs.journal_path().exists()


def test_after_a_failure_it_is_not_used_until_the_next_start(logs):
    logs.append(a=b"1", b=b"1")
    logs.disk.fail("sync", "journal-*")

    assert logs.append(a=b"2", b=b"2") is Kept.PERHAPS
    assert logs.append(a=b"3", b=b"3") is Kept.NO


def test_on_a_full_disk_there_is_none_until_there_is_room(logs):
    logs.disk.fail("allocate", "journal-1", error=errno.ENOSPC)

    assert logs.append(a=b"1", b=b"1") is Kept.NO
    assert not logs.journal_path(0).exists()
    assert logs.append(a=b"2", b=b"2") is Kept.YES


def test_closing_removes_what_is_not_needed_any_more_and_may_be_done_twice(logs):
    logs.append(a=b"1", b=b"1")
    for log in logs.logs.values():
        log.close()

    logs.journal.close()
    logs.journal.close()

    assert not logs.journal_path().exists()
    assert logs.values("a") == [b"1"]


def test_logs_are_synced_beside_the_writer_in_a_thread(tmp_path):
    """On real files, with the real thread: each file is used many times over."""
    fs = FileSystem()
    journal = Journal(fs, str(tmp_path), 600, in_a_thread)
    opened = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        opened.append(open_in(tmp_path / name, CONFIG))
    kept = []
    for round_ in range(100):
        staged = [stage(log, [plain(b"%d" % round_)], NOON_US + round_) for log in opened]
        kept.append(
            journal.append(
                [
                    Entry(name, 0, part.segment.base_offset, part.position, part.length,
                          part.buffers, log)
                    for name, part, log in zip("ab", staged, opened, strict=True)
                ]
            )
        )  # fmt: skip
        for log, part in zip(opened, staged, strict=True):
            log.write(part, may_be_replayed=kept[-1] is not Kept.NO)
            if kept[-1] is not Kept.YES:
                log.sync()
            log.publish()
    assert kept.count(Kept.YES) > 2
    assert Kept.PERHAPS not in kept

    report = replay_journal(fs, str(tmp_path), lambda name, _: os.fspath(tmp_path / name))

    assert report.groups > 0
    journal.close()
    remove_journal(fs, str(tmp_path))
    for log in opened:
        assert values_of(log) == [b"%d" % round_ for round_ in range(100)]
        log.close()
