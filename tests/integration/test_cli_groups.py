"""`seglog groups` as a person runs it: lag, watching, resets that are shown first."""

import json
import re
import signal
from collections.abc import Iterator

import pytest

from seglog import SyncAdmin, SyncConsumer, embedded_blocking
from seglog.cli import run

from tests.commands import OnTerminal, Result, Tools, assert_refused, shown_on_terminal


@pytest.fixture(scope="module")
def tools(tmp_path_factory) -> Iterator[Tools]:
    data = tmp_path_factory.mktemp("data")
    with embedded_blocking(data) as broker:
        yield Tools(broker.bootstrap, data)


def group(tools: Tools, name: str, *, read: int, of: int = 10) -> str:
    """A topic of that name with one partition, and a group of that name that has read some."""
    tools.topic(name, *[b"%d" % number for number in range(of)])
    with SyncAdmin(tools.bootstrap) as admin:
        admin.commit_offsets(name, {(name, 0): read})
    return name


def bookmark(tools: Tools, name: str) -> int:
    with SyncAdmin(tools.bootstrap) as admin:
        (found,) = admin.fetch_offsets(name).values()
    return found.offset


def test_lag_is_shown_in_records_and_in_seconds(tools):
    group(tools, "lagging", read=4)

    listed = next(
        line.split("\t")
        for line in tools("groups", "list").out.splitlines()
        if line.startswith("lagging\t")
    )
    name, state, members, records, seconds, unknown = listed
    assert (name, state, members, records, unknown) == ("lagging", "empty", "0", "6", "0")
    assert re.fullmatch(r"\d+\.\d{3}", seconds)
    lines = [line.split("\t") for line in tools("groups", "describe", "lagging").out.splitlines()]
    assert [line[0] for line in lines] == ["group", "partition"]
    assert lines[1][:7] == ["partition", "lagging", "0", "4", "0", "10", "6"]
    found = json.loads(tools("--output", "json", "groups", "describe", "lagging").out)
    (partition,) = found["partitions"]
    assert (partition["offset"], partition["lag_records"]) == (4, 6)
    assert partition["lag_seconds"] >= float(seconds)  # it was asked later
    assert found["lag"]["records"] == found["lag_by_topic"]["lagging"]["records"] == 6
    (mine,) = [
        each
        for each in json.loads(tools("groups", "list", "--output", "json").out)
        if each["group"] == "lagging"
    ]
    assert mine["lag"]["records"] == 6


def test_members_are_shown_with_what_they_own_and_hold_a_group(tools):
    tools.topic("owned", b"x", partitions=2)
    with SyncConsumer(
        "owned", bootstrap=tools.bootstrap, group="owned", start="earliest"
    ) as member:
        assert member.getmany(1)

        found = json.loads(tools("groups", "describe", "owned", "--output", "json").out)
        (shown,) = found["members"]
        assert shown["owned"] == [["owned", 0], ["owned", 1]]
        assert {each["owner"] for each in found["partitions"]} == {shown["member_id"]}
        lines = tools("groups", "describe", "owned").out.splitlines()
        assert [line.split("\t")[0] for line in lines] == [
            "group", "member", "partition", "partition",
        ]  # fmt: skip
        moved = tools("groups", "reset", "owned", "--to", "latest", "--yes")
        assert (moved.code, "Stop the group's consumers" in moved.err) == (5, True)
        assert_refused(tools("groups", "delete", "owned", "--yes"), 5, "members")

    assert tools("groups", "delete", "owned", "--yes").err == "deleted owned\n"
    assert_refused(tools("groups", "describe", "owned"), 3, "owned", "seglog groups list")


def test_a_reset_is_shown_first_and_done_when_told(tools):
    group(tools, "moved", read=7)

    shown = tools("groups", "reset", "moved", "--by", "-3")
    assert shown.out == "moved\t0\t7\t4\t-3\n"
    assert "nothing was changed" in shown.err
    assert bookmark(tools, "moved") == 7

    nobody = tools("groups", "reset", "moved", "--by", "-3", "--execute")
    assert (nobody.code, bookmark(tools, "moved")) == (2, 7)

    asked = shown_on_terminal(
        tools, "groups", "reset", "moved", "--by", "-3", "--execute", typed="n\n"
    )
    assert "nothing was changed" in asked
    assert bookmark(tools, "moved") == 7
    asked = shown_on_terminal(
        tools, "groups", "reset", "moved", "--by", "-3", "--execute", typed="y\n"
    )
    assert "moved 1 bookmark of moved" in asked
    assert bookmark(tools, "moved") == 4

    assert tools("groups", "reset", "moved", "--by", "-3", "--yes").code == 0
    assert bookmark(tools, "moved") == 1
    assert "there already" in tools("groups", "reset", "moved", "--by", "0", "--yes").err


def test_bookmarks_go_to_a_place_a_time_or_another_groups(tools):
    tools.topic("places", partitions=2)
    times = [1_700_000_000_000_000 + number * 1_000_000 for number in range(6)]
    for number in (0, 1):
        values = [b"%d" % value for value in range(6)]
        tools.write("places", *values, partition=number, timestamps=times)
    with SyncAdmin(tools.bootstrap) as admin:
        admin.commit_offsets("other", {("places", 0): 5, ("places", 1): 1})

    def planned(*flags: str) -> list[list[int | None]]:
        done = tools("groups", "reset", "places", *flags, "--output", "json")
        assert done.code == 0, done.err
        return [[each["from_offset"], each["to_offset"]] for each in json.loads(done.out)]

    topic = ["--topic", "places"]
    assert planned("--to", "latest", *topic, "--yes") == [[None, 6], [None, 6]]
    assert planned("--to", "earliest") == [[6, 0], [6, 0]]
    assert planned("--to", "3") == [[6, 3], [6, 3]]
    assert planned("--to", "2023-11-14T22:13:22Z") == [[6, 2], [6, 2]]
    assert planned("--like", "other") == [[6, 5], [6, 1]]
    assert planned("--to", "earliest", "--partition", "places/1") == [[6, 0]]


def test_watching_writes_every_round_in_a_pipe(tools):
    group(tools, "watched", read=1)
    looks = ["--count", "2", "--every", "0.1"]

    lines = tools("groups", "describe", "watched", *looks).out.splitlines()
    assert [line.split("\t")[1] for line in lines] == ["group", "partition"] * 2
    assert all(re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z\t", line) for line in lines)
    rounds = tools("groups", "list", "--output", "json", *looks).out.splitlines()
    assert [sorted(json.loads(line)) for line in rounds] == [["found", "time"]] * 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_watched_table_changes_in_place_and_leaves_the_terminal_as_it_was(tools, number, code):
    name = group(tools, f"live-{code}", read=10)
    with OnTerminal(tools, "groups", "describe", name, "--watch", "--every", "0.1") as terminal:
        terminal.read_until("│")
        tools.write(name, *[b"x"] * 4321)
        terminal.read_until("4,321")
        assert "\x1b[?25l" in terminal.shown  # the cursor is hidden …
        terminal.process.send_signal(number)
        assert terminal.end() == code
        assert "Traceback" not in terminal.shown
        assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")  # … and back


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["reset", "g"], ["--to, --by or --like"]),
        (["reset", "g", "--to", "latest", "--by", "3"], ["give one of them"]),
        (["reset", "g", "--to", "noon"], ["--to", "'noon'"]),
        (["reset", "g", "--to", "-5"], ["--to", "--by -N"]),
        (["reset", "g", "--to", "latest", "--partition", "t"], ["--partition", "TOPIC/N"]),
        (["list", "--every", "0"], ["--every"]),
    ],
)
def test_a_mistake_is_told_in_one_line(arguments, parts, capsys):
    code = run(["groups", *arguments])
    assert_refused(Result(code, *capsys.readouterr()), 2, *parts)


def test_a_group_that_is_not_there_is_told(tools):
    for arguments in [
        ["describe", "no"],
        ["delete", "no", "-y"],
        ["reset", "no", "--to", "latest"],
    ]:
        assert_refused(tools("groups", *arguments), 3, "seglog groups list")
    assert tools("groups", "delete", "no", "--yes", "--if-exists").code == 0
