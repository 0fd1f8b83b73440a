"""The data folder: names that stay inside it, the lock, topics that come and go whole."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.protocol.errors import (
    BadConfig,
    BadTopicName,
    DamagedLog,
    FolderLocked,
    SeglogError,
    StorageError,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from seglog.server.storage.filesystem import FileSystem
from seglog.server.storage.folder import DataFolder
from seglog.server.storage.names import (
    check_topic_name,
    file_name,
    parse_file_name,
    parse_range_name,
    partition_folder,
    partition_number,
    range_name,
    topic_folder,
)

from tests.storage import append, values

ROOT = Path(__file__).resolve().parents[2]

BAD_NAMES = [
    "", ".", "..", "../x", "a/b", "/", "/etc", "a/../../b", "\\", "a\\b", "\0", "a\0b", "a\n", "\n",
    " ", "a b", ".hidden", "-dash", "ä", "ａ", "日本", "\ud800", "😀", "a:b", "a*", "~", "%2e%2e",
    "x" * 201, "x" * 100_000, "a\u202eb", "a\u0000",
]  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def open_folder(path: Path) -> DataFolder:
    return DataFolder(FileSystem(), str(path))


def entries(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_a_name_that_is_not_plain_is_refused_and_touches_nothing(data, name):
    folder = open_folder(data)
    before = entries(data), entries(data.parent)
    for action in (
        lambda: folder.create_topic(name),
        lambda: topic_folder(str(data), name),
        lambda: partition_folder(str(data), name, 0),
    ):
        with pytest.raises(BadTopicName) as raised:
            action()
        assert len(str(raised.value)) < 400, "a long name is not repeated whole"
    for lookup in (folder.alter_topic, folder.delete_topic, folder.topic):
        with pytest.raises(SeglogError):
            lookup(name)
    with pytest.raises(SeglogError):
        folder.open_log(name, 0)
    assert (entries(data), entries(data.parent)) == before
    folder.close()


@given(st.text(max_size=30))
def test_whatever_name_is_taken_stays_one_level_below_the_data_folder(name):
    try:
        path = topic_folder("/data", name)
    except BadTopicName:
        return
    assert os.path.normpath(path) == path
    assert Path(path).parent == Path("/data")
    assert Path(path).name == "topic-" + name
    assert path.isascii()


@pytest.mark.parametrize(
    "name", ["a", "A", "0", "_", "__groups", "orders.v2-eu_1", "a..b", "x" * 200]
)
def test_plain_names_are_taken_as_they_are(name):
    assert check_topic_name(name) == name


@pytest.mark.parametrize("partition", [-1, 10_000, 1 << 70])
def test_a_partition_that_cannot_be_is_refused(partition):
    with pytest.raises(UnknownPartition):
        partition_folder("/data", "orders", partition)


@given(
    st.integers(0, (1 << 64) - 1), st.sampled_from([".log", ".index", ".timeindex", ".producers"])
)
def test_file_names_are_read_back_as_numbers(offset, suffix):
    name = file_name(offset, suffix)
    assert len(name) >= 8 + len(suffix)
    assert parse_file_name(name) == (offset, suffix)


@given(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1))
def test_range_names_are_read_back(start, end):
    assert parse_range_name(range_name(start, end, ".swap")) == (start, end, ".swap")


@pytest.mark.parametrize(
    "name",
    ["0.log", "00000000.log.tmp", "00000000", "0000000a.log", "-0000001.log", "00000000.txt",
     "٠٠٠٠٠٠٠٠.log", "log-state", "00000000-00000001.log", "x00000000.log", "00000000.log\n"],
)  # fmt: skip
def test_other_files_are_not_taken_for_segments(name):
    assert parse_file_name(name) is None


def test_partition_folders_are_known_by_their_number():
    assert partition_number("partition-12") == 12
    for other in ("partition-", "partition--1", "partition-1x", "part-1", "partition-1\n"):
        assert partition_number(other) is None


# --- the lock ------------------------------------------------------------------------------------

HOLD = """
import sys
from seglog.server.storage.filesystem import FileSystem
from seglog.server.storage.folder import DataFolder
folder = DataFolder(FileSystem(), sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_kept_out_with_a_message_that_says_what_to_do(data):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(data)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    ) as other:  # fmt: skip
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"

        with pytest.raises(FolderLocked) as raised:
            open_folder(data)

        assert f"the data folder {data} is in use by process {other.pid}" in str(raised.value)
        assert "Stop the other broker" in str(raised.value)
        other.kill()

    open_folder(data).close()  # a killed process holds nothing


def test_a_folder_that_cannot_be_made_is_said_in_our_words(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="opening the data folder"):
        open_folder(tmp_path / "file" / "data")


def test_closing_twice_is_fine_and_the_folder_can_be_opened_again(data):
    folder = open_folder(data / "several" / "levels")
    folder.close()
    folder.close()
    open_folder(data / "several" / "levels").close()


# --- topics --------------------------------------------------------------------------------------


def test_a_topic_is_there_after_a_restart_with_its_settings_and_records(data):
    folder = open_folder(data)
    made = folder.create_topic("orders", 3, {"segment.bytes": "5000", "durability": "os"})
    log = folder.open_log("orders", 2)
    append(log, b"one")
    log.close()
    folder.close()

    folder = open_folder(data)

    assert folder.topics == {"orders": made}
    assert folder.topic("orders").config.segment_bytes == 5000
    assert entries(data / "topic-orders") == [
        "partition-0", "partition-1", "partition-2", "topic.json"
    ]  # fmt: skip
    assert values(folder.open_log("orders", 2)) == [b"one"]
    folder.close()


def test_a_description_is_plain_json_that_a_human_can_read(data):
    folder = open_folder(data)
    made = folder.create_topic("orders", 2)
    folder.close()

    described = json.loads((data / "topic-orders" / "topic.json").read_text())

    assert described["format"] == 1
    assert described["name"] == "orders"
    assert described["id"] == made.id
    assert described["partitions"] == 2
    assert described["config"]["segment.bytes"] == 64 * 1024 * 1024


@pytest.mark.parametrize("partitions", [0, -1, 10_001])
def test_a_wrong_number_of_partitions_makes_no_topic(data, partitions):
    folder = open_folder(data)
    with pytest.raises(BadConfig, match="partitions: "):
        folder.create_topic("orders", partitions)
    assert entries(data) == ["seglog.lock"]
    folder.close()


def test_a_topic_is_not_made_twice_nor_with_wrong_settings(data):
    folder = open_folder(data)
    folder.create_topic("orders")
    with pytest.raises(TopicExists):
        folder.create_topic("orders")
    with pytest.raises(BadConfig):
        folder.create_topic("other", settings={"colour": "red"})
    assert entries(data) == ["seglog.lock", "topic-orders"]
    folder.close()


def test_settings_change_and_partitions_are_added_but_never_lost(data):
    folder = open_folder(data)
    made = folder.create_topic("orders", 2, {"segment.bytes": 5000})

    folder.alter_topic("orders", {"retention.ms": 1000})
    folder.alter_topic("orders", partitions=4)
    with pytest.raises(BadConfig, match="cannot have fewer"):
        folder.alter_topic("orders", partitions=3)
    with pytest.raises(BadConfig):
        folder.alter_topic("orders", {"segment.bytes": 1})
    folder.close()

    folder = open_folder(data)
    topic = folder.topic("orders")
    assert (topic.id, topic.partitions) == (made.id, 4)
    assert (topic.config.segment_bytes, topic.config.retention_ms) == (5000, 1000)
    assert folder.open_log("orders", 3).log_end == 0
    with pytest.raises(UnknownPartition):
        folder.open_log("orders", 4)
    folder.close()


def test_a_deleted_topic_is_gone_at_once_and_its_name_is_free(data):
    folder = open_folder(data)
    first = folder.create_topic("orders")
    log = folder.open_log("orders", 0)
    append(log, b"old")
    log.close()

    doomed = folder.delete_topic("orders")
    second = folder.create_topic("orders")

    assert first.id != second.id
    with pytest.raises(UnknownTopic):
        folder.topic("other")
    assert values(folder.open_log("orders", 0)) == []
    folder.discard(doomed)
    folder.discard(doomed)  # a failure is only a line in the log
    assert entries(data) == ["seglog.lock", "topic-orders"]
    folder.close()


def test_what_a_crash_left_half_made_or_half_deleted_is_swept_up(data):
    folder = open_folder(data)
    folder.create_topic("kept")
    folder.create_topic("deleted")
    folder.delete_topic("deleted")  # and never discarded
    (data / "creating-half" / "partition-0").mkdir(parents=True)
    folder.close()

    folder = open_folder(data)

    assert list(folder.topics) == ["kept"]
    assert entries(data) == ["seglog.lock", "topic-kept"]
    folder.close()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"\xff\xfe", b'{"format": 1}',
        b'{"format": 2, "name": "bad", "id": "x", "partitions": 1, "config": {}}',
        b'{"format": 1, "name": "good", "id": "x", "partitions": 1, "config": {}}',
        b'{"format": 1, "name": "bad", "id": "x", "partitions": 1, "config": {"new": 1}}',
        b'{"format": 1, "name": "bad", "id": "x", "partitions": 0, "config": {}}',
        None,
    ],
)  # fmt: skip
def test_a_damaged_description_stops_its_own_topic_and_no_other(data, content, caplog):
    folder = open_folder(data)
    for name in ("bad", "good"):
        folder.create_topic(name)
    folder.close()
    path = data / "topic-bad" / "topic.json"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)

    folder = open_folder(data)

    assert list(folder.topics) == ["good"]
    assert list(folder.damaged) == ["bad"]
    assert "topic bad cannot be served" in caplog.text
    append(folder.open_log("good", 0), b"fine")
    with pytest.raises(DamagedLog, match="topic bad cannot be served"):
        folder.open_log("bad", 0)
    with pytest.raises(TopicExists):
        folder.create_topic("bad")
    assert (data / "topic-bad" / "partition-0").is_dir(), "its data is left for a repair"
    folder.close()


def test_a_missing_partition_is_said_and_the_others_are_served(data):
    folder = open_folder(data)
    folder.create_topic("orders", 2)
    (data / "topic-orders" / "partition-0").rmdir()

    with pytest.raises(DamagedLog, match="is missing"):
        folder.open_log("orders", 0)
    append(folder.open_log("orders", 1), b"fine")
    folder.close()


def test_files_of_others_are_left_alone(data):
    folder = open_folder(data)
    folder.create_topic("orders")
    folder.close()
    for name in ("notes.txt", "topic-orders/notes.txt", "topic-orders/partition-0/notes.txt"):
        (data / name).write_text("mine")
    (data / "topic-..").mkdir()

    folder = open_folder(data)
    append(folder.open_log("orders", 0), b"fine")

    assert list(folder.damaged) == [".."]
    for name in ("notes.txt", "topic-orders/notes.txt", "topic-orders/partition-0/notes.txt"):
        assert (data / name).read_text() == "mine"
    folder.close()
