"""Retention: whole sealed segments go, oldest first; the active one stays."""

from pathlib import Path
from typing import Any

import pytest

from seglog.protocol.errors import OffsetOutOfRange
from seglog.server.storage.filesystem import FileSystem
from seglog.server.storage.log import Log
from seglog.server.storage.retention import apply_retention, retention_start

from tests.storage import HOUR_US, NOON_US, append, open_at, read_all, values

HOUR_MS = 3_600_000


def hourly(folder: Path, hours: int = 6, **settings: Any) -> Log:
    """One record an hour from noon on, each in a segment of its own."""
    log = open_at(folder, segment_bytes=200, **settings)
    for hour in range(hours):
        append(log, b"%d" % hour * 100, at_us=NOON_US + hour * HOUR_US)
    assert len(log.segments) == hours
    return log


def starts(log: Log) -> list[int]:
    return [info.start_offset for info in log.describe()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_by_age_a_segment_goes_once_its_last_batch_is_too_old(folder):
    log = hourly(folder, retention_ms=3 * HOUR_MS)
    now = NOON_US + 5 * HOUR_US

    assert apply_retention(log, NOON_US + 3 * HOUR_US) == []
    gone = apply_retention(log, now)

    assert [info.start_offset for info in gone] == [0, 1]
    assert starts(log) == [2, 3, 4, 5]
    assert log.log_start == 2
    assert apply_retention(log, now) == []


def test_a_segment_is_as_old_as_its_last_batch_not_its_first_nor_its_records(folder):
    log = open_at(folder, retention_ms=HOUR_MS)
    append(log, b"old", at_us=NOON_US, timestamps=[1])
    append(log, b"young", at_us=NOON_US + HOUR_US, timestamps=[2])
    log.roll()
    append(log, b"active", at_us=NOON_US + HOUR_US)

    assert apply_retention(log, NOON_US + 2 * HOUR_US) == []
    assert len(apply_retention(log, NOON_US + 2 * HOUR_US + 1)) == 1


def test_by_size_segments_go_while_what_stays_is_no_less_than_the_bound(folder):
    log = hourly(folder)
    each = log.describe()[0].size_bytes
    log.close()

    for kept, bound in ((6, 6 * each), (5, 5 * each), (4, 4 * each), (4, 3 * each + 1), (1, 0)):
        log = open_at(folder, segment_bytes=200, retention_bytes=bound)
        apply_retention(log, NOON_US)
        assert len(log.segments) == kept, bound
        assert log.size_bytes >= bound
        log.close()


def test_without_limits_nothing_goes(folder):
    log = hourly(folder, retention_ms=-1, retention_bytes=-1)
    assert retention_start(log, NOON_US + 100_000 * HOUR_US) == 0


def test_the_active_segment_stays_whatever_its_age_and_size(folder):
    log = hourly(folder, retention_ms=0, retention_bytes=0)

    apply_retention(log, NOON_US + 1000 * HOUR_US)

    assert starts(log) == [5]
    assert values(log) == [b"5" * 100]


def test_a_compacted_topic_deletes_by_age_only_where_it_says_so(folder, tmp_path):
    late = NOON_US + 1000 * HOUR_US
    log = hourly(folder, retention_ms=0, cleanup_policy="compact")
    assert apply_retention(log, late) == []
    both = hourly(tmp_path / "both", retention_ms=0, cleanup_policy="compact,delete")
    assert len(apply_retention(both, late)) == 5


def test_readers_get_an_error_for_what_is_gone_and_keep_what_they_hold(folder):
    log = hourly(folder, retention_bytes=0)
    held = log.read(1, 1)
    before = bytes(held)

    apply_retention(log, NOON_US)

    with pytest.raises(OffsetOutOfRange) as raised:
        log.read(1, 1)
    assert (raised.value.log_start, raised.value.durable_end) == (5, 6)
    assert bytes(held) == before


def test_files_of_deleted_segments_are_gone_with_their_indexes(folder):
    log = hourly(folder, retention_bytes=0)
    apply_retention(log, NOON_US)
    left = sorted(path.name for path in folder.iterdir() if path.suffix != ".producers")
    assert left == ["00000005.log", "log-state"]


class NoRemoving(FileSystem):
    """Files cannot be removed, as in a crash just before."""

    def remove(self, path: str) -> None:
        raise OSError("not now")


def test_the_log_start_is_raised_before_files_go_and_the_next_start_finishes_it(folder, caplog):
    hourly(folder).close()
    log = open_at(folder, NoRemoving(), segment_bytes=200, retention_bytes=0)
    apply_retention(log, NOON_US)

    assert log.log_start == 5
    assert "could not remove a deleted segment" in caplog.text
    assert (folder / "00000000.log").exists()
    log.active.file.close()

    log = open_at(folder, segment_bytes=200)
    assert not (folder / "00000000.log").exists()
    assert [record.offset for record in read_all(log)] == [5]
    assert starts(log) == [5]
