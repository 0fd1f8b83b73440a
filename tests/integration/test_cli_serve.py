"""`seglog serve` as a user meets it: a process of its own, real signals, a real terminal."""

import codecs
import ctypes
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import seglog

from tests.commands import SEGLOG, TIMEOUT_S
from tests.serving import Serving, environment, starting

LISTENING = re.compile(r"listening on (\S+):(\d+)\n")


def run(
    *arguments: str | Path, cwd: Path, before: Callable[[], None] | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SEGLOG, *map(str, arguments)],
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        preexec_fn=before,
    )


class Served(Serving):
    """A broker in a process of its own."""

    def listen(self) -> None:
        line = self.line()
        found = LISTENING.fullmatch(line)
        assert found is not None, f"it said {line!r}"
        self.host, self.port = found[1], int(found[2])


@pytest.fixture
def serve(tmp_path) -> Iterator[Callable[..., Served]]:
    """Starts brokers in `tmp_path`."""
    with starting(Served, tmp_path) as start:
        yield partial(start, "serve")


def assert_refused(result: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    """One line on standard error, nothing on standard output, no traceback."""
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("seglog: ")
    for part in parts:
        assert part in lines[0]


# --- running -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_listens_where_it_says_and_stops_cleanly_on_a_signal(serve, number):
    broker = serve("--port", "0")

    socket.create_connection((broker.host, broker.port), timeout=TIMEOUT_S).close()
    code, out, err = broker.stop(number)

    assert (broker.host, code, out) == ("127.0.0.1", 0, "")
    assert "Traceback" not in err


def test_a_stopped_broker_starts_again_on_the_same_folder(serve, tmp_path):
    assert serve("--data", "d", "--port", "0").stop()[0] == 0
    assert (tmp_path / "d" / "seglog.lock").exists()

    assert serve("--data", "d", "--port", "0").stop()[0] == 0


def test_a_killed_broker_leaves_no_lock_that_stops_the_next(serve):
    serve("--data", "d", "--port", "0").stop(signal.SIGKILL)

    assert serve("--data", "d", "--port", "0").stop()[0] == 0


def test_flags_beat_variables_beat_the_file(serve, tmp_path):
    (tmp_path / "seglog.toml").write_text('data = "from-file"\nport = 1\nhost = "127.0.0.2"')

    serve("--config", "seglog.toml", "--set", "port=0", SEGLOG_DATA="from-variable").stop()

    assert (tmp_path / "from-variable").is_dir()
    assert not (tmp_path / "from-file").exists()


def test_an_ipv6_address_is_written_in_brackets(serve):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")

    broker = serve("--host", "::1", "--port", "0")

    assert broker.host == "[::1]"
    socket.create_connection(("::1", broker.port), timeout=TIMEOUT_S).close()


def test_serving_loads_neither_the_client_nor_what_draws_on_a_terminal(tmp_path):
    program = (
        "import sys; from seglog.cli import run; run(['serve', '--print-config']);"
        "import seglog.server.app; print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment(), capture_output=True,
        text=True, check=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    loaded = set(result.stderr.split())
    heavy = ("rich", "seglog.client", "seglog.spark_connector", "pyarrow", "pyspark")
    assert not {name for name in loaded if name.startswith(heavy)}
    # 450 when this was written: a start takes 0.3 s, and an import gone astray brings hundreds.
    assert len(loaded) < 600, sorted(loaded)


# --- logs ----------------------------------------------------------------------------------------


def test_without_a_terminal_every_line_of_the_log_is_json(serve):
    _, _, err = serve("--port", "0").stop()

    records = [json.loads(line) for line in err.splitlines()]
    assert {"time", "level", "logger", "message"} <= set(records[0])
    assert any("stopped" in fields["message"] for fields in records)


def test_a_quiet_broker_can_be_had(serve):
    assert serve("--port", "0", "--log-level", "error").stop()[2] == ""
    assert serve("--port", "0", SEGLOG_LOG_LEVEL="error").stop()[2] == ""


def test_logs_to_read_can_be_asked_for_without_a_terminal(serve):
    _, _, err = serve("--port", "0", "--log-format", "text").stop()

    assert re.match(r"\d\d:\d\d:\d\d\.\d{3} INFO +seglog\.", err)
    assert "\x1b" not in err


class TerminalReader:
    """A pseudo-terminal: `end` is for the process, what it shows is read here."""

    def __init__(self) -> None:
        self._master, self.end = pty.openpty()
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end in a character
        self.shown = ""

    def read_until(self, part: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while part not in self.shown:
            left_s = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._master], [], [], left_s)
            assert ready, f"no {part!r} in {self.shown!r}"
            self.shown += self._decoder.decode(os.read(self._master, 65536))

    def close(self) -> None:
        os.close(self._master)
        os.close(self.end)


@pytest.fixture
def terminal() -> Iterator[TerminalReader]:
    opened = TerminalReader()
    yield opened
    opened.close()


def test_on_a_terminal_the_log_is_to_be_read_and_ctrl_c_stops(tmp_path, terminal):
    variables = environment(TERM="xterm")
    variables.pop("NO_COLOR", None)
    with subprocess.Popen(
        [*SEGLOG, "serve", "--port", "0"],
        cwd=tmp_path, env=variables, stdin=terminal.end, stdout=terminal.end, stderr=terminal.end,
    ) as process:  # fmt: skip
        terminal.read_until("listening on 127.0.0.1:")
        process.send_signal(signal.SIGINT)
        terminal.read_until("stopped")
        assert process.wait(TIMEOUT_S) == 0

    assert "\x1b[32mINFO" in terminal.shown
    assert '{"time"' not in terminal.shown
    assert "Traceback" not in terminal.shown


def test_on_a_terminal_a_mistake_is_one_line_too(tmp_path, terminal):
    with subprocess.Popen(
        [*SEGLOG, "serve", "--prot", "1"],
        cwd=tmp_path, env=environment(), stdout=terminal.end, stderr=terminal.end,
    ) as process:  # fmt: skip
        terminal.read_until("\n")
        assert process.wait(TIMEOUT_S) == 2

    assert terminal.shown.startswith("seglog: ")
    assert terminal.shown.count("\n") == 1


COLLECTED = """
import asyncio, gc, os, signal, sys
from seglog.server.app import serve
from seglog.server.config import BrokerConfig

def on_listening(broker):
    print(len(gc.get_objects()), gc.get_freeze_count())
    os.kill(os.getpid(), signal.SIGTERM)

asyncio.run(serve(BrokerConfig(data=sys.argv[1], port=0), on_listening))
"""


def test_what_the_broker_began_with_is_not_collected_again_and_again(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", COLLECTED, tmp_path],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=True,
    )  # fmt: skip

    looked_at, frozen = map(int, ran.stdout.split())
    assert frozen > 10 * looked_at


# --- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--port", "70000"], ["--port", "0 to 65535", "'70000'"]),
        (["--port", "http"], ["--port", "0 to 65535", "'http'"]),
        (["--port", ""], ["--port", "0 to 65535"]),
        (["--set", "max.conections=5"], ["--set max.conections", "did you mean max.connections?"]),
        (["--set", "topic.durability=no"], ["topic.durability", "fsync or os"]),
        (["--set", "port"], ["--set", "KEY=VALUE"]),
        (["--port", "1", "--set", "port=2"], ["--set port", "--port"]),
        (["--config", "missing.toml"], ["missing.toml", "No such file"]),
        (["--config", "."], ["Is a directory"]),
        (["--log-level", "loud"], ["--log-level", "'loud'", "seglog serve --help"]),
        (["--prot", "1"], ["--prot", "--port", "seglog serve --help"]),
        (["7400"], ["7400", "seglog serve --help"]),
    ],
)
def test_a_mistake_on_the_command_line_is_told_in_one_line(tmp_path, arguments, parts):
    assert_refused(run("serve", *arguments, cwd=tmp_path), 2, *parts)
    assert list(tmp_path.iterdir()) == []  # nothing was begun


def test_a_mistake_in_the_file_is_told_with_file_and_key(tmp_path):
    (tmp_path / "seglog.toml").write_text("[topic]\nretention_ms = 5")

    result = run("serve", "--config", "seglog.toml", cwd=tmp_path)

    assert_refused(
        result, 2, "seglog.toml, key topic.retention_ms", "did you mean topic.retention.ms?"
    )


def test_a_mistake_in_a_variable_is_told_with_its_name(tmp_path):
    assert_refused(run("serve", cwd=tmp_path, SEGLOG_PORT="x"), 2, "variable SEGLOG_PORT")
    assert_refused(
        run("serve", cwd=tmp_path, SEGLOG_MAX_TOPIC="5"), 2, "did you mean SEGLOG_MAX_TOPICS?"
    )


def test_a_file_in_place_of_the_data_folder_is_told(tmp_path):
    (tmp_path / "d").write_text("")

    for data in ["d", "d/below"]:
        result = run("serve", "--data", data, "--port", "0", cwd=tmp_path)
        assert_refused(result, 1, str(tmp_path / data), "another folder with --data")


def give_up_writing_everywhere() -> None:
    """Let permissions hold for root as well: drop CAP_DAC_OVERRIDE before the program starts."""
    pr_capbset_drop, cap_dac_override = 24, 1
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(pr_capbset_drop, cap_dac_override, 0, 0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o555)

    for data in ["locked", "locked/below"]:
        result = run(
            "serve", "--data", data, "--port", "0", cwd=tmp_path, before=give_up_writing_everywhere
        )
        assert_refused(result, 1, "locked", "Permission denied", "another folder with --data")


def test_a_second_broker_on_the_same_folder_is_told_who_has_it(serve, tmp_path):
    first = serve("--data", "d", "--port", "0")

    result = run("serve", "--data", "d", "--port", "0", cwd=tmp_path)

    assert_refused(result, 5, str(tmp_path / "d"), f"process {first.process.pid}", "Stop the other")
    assert first.stop()[0] == 0


def test_a_port_in_use_is_told(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        result = run("serve", "--port", port, cwd=tmp_path)

    assert_refused(result, 1, f"127.0.0.1:{port}", "in use", "another --port")


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_an_address_of_another_machine_is_told(tmp_path, host):
    result = run("serve", "--host", host, "--port", "0", cwd=tmp_path)

    assert_refused(result, 1, host, "as --host")


@pytest.mark.parametrize("arguments", [["--debug", "serve"], ["serve", "--debug"]])
def test_a_traceback_comes_when_asked_for(tmp_path, arguments):
    result = run(*arguments, "--port", "70000", cwd=tmp_path)

    assert result.returncode == 2
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("seglog: flag --port")


# --- without a broker ----------------------------------------------------------------------------


def test_printed_settings_are_accepted_as_a_file_and_start_nothing(tmp_path):
    changes = ["--data", "d", "--port", "0", "--set", "topic.retention.ms=3d"]
    printed = run("serve", *changes, "--print-config", cwd=tmp_path, SEGLOG_MAX_TOPICS="7")
    assert printed.returncode == 0, printed.stderr
    (tmp_path / "seglog.toml").write_text(printed.stdout)

    again = run("serve", "--config", "seglog.toml", "--print-config", cwd=tmp_path)

    assert again.stdout == printed.stdout
    assert '"max.topics" = 7  # default: 10000' in printed.stdout
    assert not (tmp_path / "d").exists()


def test_a_broker_runs_with_its_printed_settings(serve, tmp_path):
    printed = run("serve", "--data", "d", "--port", "0", "--print-config", cwd=tmp_path)
    (tmp_path / "seglog.toml").write_text(printed.stdout)

    assert serve(SEGLOG_CONFIG="seglog.toml").stop()[0] == 0
    assert (tmp_path / "d").is_dir()


def test_a_reader_that_goes_away_is_no_traceback(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen(
        [*SEGLOG, "serve", "--print-config"],
        cwd=tmp_path, env=environment(), stdout=writing, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        os.close(writing)
        _, err = process.communicate(timeout=TIMEOUT_S)

    assert err == ""
    assert process.returncode == 0


def test_the_version_is_printed(tmp_path):
    result = run("--version", cwd=tmp_path)

    assert (result.returncode, result.stdout) == (0, f"seglog {seglog.__version__}\n")


def test_help_names_the_commands_and_every_flag(tmp_path):
    assert "serve" in run("--help", cwd=tmp_path).stdout
    shown = run("serve", "--help", cwd=tmp_path).stdout
    for name in ["--data", "--host", "--port", "--config", "--set", "--print-config"]:
        assert name in shown


def test_without_a_command_the_help_is_shown(tmp_path):
    result = run(cwd=tmp_path)

    assert (result.returncode, result.stderr) == (2, "")
    assert "serve" in result.stdout


def test_an_unknown_command_is_told_with_the_one_that_was_meant(tmp_path):
    assert_refused(run("serv", cwd=tmp_path), 2, "'serv'", "serve")
