"""Runs `seglog` as a person does: processes, pipes, a terminal."""

import os
import pty
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from seglog import SyncAdmin, SyncConsumer, SyncProducer

ROOT = Path(__file__).resolve().parents[1]
SEGLOG = [sys.executable, "-m", "seglog"]
TIMEOUT_S = 30


class Result(NamedTuple):
    code: int
    out: str
    err: str


def environment(bootstrap: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("SEGLOG_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**ours, "COLUMNS": "100", "PATH": path, "SEGLOG_BOOTSTRAP": bootstrap}


class Tools:
    """Runs commands against one broker."""

    def __init__(self, bootstrap: str, data: Path) -> None:
        self.bootstrap = bootstrap
        self.data = data
        self.environment = environment(bootstrap)

    def __call__(self, *arguments: str | Path, given: str | bytes = b"") -> Result:
        done = subprocess.run(
            [*SEGLOG, *map(str, arguments)],
            env=self.environment, input=given.encode() if isinstance(given, str) else given,
            capture_output=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        return Result(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode())

    def shell(self, script: str) -> Result:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-ec", script],
            env=self.environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        return Result(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*SEGLOG, *arguments], env=self.environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def topic(self, name: str, *values: bytes, partitions: int = 1, **config: str | int) -> str:
        """A new topic that holds these values."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        with SyncAdmin(self.bootstrap) as admin:
            admin.create_topic(name, partitions, settings)
        self.write(name, *values)
        return name

    def write(self, topic: str, *values: bytes, **columns) -> None:
        with SyncProducer(self.bootstrap) as producer:
            producer.send_batch(topic, list(values), **columns)

    def values(self, topic: str) -> list[bytes | None]:
        """Everything of a topic with one partition."""
        with SyncAdmin(self.bootstrap) as admin:
            (end,) = admin.list_offsets(topic, "latest").values()
        found: list[bytes | None] = []
        with SyncConsumer(topic, bootstrap=self.bootstrap, start="earliest") as consumer:
            while len(found) < end.offset:
                found += [record.value for record in consumer.getmany()]
        return found


def offline_tools() -> Tools:
    """Commands with no broker to talk to."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return Tools(f"127.0.0.1:{port}", Path())


def assert_refused(result: Result, code: int, *parts: str) -> None:
    """One line on standard error, nothing on standard output."""
    assert (result.code, result.out) == (code, ""), result.err
    (line,) = result.err.splitlines()
    assert line.startswith("seglog: ")
    for part in parts:
        assert part in line


def shown_on_terminal(tools: Tools, *arguments: str, typed: str = "") -> str:
    """What a command shows on a terminal; `typed` is entered once it asks."""
    master, end = pty.openpty()
    shown = ""
    with subprocess.Popen(
        [*SEGLOG, *arguments], env={**tools.environment, "TERM": "xterm"},
        stdin=end, stdout=end, stderr=end,
    ) as process:  # fmt: skip
        os.close(end)
        while select.select([master], [], [], TIMEOUT_S)[0]:
            try:
                data = os.read(master, 65536)
            except OSError:  # Linux: the other end is closed
                break
            shown += data.decode()
            if not data:
                break
            if typed and shown.endswith("[y/N]: "):
                os.write(master, typed.encode())
                typed = ""
        process.wait(TIMEOUT_S)
    os.close(master)
    return shown
