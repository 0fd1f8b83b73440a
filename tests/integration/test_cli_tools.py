"""The commands as a person runs them: processes, pipes, a terminal; against a real broker."""

import base64
import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import docs_cli
from seglog import SyncConsumer, embedded_blocking
from seglog.cli import run
from seglog.commands import exit_codes

from tests.commands import (
    ROOT,
    TIMEOUT_S,
    Result,
    Tools,
    assert_refused,
    offline_tools,
    shown_on_terminal,
)

DOCUMENT = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tools(tmp_path_factory) -> Iterator[Tools]:
    data = tmp_path_factory.mktemp("data")
    with embedded_blocking(data) as broker:
        yield Tools(broker.bootstrap, data)


@pytest.fixture(scope="module")
def offline() -> Tools:
    return offline_tools()


# --- topics --------------------------------------------------------------------------------------


def test_a_topic_is_created_described_altered_and_deleted(tools):
    made = tools("topics", "create", "life", "--partitions", "2", "--config", "retention.ms=3d")
    assert (made.code, made.out, made.err) == (0, "", "created life with 2 partitions\n")

    changes = ["--partitions", "3", "--config", "segment.bytes=1MiB"]
    assert tools("topics", "alter", "life", *changes).code == 0

    assert "life\t3\n" in tools("topics", "list").out
    shown = json.loads(tools("topics", "describe", "life", "--output", "json").out)
    assert [partition["partition"] for partition in shown["partitions"]] == [0, 1, 2]
    assert shown["config"]["retention.ms"] == 3 * 24 * 3600 * 1000
    assert shown["config"]["segment.bytes"] == 1 << 20
    lines = tools("topics", "describe", "life").out.splitlines()
    assert lines[0] == "partition\t0\t0\t0\t0\t1\t"
    assert "setting\tsegment.bytes\t1048576" in lines

    assert_refused(tools("topics", "delete", "life"), 2, "--yes")
    assert tools("topics", "delete", "life", "--yes").code == 0
    assert_refused(tools("topics", "describe", "life"), 3, "no topic life", "seglog topics list")


def test_scripts_may_create_what_is_there_and_delete_what_is_not(tools):
    tools.topic("there")

    assert_refused(tools("topics", "create", "there"), 5, "exists", "seglog topics delete")
    assert tools("topics", "create", "there", "--if-not-exists").code == 0
    assert_refused(tools("topics", "delete", "not-there", "--yes"), 3, "not-there")
    assert tools("topics", "delete", "not-there", "--yes", "--if-exists").code == 0


def test_the_broker_may_be_named_on_either_side_of_the_command(tools, offline):
    for flags in [["--bootstrap", tools.bootstrap, "topics", "list"],
                  ["topics", "list", "--bootstrap", tools.bootstrap]]:  # fmt: skip
        assert offline(*flags).code == 0


# --- produce and consume -------------------------------------------------------------------------


def test_records_go_through_a_pipe_of_commands(tools):
    tools.topic("a", *[b"line %d" % number for number in range(20_000)])
    tools.topic("b")

    result = tools.shell("seglog consume a --exit-at-end | grep 99 | seglog produce b")

    expected = [b"line %d" % number for number in range(20_000) if "99" in str(number)]
    assert (result.code, result.err) == (0, f"wrote {len(expected)} records to b\n")
    assert tools.values("b") == expected


def test_a_reader_that_has_seen_enough_ends_consume_quietly(tools):
    tools.topic("long", *[b"x" * 100] * 20_000)

    result = tools.shell("seglog consume long --from earliest | head -n 2")

    assert result == (0, ("x" * 100 + "\n") * 2, "")


def test_files_and_standard_input_are_read_in_the_order_given(tools, tmp_path):
    tools.topic("files")
    (tmp_path / "one").write_bytes(b"1\n\n2")
    (tmp_path / "two").write_bytes(b"\xff\r\n")

    assert (
        tools("produce", "files", tmp_path / "one", "-", tmp_path / "two", given="in\n").code == 0
    )

    assert tools.values("files") == [b"1", b"", b"2", b"in", b"\xff\r"]


def test_a_slow_pipe_is_passed_on_line_by_line(tools):
    tools.topic("slow")
    with (
        SyncConsumer("slow", bootstrap=tools.bootstrap, start="earliest") as consumer,
        tools.start("produce", "slow") as process,
    ):
        assert process.stdin is not None
        for line in (b"one", b"two"):
            process.stdin.write(line + b"\n")
            process.stdin.flush()
            assert next(consumer).value == line  # before the input ends
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert err == b"wrote 2 records to slow\n"


def test_keys_headers_and_times_go_in_and_come_out(tools):
    tools.topic("rich", partitions=2)
    flags = ["--key-separator", r"\t", "--header", "from=test", "--compression", "zstd"]

    assert tools("produce", "rich", "--partition", "1", *flags, given="k1\tv1\nk2\tv2\n").code == 0

    shown = tools("consume", "rich", "--exit-at-end", "--format", r"%p %o %k\t%v %h 100%%")
    assert shown.out == "1 0 k1\tv1 from=test 100%\n1 1 k2\tv2 from=test 100%\n"
    times = tools("consume", "rich", "--exit-at-end", "--max", "1", "--format", "%t %T").out.split()
    assert abs(int(times[0]) / 1000 - time.time()) < 60
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", times[1])
    narrow = ["--filter", "key=k2", "--filter", "header:from=test", "--filter", "text=v"]
    assert tools("consume", "rich", "--exit-at-end", *narrow).out == "v2\n"


def test_what_consume_writes_as_json_produce_reads(tools):
    tools.topic("source")
    tools.topic("copy")
    lines: list[dict[str, object]] = [
        {"value": "text", "key": "k", "headers": {"h": "v"}, "timestamp": "2026-01-31T12:00:00Z"},
        {"value": base64.b64encode(b"\xff\0").decode(), "value_encoding": "base64"},
        {"key": "gone", "timestamp": 1_700_000_000_123, "partition": 0},
    ]
    given = "\n".join(map(json.dumps, lines))
    assert tools("produce", "source", "--format", "json", given=given).code == 0

    result = tools.shell(
        "seglog consume source --exit-at-end --output json | seglog produce copy --format json;"
        "seglog consume copy --exit-at-end --output json"
    )

    text, raw, tombstone = map(json.loads, result.out.splitlines())
    assert (text["key"], text["value"], text["headers"]) == ("k", "text", [["h", "v"]])
    assert (text["timestamp"], text["offset"]) == ("2026-01-31T12:00:00.000000Z", 0)
    assert (raw["value"], raw["value_encoding"]) == (lines[1]["value"], "base64")
    assert (tombstone["key"], tombstone["value"]) == ("gone", None)
    assert tombstone["timestamp"] == "2023-11-14T22:13:20.123000Z"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--from", "7", "--exit-at-end"], "789"),
        (["--from", "-2", "--exit-at-end"], "89"),
        (["--from", "2", "--to", "5"], "234"),
        (["--from", "1700000008000", "--to", "latest"], "89"),
        (["--to", "2023-11-14T22:13:22Z"], "01"),
        (["--from", "earliest", "--max", "3"], "012"),
    ],
)
def test_a_part_is_chosen_by_offset_count_or_time(tools, flags, expected):
    if not (tools.data / "topic-parts").exists():
        tools.topic("parts")
        start_us = 1_700_000_000_000_000
        times = [start_us + number * 1_000_000 for number in range(10)]
        tools.write("parts", *[b"%d" % number for number in range(10)], timestamps=times)

    assert tools("consume", "parts", *flags).out.split() == list(expected)


def test_following_goes_on_until_ctrl_c(tools):
    tools.topic("followed", b"old")
    with tools.start("consume", "followed", "--from", "earliest") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"old\n"
        tools.write("followed", b"new")
        assert process.stdout.readline() == b"new\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_a_group_goes_on_where_it_stopped(tools):
    tools.topic("grouped", *[b"%d" % number for number in range(6)])
    shared = ["consume", "grouped", "--group", "readers", "--from", "earliest"]

    assert tools(*shared, "--max", "2").out == "0\n1\n"
    assert tools(*shared, "--exit-at-end").out == "2\n3\n4\n5\n"
    assert tools(*shared, "--exit-at-end").out == ""


def test_a_bad_line_is_named_and_what_came_before_is_written(tools):
    tools.topic("lines")
    broken = '{"value": "good"}\n{"value": 5}\n'

    for given, flags, part in [
        (broken, ["--format", "json"], "line 2"),
        ("a=1\nb", ["--key-separator", "="], "line 2"),
    ]:
        assert_refused(tools("produce", "lines", *flags, given=given), 1, part)


def test_what_is_older_than_a_time_is_deleted_of_every_partition(tools):
    tools.topic("aged", partitions=2)
    times = [1_700_000_000_000_000 + number * 1_000_000 for number in range(4)]
    for partition in (0, 1):
        for number, time_us in enumerate(times):
            tools.write("aged", b"%d" % number, partition=partition, timestamps=[time_us])

    ambiguous = tools("records", "delete", "aged", "--before", "2", "--yes")
    assert_refused(ambiguous, 2, "--partition", "of which?")
    assert_refused(tools("records", "delete", "aged", "--before", "all"), 2, "--yes")
    told = tools("records", "delete", "aged", "--before", "2023-11-14T22:13:22Z", "--yes").err

    assert told.splitlines() == [f"aged/{n} starts at offset 2; it was 0" for n in (0, 1)]
    assert tools("records", "delete", "aged", "--before", "1700000000000", "-y").err == (
        "nothing of aged lies before that\n"
    )
    beyond = ["--partition", "0", "--before", "9"]
    assert_refused(tools("records", "delete", "aged", *beyond, "-y"), 3, "2 to 4", "no 9")


def test_a_batch_that_a_topic_does_not_take_is_told_with_what_helps(tools):
    tools.topic("narrow", max_batch_bytes=2000)
    lines = "".join(f"{number}\n" for number in range(1000))

    assert_refused(tools("produce", "narrow", given=lines), 1, "2000", "--batch-bytes", "alter")
    assert tools("produce", "narrow", "--batch-bytes", "1500", given=lines).code == 0
    assert tools.values("narrow") == lines.encode().split()
    assert_refused(tools("produce", "narrow", given="x" * 3000), 1, "2000", "max.batch.bytes=N")


def test_old_records_are_deleted(tools):
    tools.topic("old", *[b"%d" % number for number in range(10)])
    where = ["records", "delete", "old", "--partition", "0"]

    assert tools(*where, "--before", "4", "--yes").err == "old/0 starts at offset 4; it was 0\n"
    assert tools("consume", "old", "--exit-at-end", "--max", "1").out == "4\n"
    assert tools(*where, "--before", "all", "--yes").err == "old/0 starts at offset 10; it was 4\n"


# --- a terminal ----------------------------------------------------------------------------------


def test_a_terminal_gets_a_table_and_is_asked_and_is_not_steered(tools):
    tools.topic("seen", b"\x1b[31mred\x07 \xff")

    table = shown_on_terminal(tools, "topics", "list")
    assert "┃" in table
    assert "\x1b[1m" in table  # bold
    assert re.search(r"│ seen +│ +1 │", table)
    shown = shown_on_terminal(tools, "consume", "seen", "--exit-at-end")
    assert shown == "\\x1b[31mred\\x07 \\xff\r\n"
    asked = shown_on_terminal(tools, "topics", "delete", "seen", typed="n\n")
    assert "Delete seen with about 1 record?" in asked
    assert "seen\t1" in tools("topics", "list").out
    asked = shown_on_terminal(tools, "topics", "delete", "seen", typed="y\n")
    assert "deleted seen" in asked


# --- mistakes ------------------------------------------------------------------------------------


def test_a_broker_that_is_down_is_told_at_once(offline):
    for arguments in [["topics", "list"], ["consume", "x"], ["produce", "x"]]:
        assert_refused(offline(*arguments), 4, offline.bootstrap, "refused", "seglog serve")


def test_a_port_of_another_kind_of_server_is_told_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            for _ in range(2):  # one that looks whether anybody is there, one that says hello
                connection, _ = server.accept()
                with connection:
                    if connection.recv(1000):
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        tools = Tools(f"127.0.0.1:{server.getsockname()[1]}", Path())
        result = tools("topics", "list")
        thread.join(TIMEOUT_S)

    assert_refused(result, 4, tools.bootstrap, "HTTP", "Check the address")


@pytest.mark.parametrize(
    ("code", "arguments", "parts"),
    [
        (3, ["consume", "nope"], ["no topic nope", "seglog topics create"]),
        (3, ["produce", "nope"], ["no topic nope", "seglog topics create"]),
        (3, ["consume", "wrong", "--partition", "7"], ["1 partition,", "no 7"]),
        (3, ["consume", "wrong", "--from", "99"], ["offset 99", "0: 0 to 2", "topics describe"]),
        (2, ["topics", "create", "x", "--config", "retention=1"], ["retention", "retention.ms"]),
    ],
)
def test_a_mistake_that_the_broker_finds_is_told_in_one_line(tools, code, arguments, parts):
    if "wrong" in arguments and not (tools.data / "topic-wrong").exists():
        tools.topic("wrong", b"a", b"b")

    assert_refused(tools(*arguments, given="line\n"), code, *parts)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["consume", "t", "--from", "noon"], ["--from", "'noon'", "2026-01-31"]),
        (["consume", "t", "--to", "earliest"], ["--to", "'earliest'"]),
        (["consume", "t", "--format", "%x"], ["--format", "'%x'", "%k"]),
        (["consume", "t", "--filter", "k"], ["--filter", "header:NAME"]),
        (["consume", "t", "--group", "g", "--to", "5"], ["--group", "--to"]),
        (["produce", "t", "missing.txt"], ["missing.txt"]),
        (["produce", "t", "--header", "h"], ["--header", "NAME=VALUE"]),
        (["topics", "create", "x", "--config", "segment.bytes=no"], ["segment.bytes", "'no'"]),
        (["topics", "create", "x", "--config", "retention.ms"], ["--config", "KEY=VALUE"]),
        (["topics", "alter", "t"], ["nothing to change"]),
        (["records", "delete", "t", "--partition", "0", "--before", "x"], ["--before"]),
        (["segments", "t", "--verify"], ["--data"]),
        (["segments", ".", "--verify", "--dump"], ["one at a time"]),
        (["topics", "list", "--bootstrap", "host:port"], ["host:port"]),
    ],
)
def test_a_mistake_on_the_command_line_is_told_before_anything_is_begun(arguments, parts, capsys):
    code = run(arguments)  # here: a process each would only take longer
    assert_refused(Result(code, *capsys.readouterr()), 2, *parts)


# --- the document --------------------------------------------------------------------------------


def test_the_reference_is_made_from_the_code():
    found = re.search(
        r"<!-- generated: cli-reference -->\n(.*?)\n<!-- /generated -->", DOCUMENT, re.DOTALL
    )
    assert found
    assert found[1] == docs_cli.cli_reference(), "run scripts/update-docs"


def test_the_document_lists_every_exit_code():
    listed = set(map(int, re.findall(r"(?m)^\| (\d+) \|", DOCUMENT)))
    codes = {value for name, value in vars(exit_codes).items() if name.startswith("EXIT_")}
    assert listed == codes


def test_the_brokers_commands_of_the_readme_run_and_print_what_they_should(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    serve, *others = re.findall(r"(?m)^    (?:.*\| )?\.venv/bin/seglog .*$", text)
    found = Tools("", tmp_path)
    variables = {**found.environment, "SEGLOG_PORT": "0", "SEGLOG_LOG_LEVEL": "error"}
    with subprocess.Popen(
        ["sh", "-c", "exec " + serve.strip().removeprefix(".venv/bin/")],
        cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True,
    ) as broker:  # fmt: skip
        try:
            assert broker.stdout is not None
            address = broker.stdout.readline().removeprefix("listening on ").strip()
            tools = Tools(address, tmp_path)
            result = tools.shell("\n".join(others).replace(".venv/bin/", ""))
        finally:
            broker.terminate()
            assert broker.wait(TIMEOUT_S) == 0

    lines = result.out.splitlines()
    assert (result.code, sorted(lines[:2])) == (0, ["milk", "tea"]), result.err
    assert "billing" in result.out  # whose bookmark is behind both, wherever they went


@pytest.mark.timeout(300)  # a process for each of its lines
def test_the_examples_of_the_document_run_and_print_what_it_says(tools):
    found = re.search(r"```sh\n(.*?)```.*?```text\n(.*?)```", DOCUMENT, re.DOTALL)
    assert found
    with embedded_blocking() as broker:
        result = Tools(broker.bootstrap, broker.data).shell(found[1])

    assert (result.code, result.out) == (0, found[2]), result.err
