"""Commands in pipes and at their ends: signals, readers that leave, terminals, the shell."""

import fcntl
import json
import os
import queue
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator

import pytest

from seglog import SyncAdmin, embedded_blocking

from tests.commands import SEGLOG, TIMEOUT_S, OnTerminal, Started, Tools, offline_tools

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@pytest.fixture(scope="module")
def tools(tmp_path_factory) -> Iterator[Tools]:
    data = tmp_path_factory.mktemp("data")
    with embedded_blocking(data) as broker:
        yield Tools(broker.bootstrap, data)


def committed(tools: Tools, group: str) -> int:
    with SyncAdmin(tools.bootstrap) as admin:
        (found,) = admin.fetch_offsets(group).values()
    return found.offset


# --- signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_ends_a_group_member_with_what_was_written_committed(tools, number, code):
    name = tools.topic(f"ended-{code}", b"one", b"two")
    with tools.start("consume", name, "--group", name, "--from", "earliest") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"one\n", b"two\n"]
        process.send_signal(number)
        out, err = process.communicate(timeout=TIMEOUT_S)

    assert (process.returncode, out, err) == (code, b"", b"")
    assert committed(tools, name) == 2
    with SyncAdmin(tools.bootstrap) as admin:
        assert not admin.describe_group(name).members  # it left: nobody waits for its session


def wait_for_members(tools: Tools, group: str, count: int) -> None:
    """Until so many are there, and every partition is theirs."""
    deadline = time.monotonic() + TIMEOUT_S
    with SyncAdmin(tools.bootstrap) as admin:
        while True:
            listed = {each.group: each for each in admin.list_groups()}
            found = listed.get(group)
            if found is not None and (found.members, found.state) == (count, "stable"):
                return
            assert time.monotonic() < deadline, found


@pytest.mark.skipif(sys.platform != "linux", reason="only there a pipe tells its size")
def test_what_nobody_read_is_not_committed_when_it_is_told_to_end(tools):
    count = 5000
    name = tools.topic("unread", *[b"%0100d" % number for number in range(count)])
    shared = ["consume", name, "--group", name, "--from", "earliest"]
    with tools.start(*shared) as process:
        assert process.stdout is not None
        wait_until_full(process.stdout.fileno())  # it hangs in a write now
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 143

    assert committed(tools, name) == 0
    assert len(tools(*shared, "--exit-at-end").out.splitlines()) == count


def wait_until_full(pipe: int) -> None:
    """Until a pipe's buffer holds as much as it can: its writer waits."""
    deadline = time.monotonic() + TIMEOUT_S
    size = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
    while (held := held_bytes(pipe)) <= size - 4096:
        assert time.monotonic() < deadline, f"{held} of {size} bytes"
        os.sched_yield()


def held_bytes(pipe: int) -> int:
    held: int = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0]
    return held


@pytest.mark.skipif(sys.platform != "linux", reason="only there a pipe's size can be set")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_a_signal_cuts_in_the_middle_of_a_write_is_written_whole(tools, unbuffered):
    size, count = 4096, 110  # the rest fits in Python's buffer, whatever ends the command
    name = tools.topic(f"cut-{unbuffered or 0}", partitions=count)
    with SyncAdmin(tools.bootstrap) as admin:
        admin.commit_offsets(name, {(name, number): 0 for number in range(count)})
    reading, writing = os.pipe()
    fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, size)
    with Started(
        [*SEGLOG, "groups", "describe", name, "--watch"],
        env={**tools.environment, "PYTHONUNBUFFERED": unbuffered}, stdout=writing,
    ) as process, os.fdopen(reading, "rb") as output:  # fmt: skip
        os.close(writing)
        wait_until_full(reading)
        process.send_signal(signal.SIGINT)
        lines = output.read().splitlines(keepends=True)
        assert process.wait(TIMEOUT_S) == 130

    assert sum(map(len, lines)) > size
    assert [line.split(b"\t")[1] for line in lines] == [b"group"] + [b"partition"] * count
    assert len({line.count(b"\t") for line in lines[1:]}) == 1
    assert lines[-1].endswith(b"\n")


def test_members_that_come_and_go_cleanly_write_every_record_once(tools):
    name = tools.topic("shared", partitions=4)
    shared = ["consume", name, "--group", name, "--from", "earliest", "--format", "%v"]
    lines: queue.Queue[bytes] = queue.Queue()

    def pass_on(process: "subprocess.Popen[bytes]") -> threading.Thread:
        assert process.stdout is not None
        thread = threading.Thread(target=lambda: [*map(lines.put, process.stdout or ())])
        thread.start()
        return thread

    def write(first: int) -> list[bytes]:
        values = [b"%d" % number for number in range(first, first + 400)]
        tools.write(name, *values, keys=values)
        return [lines.get(timeout=TIMEOUT_S).strip() for _ in values]

    with tools.start(*shared) as one, tools.start(*shared) as two:
        readers = [pass_on(one), pass_on(two)]
        wait_for_members(tools, name, 2)
        found = write(0)
        one.send_signal(signal.SIGTERM)
        found += write(400)
        assert one.wait(TIMEOUT_S) == 143
        found += write(800)
        two.send_signal(signal.SIGINT)
        assert two.wait(TIMEOUT_S) == 130
        for reader in readers:
            reader.join(TIMEOUT_S)

    assert lines.empty()
    assert sorted(map(int, found)) == list(range(1200))
    assert tools(*shared, "--exit-at-end").out == ""


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_ends_produce_with_what_came_written(tools, number, code):
    name = tools.topic(f"begun-{code}")
    with tools.start("produce", name) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\nhalf a li")
        process.stdin.flush()
        assert tools("consume", name, "--from", "earliest", "--max", "2").out == "one\ntwo\n"
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == code
        assert process.stderr is not None
        assert process.stderr.read() == b"interrupted: wrote 2 records to %s\n" % name.encode()

    assert tools.values(name) == [b"one", b"two"]


# --- readers that leave --------------------------------------------------------------------------


def test_a_reader_that_leaves_ends_a_follower_before_there_is_more_to_write(tools):
    tools.topic("quiet", b"one")
    with tools.start("consume", "quiet", "--from", "earliest") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        process.stdout.close()
        assert process.wait(TIMEOUT_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    "command", ["topics list", "topics describe left", "groups list --watch", "--help"]
)
def test_a_reader_that_leaves_is_no_failure_of_any_command(tools, command):
    if not (tools.data / "topic-left").exists():
        tools.topic("left")
    result = tools.shell(f"seglog {command} | true")
    assert result == (0, "", "")


def test_many_small_batches_and_filters_keep_their_order_and_their_count(tools):
    tools.topic("small", partitions=3)
    for number in range(60):
        tools.write("small", b"v%d" % number, keys=[b"k%d" % (number % 7)], partition=number % 3)
    every = ["consume", "small", "--exit-at-end"]

    lines = tools(*every, "--format", "%p %o %k %v").out.splitlines()
    assert sorted(lines) == sorted(
        f"{number % 3} {number // 3} k{number % 7} v{number}" for number in range(60)
    )
    for partition in "012":
        offsets = [int(line.split()[1]) for line in lines if line.startswith(partition)]
        assert offsets == list(range(20))
    chosen = tools(*every, "--filter", "key=k3", "--output", "json").out.splitlines()
    assert {json.loads(line)["key"] for line in chosen} == {"k3"}
    assert len(chosen) == len([n for n in range(60) if n % 7 == 3])
    assert len(tools(*every, "--filter", "text=v1", "--max", "4").out.splitlines()) == 4


def test_a_group_stops_at_so_many_of_the_records_that_pass_a_filter(tools):
    tools.topic("sieved", *[b"even" if n % 2 == 0 else b"odd" for n in range(10)])
    shared = [
        "consume",
        "sieved",
        "--group",
        "sieved",
        "--from",
        "earliest",
        "--filter",
        "text=odd",
    ]

    assert tools(*shared, "--max", "2", "--format", "%o").out == "1\n3\n"
    assert committed(tools, "sieved") == 4
    assert tools(*shared, "--exit-at-end", "--format", "%o").out == "5\n7\n9\n"
    assert committed(tools, "sieved") == 10


def test_headers_are_filtered_by_name_or_by_value(tools):
    tools.topic("headed")
    for headers in (["--header", "a=1"], ["--header", "a=2", "--header", "b="], []):
        given = f"{len(headers)}\n"
        assert tools("produce", "headed", *headers, given=given).code == 0
    every = ["consume", "headed", "--exit-at-end"]

    assert tools(*every, "--filter", "header:a=2").out == "4\n"
    assert tools(*every, "--filter", "header:a").out == "2\n4\n"
    assert tools(*every, "--format", "%h").out == "a=1\na=2,b=\n\n"


def test_a_bookmark_that_was_deleted_is_told_with_the_command_that_moves_it(tools):
    name = tools.topic("behind", b"a", b"b", b"c")
    shared = ["consume", name, "--group", name, "--from", "earliest"]
    assert tools(*shared, "--max", "1").out == "a\n"
    assert tools("records", "delete", name, "--before", "2", "--yes").code == 0

    result = tools(*shared, "--exit-at-end")

    assert (result.code, result.out) == (3, "")
    advice = f"seglog groups reset {name} --topic {name} --to earliest --execute"
    assert advice in result.err
    assert tools(*advice.split()[1:], "--yes").code == 0
    assert tools(*shared, "--exit-at-end").out == "c\n"


# --- terminals -----------------------------------------------------------------------------------


def test_long_work_shows_how_far_it_is_on_a_terminal_and_wipes_it_away(tools):
    tools.topic("slowly")
    reading, writing = os.pipe()
    with OnTerminal(tools, "produce", "slowly", given=reading) as terminal:
        os.close(reading)
        written = 0
        deadline = time.monotonic() + TIMEOUT_S
        while "writing slowly" not in terminal.shown:
            assert time.monotonic() < deadline, terminal.shown
            os.write(writing, b"line\n")
            written += 1
            if select.select([terminal.master], [], [], 0)[0]:
                terminal.read()
            os.sched_yield()
        os.close(writing)
        assert terminal.end() == 0
    assert f"wrote {written} records to slowly" in terminal.shown
    assert "\x1b[2K" in terminal.shown  # the line is wiped


def test_a_bar_leaves_standard_output_alone(tools, tmp_path):
    program = """
from seglog.commands import progress
from seglog.commands.common import show
progress.SHOWN_AFTER_S = progress.REFRESH_S = 0
with progress.Progress("working", "bytes", 3) as bar:
    for _ in range(3):
        bar.advance(1)
        show("a line\\n")
"""
    with (
        (tmp_path / "out").open("wb") as out,
        OnTerminal(tools, program=program, out=out.fileno()) as terminal,
    ):
        assert terminal.end() == 0

    assert "working" in terminal.shown
    assert (tmp_path / "out").read_text() == "a line\n" * 3


def test_who_waits_for_new_records_is_told_so(tools):
    tools.topic("waited", b"old")
    with OnTerminal(tools, "consume", "waited", controls=True) as terminal:
        terminal.read_until("waiting for new records; --from earliest")
        terminal.type("\x03")  # Ctrl-C
        assert terminal.end() == 130
    assert "old" not in terminal.shown


def test_who_types_is_told_how_to_end(tools):
    tools.topic("typed")
    with OnTerminal(tools, "produce", "typed") as terminal:
        terminal.read_until("Ctrl-D ends")
        terminal.type("by hand\n\x04")
        assert terminal.end() == 0
    assert tools.values("typed") == [b"by hand"]


def test_a_no_is_no_success(tools):
    tools.topic("kept", b"x")
    with OnTerminal(tools, "records", "delete", "kept", "--before", "all") as terminal:
        terminal.read_until("Delete about 1 record of kept, in 1 partition? [y/N]: ")
        terminal.type("n\n")
        assert terminal.end() == 1
    assert "nothing was changed" in terminal.shown
    assert tools.values("kept") == [b"x"]


# --- the shell -----------------------------------------------------------------------------------

COMPLETED = """
eval "$(_SEGLOG_COMPLETE=source_bash seglog)"
COMP_WORDS=({words}) COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_seglog_completion seglog
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("seglog gro", ["groups"]),
        ("seglog consume comp", ["complete-a", "complete-b"]),
        ("seglog consume complete-a --group comp", ["complete-group"]),
        ("seglog groups describe comp", ["complete-group"]),
        ("seglog produce complete-a --compression z", ["zstd"]),
    ],
)
def test_bash_completes_commands_and_the_brokers_names(tools, words, expected):
    if not (tools.data / "topic-complete-b").exists():
        tools.topic("complete-a", b"x")
        tools.topic("complete-b")
        with SyncAdmin(tools.bootstrap) as admin:
            admin.commit_offsets("complete-group", {("complete-a", 0): 1})

    assert tools.shell(COMPLETED.format(words=words)) == (0, "\n".join([*expected, ""]), "")


def test_completing_without_a_broker_offers_nothing_and_says_nothing():
    assert offline_tools().shell(COMPLETED.format(words="seglog consume comp")) == (0, "\n", "")


def test_asking_for_help_loads_no_client_no_broker_and_no_event_loop():
    program = "import sys, seglog.cli; print('\\n'.join(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        timeout=TIMEOUT_S,
    )  # fmt: skip
    heavy = ("asyncio", "rich", "uvloop", "seglog.client", "seglog.server.storage", "pyarrow")
    assert not [name for name in result.stdout.split() if name.startswith(heavy)]


def test_the_output_may_be_chosen_on_either_side_of_the_command(tools):
    tools.topic("sides", b"x")
    before = tools("--output", "json", "consume", "sides", "--exit-at-end").out
    after = tools("consume", "sides", "--exit-at-end", "--output", "json").out
    assert before == after
    assert json.loads(before)["value"] == "x"
    assert tools(
        "--output", "json", "consume", "sides", "--exit-at-end", "--output", "table"
    ).out == ("x\n")
