"""The node without its process: lines in, replies out, on a real folder and on a failing disk."""

import errno
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seglog.protocol.batch import encode_batch
from seglog.server.node.lines import MAX_LINE_BYTES, LineSplitter
from seglog.server.node.logs import (
    HASHED_PREFIX,
    MAX_SEGMENT_BYTES,
    MIN_SEGMENT_BYTES,
    NodeLogs,
    topic_name,
)
from seglog.server.node.messages import REQUESTS, decode_line
from seglog.server.node.node import Node
from seglog.server.node.refusals import Code, Refusal, refusal_of
from seglog.server.storage.config import make_config
from seglog.server.storage.filesystem import FileSystem
from seglog.server.storage.folder import DataFolder
from seglog.server.storage.names import check_topic_name

from tests.simulated_disk import Crash, SimulatedDisk, run_with_crash_at_every_step

ROOT = Path(__file__).resolve().parents[2]
NOON_US = 1_700_000_000_000_000

Json = dict[str, Any]


class TestNode:
    """A node and the words to ask it."""

    __test__ = False

    def __init__(self, folder: Path | str, fs: FileSystem | None = None, **options: Any) -> None:
        self.logs = NodeLogs(fs or FileSystem(), str(folder), clock_us=lambda: NOON_US, **options)
        self.node = Node(self.logs)

    def ask_all(self, *bodies: Json) -> list[Json]:
        """The replies' bodies to requests that come together."""
        lines = [
            json.dumps({"src": "c1", "dest": "n1", "body": {"msg_id": at, **body}}).encode()
            for at, body in enumerate(bodies)
        ]
        return [json.loads(line)["body"] for line in self.node.answer(lines).splitlines()]

    def ask(self, type_: str, **fields: Any) -> Json:
        (body,) = self.ask_all({"type": type_, **fields})
        return body

    def append(self, message: Any, topic: str = "orders", partition: int = 0) -> Json:
        return self.ask("partition_append", topic=topic, partition=partition, message=message)

    def read(self, offset: int, topic: str = "orders", partition: int = 0) -> Json:
        return self.ask("partition_read", topic=topic, partition=partition, offset=offset)

    def poll(self, **offsets: int) -> Json:
        msgs: Json = self.ask("poll", offsets=offsets)["msgs"]
        return msgs

    def close(self) -> None:
        self.logs.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def node(folder: Path) -> Iterator[TestNode]:
    node = TestNode(folder)
    yield node
    node.close()


def raw_line(type_: str, fields: str) -> bytes:
    return f'{{"src":"c","dest":"n","body":{{"type":"{type_}",{fields}}}}}'.encode()


def without(body: Json, *names: str) -> Json:
    return {name: value for name, value in body.items() if name not in names}


# --- the messages --------------------------------------------------------------------------------


def test_an_append_says_where_the_message_is(node):
    reply = node.append("order-1234")
    assert reply == {
        "type": "partition_append_ok",
        "in_reply_to": 0,
        "offset": 0,
        "segment": "00000000.log",
        "timestamp": 1_700_000_000,
        "msg_id": 0,
    }


def test_a_read_gives_the_message_and_where_to_go_on(node):
    node.append("a")
    node.append("b")
    reply = without(node.read(1), "in_reply_to", "msg_id")
    assert reply == {"type": "partition_read_ok", "message": "b", "offset": 1, "next_offset": 2}


def test_info_counts_what_is_there(node):
    node.ask("wal_segment_config", max_segment_bytes=300)
    for number in range(5):
        node.append(number)
    info = node.ask("partition_info", topic="orders", partition=0)
    segments = node.ask("wal_segment_info", topic="orders")["segments"]
    assert (info["start_offset"], info["end_offset"]) == (0, 5)
    assert info["segments"] == len(segments) > 1
    assert info["total_bytes"] == sum(segment["size_bytes"] for segment in segments) > 0


def test_segments_end_at_their_last_message_and_only_the_last_is_not_sealed(node):
    node.ask("wal_segment_config", max_segment_bytes=300)
    replies = [node.append(number) for number in range(7)]
    info = node.ask("wal_segment_info", topic="orders", partition=0)
    segments = info["segments"]

    assert [segment["sealed"] for segment in segments] == [True] * (len(segments) - 1) + [False]
    assert segments[0]["start_offset"] == 0
    for before, after in pairwise(segments):
        assert before["end_offset"] == after["start_offset"] - 1
    assert segments[-1]["end_offset"] == 6
    assert all(segment["size_bytes"] <= 300 for segment in segments)
    for segment in segments:
        assert segment["file"] == f"{segment['start_offset']:08d}.log"
    assert info["active_segment"] == segments[-1]["file"] == replies[-1]["segment"]


def test_segments_do_not_depend_on_how_many_appends_come_together(tmp_path):
    bodies = [
        {"type": "partition_append", "topic": "t", "partition": 0, "message": "x" * (number * 7)}
        for number in range(30)
    ]
    shapes = []
    for name, groups in (("one", [[body] for body in bodies]), ("all", [bodies])):
        node = TestNode(tmp_path / name)
        node.ask("wal_segment_config", max_segment_bytes=1024)
        replies = [reply for group in groups for reply in node.ask_all(*group)]
        assert [reply["offset"] for reply in replies] == list(range(30))
        info = node.ask("wal_segment_info", topic="t")
        shapes.append((without(info, "msg_id"), [reply["segment"] for reply in replies]))
        node.close()
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("size", [1, 50, 127, 128])
def test_a_tiny_segment_size_gives_one_message_a_segment(node, size):
    assert node.ask("wal_segment_config", max_segment_bytes=size)["max_segment_bytes"] == size
    for _ in range(3):
        node.append(0)
    assert node.ask("partition_info", topic="orders", partition=0)["segments"] == 3


def test_a_segment_size_of_any_number_is_taken(node):
    assert node.ask("wal_segment_config", max_segment_bytes=1 << 80)["type"].endswith("_ok")
    assert node.append(1)["offset"] == 0
    for size in (MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES):
        make_config({"segment.bytes": size})


def test_segment_info_without_a_topic_is_of_the_log_used_last(node, folder):
    empty = node.ask("wal_segment_info")
    assert empty["active_segment"] == "00000000.log"
    assert empty["segments"] == [
        {"file": "00000000.log", "start_offset": 0, "end_offset": -1, "size_bytes": 0,
         "sealed": False}
    ]  # fmt: skip
    node.append("x", topic="b")
    node.append("x", topic="a")
    node.append("y", topic="a")
    assert node.ask("wal_segment_info")["segments"][0]["end_offset"] == 1
    node.read(0, topic="b")
    assert node.ask("wal_segment_info")["segments"][0]["end_offset"] == 0
    node.close()
    again = TestNode(folder)
    assert again.ask("wal_segment_info")["segments"][0]["end_offset"] == 1  # of a, the first
    again.close()


def test_partitions_are_made_as_they_are_needed_and_are_apart(node):
    assert node.append("p2", partition=2)["offset"] == 0
    assert node.append("p0")["offset"] == 0
    assert node.append("p5", partition=5)["offset"] == 0
    assert [node.read(0, partition=p)["message"] for p in (0, 2, 5)] == ["p0", "p2", "p5"]
    assert node.ask("partition_info", topic="orders", partition=3)["end_offset"] == 0


def test_poll_gives_what_follows_each_offset(node):
    for number in range(4):
        assert node.ask("send", key="k1", msg=number * 10)["offset"] == number
    node.ask("send", key="k2", msg="only")
    assert node.poll(k1=2, k2=0, k3=0) == {
        "k1": [[2, 20], [3, 30]],
        "k2": [[0, "only"]],
        "k3": [],
    }
    assert node.poll(k1=4, k2=1000) == {"k1": [], "k2": []}


def test_a_poll_is_bounded_and_the_next_one_goes_on(node):
    big = "x" * (1 << 20)
    for _ in range(10):
        node.ask("send", key="k", msg=big)
        node.ask("send", key="l", msg=big)
    seen: dict[str, int] = {"k": 0, "l": 0}
    polls = 0
    while min(seen.values()) < 10:
        msgs = node.poll(**seen)
        assert 1 <= sum(map(len, msgs.values())) <= 8
        for key, pairs in msgs.items():
            assert [at for at, _ in pairs] == list(range(seen[key], seen[key] + len(pairs)))
            seen[key] += len(pairs)
        polls += 1
    assert polls > 2


def test_the_last_commit_of_a_key_counts(node):
    node.ask("send", key="k1", msg=1)
    node.ask("send", key="k2", msg=1)
    node.ask("commit_offsets", offsets={"k1": 7, "k2": 3})
    node.ask("commit_offsets", offsets={"k1": 5})
    listed = node.ask("list_committed_offsets", keys=["k1", "k2", "never", "k1"])
    assert listed["offsets"] == {"k1": 5, "k2": 3}


def test_a_commit_takes_all_keys_or_none(node):
    node.ask("send", key="k1", msg=1)
    refused = node.ask("commit_offsets", offsets={"k1": 0, "never": 0})
    assert refused["code"] == Code.KEY_DOES_NOT_EXIST
    assert node.ask("list_committed_offsets", keys=["k1", "never"])["offsets"] == {}


def test_a_key_is_the_topic_of_its_name(node):
    node.ask("send", key="k1", msg=[1])
    assert node.read(0, topic="k1")["message"] == [1]


# --- replies -------------------------------------------------------------------------------------


def test_replies_are_addressed_and_numbered(node):
    lines = [
        b'{"src":"c7","dest":"early","body":{"type":"wal_segment_info"}}',
        b"",
        b'{"src":"c0","dest":"n3","body":{"type":"init","msg_id":9,"node_id":"n3"}}\r',
        b"   ",
        b'{"src":"c1","dest":"n3","body":{"type":"nonsense","msg_id":-5}}',
    ]
    replies = [json.loads(line) for line in node.node.answer(lines).splitlines()]
    assert [(reply["src"], reply["dest"]) for reply in replies] == [
        ("early", "c7"),
        ("n3", "c0"),
        ("n3", "c1"),
    ]
    assert [reply["body"]["msg_id"] for reply in replies] == [0, 1, 2]
    assert "in_reply_to" not in replies[0]["body"]
    assert [reply["body"]["in_reply_to"] for reply in replies[1:]] == [9, -5]


@pytest.mark.parametrize(
    "text",
    [
        "null", "true", "0", "-0.0", "1e999", "123456789012345678901234567890123456789", "1.10",
        '""', '"\\u0000"', '"ä \\u2028 😀"', "[]", "{}", '{"b":1,"a":[{"":null}]}',
        '{"type":"init","msg_id":4}', "[" * 200 + "]" * 200, "9" * 5000,
    ],
)  # fmt: skip
def test_a_message_comes_back_as_it_was(node, text):
    node.node.answer([raw_line("partition_append", f'"topic":"t","partition":0,"message":{text}')])
    read = raw_line("partition_read", '"topic":"t","partition":0,"offset":0')
    reply = node.node.answer([read]).decode()
    assert f'"message":{text},' in reply


def test_a_reply_is_one_line_however_lines_are_told(node):
    node.ask("send", key="a\u2028b", msg="c\u2029d\u0085e")
    line = '{"src":"x\u2028y","dest":"n","body":{"type":"poll","offsets":{"a\u2028b":0}}}'
    reply = node.node.answer([line.encode()])
    assert len(reply.decode().splitlines()) == 1
    found = json.loads(reply)
    assert found["dest"] == "x\u2028y"
    assert found["body"]["msgs"] == {"a\u2028b": [[0, "c\u2029d\u0085e"]]}
    spaced = b'{"src":"c","dest":"n","body":{"type":"send","key":"k","msg":[1,\r 2,\t3 ]}}'
    node.node.answer([spaced])
    assert node.poll(k=0) == {"k": [[0, [1, 2, 3]]]}


def test_what_another_producer_wrote_is_read_as_text(folder):
    data = DataFolder(FileSystem(), str(folder))
    data.create_topic("plain")
    log = data.open_log("plain", 0)
    log.append(encode_batch([b"not json", None, b"\xff", b'{"a": 1}'], timestamps=1), NOON_US)
    log.close()
    data.close()
    node = TestNode(folder)
    messages = [node.read(offset, topic="plain")["message"] for offset in range(4)]
    assert messages == ["not json", None, "\ufffd", {"a": 1}]
    node.close()


# --- refusals ------------------------------------------------------------------------------------

APPEND = {"type": "partition_append", "topic": "t", "partition": 0, "message": 1}
READ = {"type": "partition_read", "topic": "orders", "partition": 0, "offset": 0}

REFUSED: list[tuple[Json, Code, str]] = [
    ({"type": "echo"}, Code.NOT_SUPPORTED, "echo"),
    ({"type": ""}, Code.NOT_SUPPORTED, "''"),
    ({"type": "init_ok"}, Code.NOT_SUPPORTED, "init_ok"),
    ({"type": 7}, Code.MALFORMED_REQUEST, "type"),
    ({}, Code.MALFORMED_REQUEST, "type"),
    ({"type": "init"}, Code.MALFORMED_REQUEST, "node_id"),
    ({"type": "init", "node_id": 1}, Code.MALFORMED_REQUEST, "node_id"),
    (without(APPEND, "topic"), Code.MALFORMED_REQUEST, "topic"),
    (without(APPEND, "partition"), Code.MALFORMED_REQUEST, "partition"),
    (without(APPEND, "message"), Code.MALFORMED_REQUEST, "message"),
    ({**APPEND, "topic": None}, Code.MALFORMED_REQUEST, "topic"),
    ({**APPEND, "partition": -1}, Code.MALFORMED_REQUEST, "partition"),
    ({**APPEND, "partition": 10_000}, Code.MALFORMED_REQUEST, "partition"),
    ({**APPEND, "partition": True}, Code.MALFORMED_REQUEST, "partition"),
    ({**APPEND, "partition": "0"}, Code.MALFORMED_REQUEST, "partition"),
    ({**READ, "offset": -1}, Code.MALFORMED_REQUEST, "offset"),
    ({**READ, "offset": 0.5}, Code.MALFORMED_REQUEST, "offset"),
    ({**READ, "offset": 1 << 63}, Code.MALFORMED_REQUEST, "offset"),
    ({**READ, "offset": 1}, Code.KEY_DOES_NOT_EXIST, "offset 1"),
    ({**READ, "offset": 2}, Code.KEY_DOES_NOT_EXIST, "offset 2"),
    ({**READ, "offset": (1 << 63) - 1}, Code.KEY_DOES_NOT_EXIST, "offset"),
    ({**READ, "topic": "never"}, Code.KEY_DOES_NOT_EXIST, "never"),
    ({**READ, "topic": "../x"}, Code.KEY_DOES_NOT_EXIST, "../x"),
    ({**READ, "partition": 1}, Code.KEY_DOES_NOT_EXIST, "partition 1"),
    ({"type": "partition_info", "topic": "t", "partition": 0}, Code.KEY_DOES_NOT_EXIST, "'t'"),
    ({"type": "wal_segment_info", "topic": "t"}, Code.KEY_DOES_NOT_EXIST, "'t'"),
    ({"type": "wal_segment_config"}, Code.MALFORMED_REQUEST, "max_segment_bytes"),
    ({"type": "wal_segment_config", "max_segment_bytes": 0}, Code.MALFORMED_REQUEST, "bytes"),
    ({"type": "send", "key": 1, "msg": 1}, Code.MALFORMED_REQUEST, "key"),
    ({"type": "send", "key": "k"}, Code.MALFORMED_REQUEST, "msg"),
    ({"type": "poll"}, Code.MALFORMED_REQUEST, "offsets"),
    ({"type": "poll", "offsets": {"k": -1}}, Code.MALFORMED_REQUEST, "offsets"),
    ({"type": "poll", "offsets": [0]}, Code.MALFORMED_REQUEST, "offsets"),
    ({"type": "commit_offsets", "offsets": {"k": "1"}}, Code.MALFORMED_REQUEST, "offsets"),
    ({"type": "commit_offsets", "offsets": {"k": 1}}, Code.KEY_DOES_NOT_EXIST, "'k'"),
    ({"type": "list_committed_offsets", "keys": "k"}, Code.MALFORMED_REQUEST, "keys"),
]


@pytest.mark.parametrize(("body", "code", "part"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_cannot_be_is_refused_by_name_and_the_node_goes_on(node, body, code, part):
    node.append("first")
    (reply,) = node.ask_all({"msg_id": 42, **body})
    assert (reply["type"], reply["in_reply_to"], reply["code"]) == ("error", 42, code)
    assert part in reply["text"]
    assert node.append("second")["offset"] == 1


@pytest.mark.parametrize(
    ("line", "sender", "reply_to"),
    [
        (b"{", "", None),
        (b"nonsense", "", None),
        (b"\xff\xfe", "", None),
        (b"null", "", None),
        (b"[]", "", None),
        (b"{}", "", None),
        (b"[" * 100_000, "", None),
        (b'{"src":"c1"}', "c1", None),
        (b'{"src":"c1","dest":"n1","body":[]}', "c1", None),
        (b'{"src":"c1","dest":"n1","body":{"msg_id":3}}', "c1", 3),
        (b'{"src":"c1","body":{"type":"init","msg_id":3,"node_id":"n"}}', "c1", 3),
        (b'{"src":1,"dest":"n1","body":{"type":"init","msg_id":3,"node_id":"n"}}', "", 3),
        (b'{"src":"c1","dest":"n1","body":{"type":"wal_segment_info","msg_id":"3"}}', "c1", None),
        (b'{"src":"c1","dest":"n1","body":{"type":"wal_segment_info","msg_id":true}}', "c1", None),
        (b'{"src":"c1","dest":"n1","body":{"type":"send","msg_id":3,"key":"k","msg":}}', "", None),
        (b'{"src":"c1","dest":"n1","body":{"type":"send","msg_id":3,"key":"k","msg":"\xff"}}', "",
         None),
        (b'{"src":"c1","dest":"n1","body":{"type":"send","msg_id":3,"key":"k","msg":NaN}}', "",
         None),
        (None, "", None),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_line_that_is_no_message_is_answered_as_far_as_it_says_to_whom(
    node, line, sender, reply_to
):
    reply = json.loads(node.node.answer([line]))
    assert reply["dest"] == sender
    assert reply["body"]["code"] == Code.MALFORMED_REQUEST
    assert reply["body"].get("in_reply_to") == reply_to
    assert node.append("on")["offset"] == 0


@pytest.mark.parametrize("depth", range(700, 1000, 9))
def test_a_message_is_refused_for_its_depth_or_comes_back(node, depth):
    message = "[" * depth + "]" * depth
    reply = node.node.answer([raw_line("send", f'"key":"k","msg":{message}')])
    if b"send_ok" in reply:
        poll = raw_line("poll", '"offsets":{"k":0}')
        assert f"[0,{message}]" in node.node.answer([poll]).decode()
    else:
        assert b'"code":12' in reply


def test_one_refused_append_leaves_the_others_of_its_run(node):
    replies = node.ask_all(APPEND, {**APPEND, "partition": -1}, {**APPEND, "topic": "u"}, APPEND)
    assert [reply.get("offset", reply.get("code")) for reply in replies] == [0, 12, 0, 1]


def test_a_read_sees_the_appends_before_it_and_none_after(node):
    read_end = {"type": "partition_info", "topic": "t", "partition": 0}
    replies = node.ask_all(APPEND, read_end, APPEND, APPEND, read_end)
    assert [reply.get("end_offset") for reply in replies] == [None, 1, None, None, 3]


def test_limits_are_refused_and_what_is_there_goes_on(node, monkeypatch):
    monkeypatch.setattr("seglog.server.node.logs.MAX_TOPICS", 2)
    monkeypatch.setattr("seglog.server.node.logs.MAX_PARTITIONS", 5)
    node.append(1, topic="a")
    assert node.append(1, topic="b", partition=4)["code"] == Code.ABORT
    node.append(1, topic="b")
    assert node.append(1, topic="c")["code"] == Code.ABORT
    assert node.append(1, topic="a", partition=4)["code"] == Code.ABORT
    assert node.append(1, topic="a", partition=3)["offset"] == 0


def test_an_unforeseen_error_is_a_crash_reply(caplog):
    refusal = refusal_of(KeyError("what"))
    assert refusal.code == Code.CRASH
    assert "what" not in refusal.text
    assert "KeyError" in caplog.text
    assert refusal_of(OSError(errno.EMFILE, "Too many open files")).code == Code.CRASH


# --- names ---------------------------------------------------------------------------------------


@given(st.text())
def test_any_string_names_a_topic_and_no_path(text):
    name = topic_name(text)
    check_topic_name(name)
    assert not name.startswith("__")
    assert (name == text) != name.startswith(HASHED_PREFIX)


def test_no_string_reaches_another_ones_log(node, tmp_path):
    names = [
        "", ".", "..", "../../x", "/etc/passwd", "a/b", "a\0b", "a" * 5000, "ä", "__offsets",
        "a", "A b", topic_name(""), topic_name(topic_name("")),
    ]  # fmt: skip
    for name in names:
        assert node.append(name, topic=name)["offset"] == 0
    for name in names:
        assert node.read(0, topic=name)["message"] == name
    assert {path.name for path in tmp_path.iterdir()} == {"data"}
    topics = [path.name for path in (tmp_path / "data").iterdir() if path.is_dir()]
    assert len(topics) == len(names)


# --- what is kept --------------------------------------------------------------------------------


def test_a_new_run_finds_everything(node, folder):
    node.ask("wal_segment_config", max_segment_bytes=128)
    for number in range(3):
        node.append({"n": number})
    node.ask("send", key="a key", msg="m")
    node.ask("commit_offsets", offsets={"a key": 0})
    node.close()

    again = TestNode(folder)
    assert [again.read(offset)["message"] for offset in range(3)] == [{"n": n} for n in range(3)]
    assert again.ask("list_committed_offsets", keys=["a key"])["offsets"] == {"a key": 0}
    assert again.append("next")["segment"] == "00000003.log"
    assert again.append("new", topic="new")["offset"] == 0
    assert again.append("new", topic="new")["segment"] == "00000001.log"  # the size still holds
    again.close()


def test_many_keys_need_few_open_logs(folder):
    node = TestNode(folder, max_open_logs=3)
    keys = [f"k{number}" for number in range(10)]
    for round_ in range(3):
        bodies = [{"type": "send", "key": key, "msg": [key, round_]} for key in keys]
        replies = node.ask_all(*bodies)
        assert [reply["offset"] for reply in replies] == [round_] * 10
        assert len(node.logs._open) == 3
    assert node.poll(**dict.fromkeys(keys, 1)) == {
        key: [[1, [key, 1]], [2, [key, 2]]] for key in keys
    }
    node.close()


def test_a_damaged_topic_is_an_error_and_never_an_empty_answer(folder):
    node = TestNode(folder)
    node.ask("send", key="k", msg=1)
    node.close()
    (folder / "topic-k" / "topic.json").write_text("{}")
    node = TestNode(folder)
    assert node.ask("poll", offsets={"k": 0})["code"] == Code.CRASH
    assert node.ask("send", key="k", msg=1)["code"] == Code.CRASH
    assert node.ask("commit_offsets", offsets={"k": 0})["code"] == Code.CRASH
    assert node.ask("send", key="other", msg=1)["offset"] == 0
    node.close()


# --- a disk that fails ---------------------------------------------------------------------------


def test_a_full_disk_is_an_error_reply_and_writes_resume(tmp_path):
    disk = SimulatedDisk(tmp_path / "data")
    node = TestNode(tmp_path / "data", disk)
    assert node.append("x" * 1000)["offset"] == 0
    disk.capacity_bytes = disk.used_bytes
    big = "y" * (2 << 20)
    assert node.append(big)["code"] == Code.TEMPORARILY_UNAVAILABLE
    assert node.append("new", topic="new")["code"] == Code.TEMPORARILY_UNAVAILABLE
    assert node.ask("commit_offsets", offsets={"orders": 0})["code"] == 11
    assert node.ask("list_committed_offsets", keys=["orders"])["offsets"] == {}
    assert node.read(0)["message"] == "x" * 1000
    disk.capacity_bytes = None
    assert node.append(big)["offset"] == 1
    assert node.append("new", topic="new")["offset"] == 0
    assert node.ask("commit_offsets", offsets={"orders": 0})["type"] == "commit_offsets_ok"
    node.close()


def test_a_failed_sync_is_told_as_not_known_and_the_log_stays_closed_to_writes(tmp_path):
    disk = SimulatedDisk(tmp_path / "data")
    node = TestNode(tmp_path / "data", disk, max_open_logs=1)
    node.append("safe")
    disk.fail("sync", "*topic-orders*.log")
    assert node.append("lost?")["code"] == Code.CRASH
    assert node.append("more")["code"] == Code.TEMPORARILY_UNAVAILABLE
    assert node.append("fine", topic="other")["offset"] == 0
    # Opening it again in this process would read what the disk may not have.
    assert node.append("more")["code"] == Code.TEMPORARILY_UNAVAILABLE
    assert node.read(0)["message"] == "safe"
    assert node.read(1)["code"] == Code.KEY_DOES_NOT_EXIST
    node.close()


State = tuple[TestNode, list[tuple[Json, Json]]]  # a node, and what it was asked and answered


def test_what_was_answered_survives_a_cut_at_any_step():
    asked: list[list[Json]] = [
        [{"type": "wal_segment_config", "max_segment_bytes": 256}],
        [{"type": "send", "key": "k", "msg": 0}],
        [{"type": "send", "key": key, "msg": n} for n in (1, 2) for key in ("k", "a b")],
        [{"type": "commit_offsets", "offsets": {"k": 1, "a b": 1}}],
        [{"type": "send", "key": "k", "msg": 4}, {"type": "commit_offsets", "offsets": {"k": 3}}],
    ]

    def build(disk: SimulatedDisk) -> State:
        return TestNode(disk.root, disk), []

    def action(disk: SimulatedDisk, state: State) -> None:
        node, answered = state
        for bodies in asked:
            answered += zip(bodies, node.ask_all(*bodies), strict=True)

    def check(folder: str, crash: Crash[State]) -> None:
        node = TestNode(folder, SimulatedDisk(folder))  # which need not wait for a real one
        try:
            for body, reply in crash.state[1]:
                assert reply["type"] != "error"
                if body["type"] == "send":
                    msgs = node.poll(**{body["key"]: reply["offset"]})[body["key"]]
                    assert msgs[0] == [reply["offset"], body["msg"]]
                if body["type"] == "commit_offsets":
                    listed = node.ask("list_committed_offsets", keys=list(body["offsets"]))
                    assert all(listed["offsets"][k] >= at for k, at in body["offsets"].items())
            for key in ("k", "a b"):
                known = [at for at, _ in node.poll(**{key: 0})[key]]
                assert known == list(range(len(known)))
        finally:
            node.close()

    # Torn writes are the log's own matter, and its tests'.
    assert run_with_crash_at_every_step(build, action, check, seeds=0, torn_writes=False) > 50


# --- lines ---------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=6)), st.integers(0, 8))
def test_lines_are_the_same_however_the_bytes_come(chunks, max_bytes):
    splitter = LineSplitter(max_bytes)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.finish()
    expected = b"".join(chunks).split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert lines == [line if len(line) <= max_bytes else None for line in expected]


def test_the_largest_line_that_is_taken_fits_into_a_batch(node):
    frame = '{"src":"c","dest":"n","body":{"type":"send","key":"k","msg":"%s"}}'
    line = (frame % ("x" * (MAX_LINE_BYTES - len(frame) + 2))).encode()
    assert len(line) == MAX_LINE_BYTES
    assert b"send_ok" in node.node.answer([line])


def test_a_long_line_is_not_held():
    splitter = LineSplitter(1000)
    for _ in range(100):
        assert splitter.feed(b"x" * 500) == []
        assert sum(map(len, splitter._parts)) <= 1000
    assert splitter.feed(b"\nnext\n") == [None, b"next"]


# --- anything ------------------------------------------------------------------------------------

ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
NAMES = st.sampled_from(["orders", "k1", "a b", "", "../x"])
SMALL = st.integers(-1, 4)
OFFSETS = st.dictionaries(NAMES, SMALL, max_size=3)
FIELDS = {
    "topic": NAMES, "key": NAMES, "partition": SMALL, "offset": SMALL, "message": ANY_JSON,
    "msg": ANY_JSON, "offsets": OFFSETS, "keys": st.lists(NAMES, max_size=3), "node_id": NAMES,
    "max_segment_bytes": st.integers(-1, 400), "msg_id": SMALL,
}  # fmt: skip
BODIES = st.fixed_dictionaries(
    {"type": st.sampled_from([*REQUESTS, "what"])},
    optional={name: sound | ANY_JSON for name, sound in FIELDS.items()},
)
SOUND_BODIES = st.fixed_dictionaries({"type": st.sampled_from([*REQUESTS]), **FIELDS})
LINES = (
    st.binary(max_size=40).map(lambda line: line.replace(b"\n", b""))
    | ANY_JSON.map(lambda value: json.dumps(value).encode())
    | (BODIES | SOUND_BODIES).map(
        lambda body: json.dumps({"src": "c", "dest": "n", "body": body}).encode()
    )
    | st.none()
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(LINES, max_size=12))
def test_any_lines_get_a_reply_each_and_never_stop_the_node(tmp_path_factory, lines):
    node = TestNode(tmp_path_factory.mktemp("node"))
    try:
        replies = [json.loads(line) for line in node.node.answer(lines).splitlines()]
        assert len(replies) == len([line for line in lines if line is None or line.strip()])
        assert [reply["body"]["msg_id"] for reply in replies] == list(range(len(replies)))
        for reply in replies:
            body = reply["body"]
            assert body["type"].endswith("_ok") or body["code"] in set(Code) - {Code.CRASH}, body
    finally:
        node.close()


@settings(max_examples=30)  # each append is synced
@given(
    st.lists(
        st.tuples(st.sampled_from(["orders", "a b"]), st.integers(0, 1), ANY_JSON), max_size=15
    )
)
def test_a_node_is_a_list_for_each_partition(tmp_path_factory, appends):
    node = TestNode(tmp_path_factory.mktemp("node"), max_open_logs=2)
    model: dict[tuple[str, int], list[Any]] = {}
    try:
        node.ask("wal_segment_config", max_segment_bytes=400)
        for topic, partition, message in appends:
            known = model.setdefault((topic, partition), [])
            assert node.append(message, topic, partition)["offset"] == len(known)
            known.append(message)
        for (topic, partition), known in model.items():
            found = [node.read(at, topic, partition)["message"] for at in range(len(known))]
            assert found == known
    finally:
        node.close()


def test_every_request_has_a_handler(node):
    for type_ in REQUESTS:
        sound = {
            "topic": "t", "key": "t", "partition": 0, "offset": 0, "message": 1, "msg": 1,
            "offsets": {"t": 0}, "keys": ["t"], "node_id": "n1", "max_segment_bytes": 1000,
        }  # fmt: skip
        node.append(1, topic="t")
        reply = node.ask(type_, **sound)
        assert reply["type"] == f"{type_}_ok", reply


def test_decoding_never_raises_what_it_should_refuse():
    message = decode_line(raw_line("poll", f'"offsets":{{"k":{"9" * 5000}}}'))
    assert isinstance(message.request, Refusal)


# --- the document --------------------------------------------------------------------------------


def test_the_sessions_of_the_document_are_what_the_node_says(tmp_path):
    text = (ROOT / "docs" / "node.md").read_text(encoding="utf-8")
    sessions = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    assert sessions
    node = TestNode(tmp_path)  # the document goes on where it stopped
    for session in sessions:
        asked = [line[2:].encode() for line in session.splitlines() if line.startswith("> ")]
        shown = [json.loads(line[2:]) for line in session.splitlines() if line.startswith("< ")]
        assert [json.loads(line) for line in node.node.answer(asked).splitlines()] == shown
    node.close()
    for type_ in REQUESTS:
        assert f"`{type_}`" in text
    for code in Code:
        assert re.search(rf"(?m)^\| {int(code)} \| {code.name.lower().replace('_', '-')} \|", text)
