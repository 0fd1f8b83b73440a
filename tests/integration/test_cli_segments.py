"""`seglog segments` as a person runs it, on the files of running and of stopped brokers."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seglog import SyncProducer, embedded_blocking

from tests.commands import (
    SEGLOG,
    TIMEOUT_S,
    Result,
    Tools,
    assert_refused,
    obey_permissions,
    offline_tools,
)


@pytest.fixture(scope="module")
def tools(tmp_path_factory) -> Iterator[Tools]:
    data = tmp_path_factory.mktemp("data")
    with embedded_blocking(data) as broker:
        yield Tools(broker.bootstrap, data)


@pytest.fixture(scope="module")
def offline() -> Tools:
    return offline_tools()


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The data folder of a broker that has stopped: topic t, 30 batches, several segments."""
    with embedded_blocking(tmp_path / "data") as broker:
        tools = Tools(broker.bootstrap, broker.data)
        tools.topic("t", segment_bytes=1500)
        with SyncProducer(broker.bootstrap) as producer:
            for number in range(30):
                producer.send_and_wait("t", b"value %d" % number)
    return tmp_path / "data"


def logs(data: Path) -> list[Path]:
    return sorted((data / "topic-t" / "partition-0").glob("*.log"))


def test_a_running_brokers_segments_are_listed_dumped_and_checked(tools):
    tools.topic("live", b"a", b"b", segment_bytes=1 << 20)
    folder = tools.data / "topic-live"

    listed = tools("segments", "live").out
    assert re.fullmatch(r"live/0\t00000000\.log\t0\t2\t\d+\tno\n", listed)
    assert tools("segments", folder).out == listed  # the files say what the broker says
    fields = tools("segments", folder / "partition-0", "--dump").out.split("\t")
    assert fields[:6] == ["live/0", "00000000.log", "0", "0", "2", "2"]
    assert tools("segments", folder, "--verify").code == 0
    assert_refused(tools("segments", folder, "--repair"), 5, "in use", "Stop it first")


def test_segments_of_a_stopped_broker_are_listed_with_their_ranges(stopped, offline):
    rows = json.loads(offline("segments", stopped, "--output", "json").out)

    assert len(rows) > 1
    assert [row["start_offset"] for row in rows[1:]] == [row["end_offset"] for row in rows[:-1]]
    assert (rows[0]["start_offset"], rows[-1]["end_offset"]) == (0, 30)
    assert [row["is_sealed"] for row in rows] == [True] * (len(rows) - 1) + [False]
    dumped = offline("segments", stopped, "--dump", "--output", "json").out.splitlines()
    assert [json.loads(line)["base_offset"] for line in dumped] == list(range(30))


def test_a_flipped_bit_is_found_and_its_place_told(stopped, offline):
    path = logs(stopped)[0]
    data = bytearray(path.read_bytes())
    data[90] ^= 1
    path.write_bytes(data)

    result = offline("segments", stopped / "topic-t", "--verify")

    assert result.code == 6
    assert result.out.endswith("\tdamaged\n")
    (line,) = result.err.splitlines()
    assert line.startswith(f"{path}, byte 0, offset 0: ")


def test_a_torn_tail_is_no_damage_and_repair_cuts_it(stopped, offline):
    path = logs(stopped)[-1]
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"torn")
    checked = offline("segments", stopped, "--verify")
    assert (checked.code, checked.err) == (
        0, f"{path}, byte {size}, offset 30: a torn tail of 4 bytes, cut when a broker starts\n"
    )  # fmt: skip

    result = offline("segments", stopped, "--repair")

    assert result.code == 0
    assert "cutting 4 bytes behind offset 30" in result.out
    assert path.stat().st_size == size
    assert "nothing had to be done" in offline("segments", stopped, "--repair").err


def test_lost_and_damaged_indexes_are_rebuilt_as_they_were(stopped, offline):
    indexes = sorted((stopped / "topic-t" / "partition-0").glob("*.index"))
    before = [path.read_bytes() for path in indexes]
    indexes[0].unlink()
    indexes[1].write_bytes(b"x" * 70)
    checked = offline("segments", stopped, "--verify")
    assert (checked.code, checked.err.count("\n")) == (6, 1)
    assert str(indexes[1]) in checked.err

    result = offline("segments", stopped / "topic-t" / "partition-0", "--repair")

    assert result.out.count("rebuilt the index of") == 2
    assert [path.read_bytes() for path in indexes] == before
    assert offline("segments", stopped, "--verify").code == 0


def test_a_topic_is_found_in_its_brokers_data_folder(stopped, offline):
    by_path = offline("segments", stopped / "topic-t")
    assert by_path.out.startswith("t/0\t00000000.log\t0\t")
    assert offline("segments", "t", "--data", stopped) == by_path
    assert offline("segments", "t/0", "--data", stopped) == by_path
    offline.environment["SEGLOG_DATA"] = str(stopped)
    try:
        assert offline("segments", "t", "--verify").code == 0
    finally:
        del offline.environment["SEGLOG_DATA"]
    assert_refused(offline("segments", "no", "--data", stopped), 1, "topic-no", "data folder")


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
def test_files_that_may_not_be_read_are_told(stopped, offline):
    (stopped / "topic-t").chmod(0)
    done = subprocess.run(
        [*SEGLOG, "segments", stopped / "topic-t", "--verify"],
        env=offline.environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        preexec_fn=obey_permissions,
    )  # fmt: skip
    (stopped / "topic-t").chmod(0o755)

    refused = Result(done.returncode, done.stdout, done.stderr)
    assert_refused(refused, 1, "topic-t: Permission denied", "Let this user read")


def test_a_folder_that_holds_no_topics_is_told(offline, tmp_path):
    assert_refused(offline("segments", tmp_path), 1, "holds no topics", "seglog serve --data")
    assert_refused(offline("segments", tmp_path / "no"), 1, "not a folder")
    assert list(tmp_path.iterdir()) == []
