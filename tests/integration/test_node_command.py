"""`seglog node` as a program: pipes, signals, restarts, and a kill."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES = json.loads((ROOT / "tests" / "data" / "node_cases.json").read_text(encoding="utf-8"))
COMMAND = [sys.executable, "-m", "seglog", "node"]
TIMEOUT_S = 120

Json = dict[str, Any]


def environment(temporary: Path) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("SEGLOG_")}
    return {**ours, "TMPDIR": str(temporary)}


def request(type_: str, msg_id: int = 1, **fields: Any) -> Json:
    return {"src": "c1", "dest": "n1", "body": {"type": type_, "msg_id": msg_id, **fields}}


def send(message: Any, key: str = "k") -> Json:
    return request("send", key=key, msg=message)


def as_lines(messages: list[Json]) -> bytes:
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


class Running:
    """A node in a process of its own, which the test talks to."""

    def __init__(self, temporary: Path, *arguments: str | Path) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            env=environment(temporary),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.stdin = self.process.stdin
        self.stdout = self.process.stdout
        self.stderr = self.process.stderr

    def write(self, data: bytes) -> None:
        self.stdin.write(data)
        self.stdin.flush()

    def ask(self, message: Json) -> Json:
        """The body of the reply."""
        self.write(as_lines([message]))
        body: Json = json.loads(self.stdout.readline())["body"]
        return body

    def end(self) -> tuple[int, bytes, bytes]:
        """The exit code once the input has ended, and what was still said."""
        self.stdin.close()
        out, err = self.stdout.read(), self.stderr.read()
        return self.process.wait(TIMEOUT_S), out, err

    def kill(self) -> None:
        """End it, whatever its state."""
        self.process.kill()
        self.process.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            try:
                stream.close()
            except BrokenPipeError:  # what it did not read any more
                pass


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts nodes; what still runs at the end of the test is ended."""
    started: list[Running] = []

    def start_node(*arguments: str | Path, temporary: Path = tmp_path) -> Running:
        started.append(Running(temporary, *arguments))
        return started[-1]

    yield start_node
    for node in started:
        node.kill()


def run(temporary: Path, data: bytes, *arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=data,
        env=environment(temporary),
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def replies(result: subprocess.CompletedProcess[bytes]) -> list[Json]:
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def missing(expected: Any, found: Any, at: str = "") -> list[str]:
    """Where `found` lacks what `expected` says; it may say more."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return [m for k, v in expected.items() for m in missing(v, found.get(k), f"{at}.{k}")]
    return [] if expected == found else [f"{at}: {found!r} is not {expected!r}"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_known_requests_get_their_known_replies(tmp_path, case):
    result = run(tmp_path, as_lines(case["in"]))
    found = replies(result)
    assert len(found) == len(case["out"])
    assert [m for e, f in zip(case["out"], found, strict=True) for m in missing(e, f)] == []
    assert result.stderr == b""


def test_without_a_folder_nothing_is_left(tmp_path):
    assert len(replies(run(tmp_path, as_lines([send(1), send(2)])))) == 2
    assert list(tmp_path.iterdir()) == []


def test_no_input_is_a_clean_end(tmp_path):
    assert replies(run(tmp_path, b"")) == []


def test_the_last_line_needs_no_end(tmp_path):
    assert len(replies(run(tmp_path, as_lines([send(1)]).rstrip()))) == 1


def test_a_restart_finds_everything(tmp_path):
    data = tmp_path / "deep" / "data"
    first = [
        request("wal_segment_config", max_segment_bytes=128),
        *(request("partition_append", topic="t", partition=1, message=[n]) for n in range(4)),
        send("m", key="a/../b"),
        request("commit_offsets", offsets={"a/../b": 0}),
    ]
    assert all(
        r["body"]["type"] != "error"
        for r in replies(run(tmp_path, as_lines(first), "--data", data))
    )
    second = [
        *(request("partition_read", topic="t", partition=1, offset=n) for n in range(4)),
        request("list_committed_offsets", keys=["a/../b"]),
        request("poll", offsets={"a/../b": 0}),
        request("wal_segment_info", topic="t", partition=1),
    ]
    bodies = [r["body"] for r in replies(run(tmp_path, as_lines(second), "--data", data))]
    assert [body["message"] for body in bodies[:4]] == [[0], [1], [2], [3]]
    assert bodies[4]["offsets"] == {"a/../b": 0}
    assert bodies[5]["msgs"] == {"a/../b": [[0, "m"]]}
    assert len(bodies[6]["segments"]) == 4


def test_what_was_answered_survives_a_kill(tmp_path, start):
    data = tmp_path / "data"
    answered: list[tuple[int, str]] = []
    for round_ in range(3):
        node = start("--data", data)
        # Written all at once, and killed while the node is somewhere in the middle of it.
        messages = [send(f"{round_}-{n}", key="k") for n in range(300)]
        node.write(as_lines(messages))
        waited_for = 20 * round_ + 1
        lines = [node.stdout.readline() for _ in range(waited_for)]
        node.process.kill()
        lines += node.stdout.read().splitlines(keepends=True)
        node.process.wait()
        if not lines[-1].endswith(b"\n"):
            lines.pop()
        offsets = [json.loads(line)["body"]["offset"] for line in lines]
        answered += [(offset, f"{round_}-{n}") for n, offset in enumerate(offsets)]
        committed = offsets[-1]
        assert node.process.returncode == -signal.SIGKILL
        after = start("--data", data)
        found = dict(after.ask(request("poll", offsets={"k": 0}))["msgs"]["k"])
        assert list(found) == list(range(len(found)))
        assert [(at, found.get(at)) for at, _ in answered] == answered
        assert after.ask(request("commit_offsets", offsets={"k": committed}))["type"] != "error"
        after.kill()
        last = start("--data", data)
        listed = last.ask(request("list_committed_offsets", keys=["k"]))
        assert listed["offsets"] == {"k": committed}
        assert last.end()[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kept", [True, False])
def test_a_signal_ends_it_cleanly(tmp_path, start, number, kept):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    node = start(*(["--data", tmp_path / "data"] if kept else []), temporary=temporary)
    assert node.ask(send("kept"))["offset"] == 0
    node.write(b'{"src": "half a line')
    node.process.send_signal(number)
    assert node.process.wait(TIMEOUT_S) == 0  # its input is still open
    assert (node.stdout.read(), node.stderr.read()) == (b"", b"")
    assert list(temporary.iterdir()) == []
    if kept:
        (reply,) = replies(
            run(
                tmp_path, as_lines([request("poll", offsets={"k": 0})]), "--data", tmp_path / "data"
            )
        )
        assert reply["body"]["msgs"] == {"k": [[0, "kept"]]}


def test_a_line_without_an_end_is_refused_without_being_held(start):
    node = start()
    node.ask(send(1))
    chunk = b"x" * (1 << 20)
    for _ in range(128):
        node.write(chunk)
    node.write(b"\n")
    reply = json.loads(node.stdout.readline())
    assert reply["body"]["code"] == 12
    assert "too long" in reply["body"]["text"]
    assert node.ask(send(2))["offset"] == 1
    status = Path(f"/proc/{node.process.pid}/status")
    if status.exists():
        peak_kib = int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0])
        assert peak_kib < 110 * 1024
    assert node.end()[0] == 0


def test_nobody_reading_the_replies_is_an_end(start):
    node = start()
    node.ask(send(1))
    node.stdout.close()
    try:
        for _ in range(100):
            node.write(as_lines([send(2)]))
    except BrokenPipeError:
        pass
    assert node.process.wait(TIMEOUT_S) == 0
    assert node.stderr.read() == b""


def test_replies_come_at_once_and_do_not_wait_for_more_input(start):
    node = start()
    node.write(as_lines([send(1)]))
    assert select.select([node.stdout], [], [], TIMEOUT_S)[0]
    assert json.loads(node.stdout.readline())["body"]["offset"] == 0


def test_a_folder_in_use_is_refused_in_one_line(tmp_path, start):
    node = start("--data", tmp_path / "data")
    node.ask(send(1))
    result = run(tmp_path, b"", "--data", tmp_path / "data")
    assert result.returncode == 5
    assert result.stdout == b""
    assert result.stderr.startswith(b"seglog: the data folder")
    assert result.stderr.count(b"\n") == 1


def test_a_full_device_is_an_error_reply():
    """A file may have 3 MiB here; the system tells its end much as it tells a full disk."""
    limited = (
        "import resource, runpy, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20));"
        "sys.argv = ['seglog', 'node']; runpy.run_module('seglog', run_name='__main__')"
    )
    big = [send("x" * (1 << 20)) for _ in range(4)]
    result = subprocess.run(
        [sys.executable, "-c", limited],
        input=as_lines([*big, request("poll", offsets={"k": 1})]),
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    bodies = [reply["body"] for reply in replies(result)]
    assert [body.get("offset", body.get("code")) for body in bodies[:4]] == [0, 1, 11, 11]
    assert [at for at, _ in bodies[4]["msgs"]["k"]] == [1]


def test_the_command_of_the_document_prints_what_it_says(tmp_path):
    text = (ROOT / "docs" / "node.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    (printed,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    seglog = f'seglog() {{ "{sys.executable}" -m seglog "$@"; }}\n'
    result = subprocess.run(
        ["sh", "-c", seglog + script],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (result.stdout, result.stderr, result.returncode) == (printed, "", 0)
