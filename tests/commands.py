"""Runs `seglog` as a person does: processes, pipes, a terminal."""

import codecs
import ctypes
import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from scripts.ports import kept_port
from seglog import SyncAdmin, SyncConsumer, SyncProducer

ROOT = Path(__file__).resolve().parents[1]
SEGLOG = [sys.executable, "-m", "seglog"]
TIMEOUT_S = 120  # of one command; it only bounds what hangs
SCRIPT_S = 240  # of a script of many


class Result(NamedTuple):
    code: int
    out: str
    err: str


def environment(bootstrap: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("SEGLOG_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**ours, "COLUMNS": "100", "PATH": path, "SEGLOG_BOOTSTRAP": bootstrap}


class Started(subprocess.Popen[bytes]):
    """A command that runs beside the test; a test that fails ends it."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, trace)


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
            env=self.environment, capture_output=True, text=True, timeout=SCRIPT_S, check=False,
        )  # fmt: skip
        return Result(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str) -> "Started":
        return Started(
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
    return Tools(f"127.0.0.1:{kept_port()}", Path())


def assert_refused(result: Result, code: int, *parts: str) -> None:
    """One line on standard error, nothing on standard output."""
    assert (result.code, result.out) == (code, ""), result.err
    (line,) = result.err.splitlines()
    assert line.startswith("seglog: ")
    for part in parts:
        assert part in line


def obey_permissions() -> None:
    """In the child: let permissions hold for root as well (CAP_DAC_OVERRIDE, _READ_SEARCH)."""
    pr_capbset_drop = 24
    if os.geteuid() == 0:
        for capability in (1, 2):
            ctypes.CDLL(None).prctl(pr_capbset_drop, capability, 0, 0, 0)


def take_terminal() -> None:
    """In the child: the terminal is its own, so that what is typed there can be a signal."""
    fcntl.ioctl(2, termios.TIOCSCTTY, 0)


class OnTerminal:
    """A command on a pseudo-terminal, which the test reads and types on.

    `out` and `given`: in place of the terminal, a file or pipe for its output and its input;
    `program`: other Python in place of a command. `controls`: what is typed can be a signal; but
    then the system may drop what the command showed last, when it ends.
    """

    def __init__(
        self,
        tools: Tools,
        *arguments: str,
        program: str = "",
        controls: bool = False,
        out: int | None = None,
        given: int | None = None,
    ) -> None:
        command = [sys.executable, "-c", program] if program else [*SEGLOG, *arguments]
        self.master, end = pty.openpty()
        self.shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.process = subprocess.Popen(
            command, env={**tools.environment, "TERM": "xterm"},
            stdin=end if given is None else given, stdout=end if out is None else out, stderr=end,
            start_new_session=controls, preexec_fn=take_terminal if controls else None,  # noqa: PLW1509 - one call to the system
        )  # fmt: skip
        os.close(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    def read_until(self, part: str) -> None:
        """Until this is shown; "": until the command has ended."""
        deadline = time.monotonic() + TIMEOUT_S
        while not part or part not in self.shown:
            left_s = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self.master], [], [], left_s)
            assert ready, f"no {part!r} in {self.shown!r}"
            if not self.read() and not part:
                return

    def read(self) -> bool:
        """What is there; False at the end."""
        try:
            data = os.read(self.master, 65536)
        except OSError:  # Linux: the other end is closed
            data = b""
        self.shown += self._decoder.decode(data)  # a character may come in two reads
        return bool(data)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def end(self) -> int:
        """Its exit code, once it has ended by itself."""
        self.read_until("")
        return self.process.wait(TIMEOUT_S)


def shown_on_terminal(tools: Tools, *arguments: str, typed: str = "") -> str:
    """What a command shows on a terminal; `typed` is entered once it asks."""
    with OnTerminal(tools, *arguments) as terminal:
        if typed:
            terminal.read_until("[y/N]: ")
            terminal.type(typed)
        terminal.end()
        return terminal.shown
