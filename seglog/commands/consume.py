"""`seglog consume`: the records of a topic, as text or as JSON, a line each."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import msgspec
import typer

from ..protocol.errors import NotOwner, StaleMemberEpoch, UnknownMember, UnknownPartition
from .common import (
    LEAST_EPOCH_MS,
    Bootstrap,
    Output,
    iso_time,
    on_terminal,
    parse_time,
    reach,
    say,
)

if TYPE_CHECKING:
    from ..client.blocking import SyncAdmin, SyncConsumer
    from ..protocol.records import Record

RECORDS_AT_ONCE: Final = 5000
#: How long to wait for records before looking whether the end was reached without one: compaction
#: may have taken the last ones.
LOOK_S: Final = 0.2

_STANDARD_OUTPUT: Final = 1
_CONTROLS: Final = {
    code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))
}

Write = Callable[["Record"], bytes]
Test = Callable[["Record"], bool]


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="earliest|latest|OFFSET|-N|TIME",
            help="Where to begin. latest, or earliest with --exit-at-end or --to. -N: the last N "
            "of each partition.",
            show_default=False,
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="OFFSET|TIME|latest",
            help="Stop before this, in each partition. latest: what is there now.",
            show_default=False,
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Only this one. May be repeated.", show_default=False),
    ] = None,
    max_records: Annotated[
        int | None, typer.Option("--max", min=1, help="Stop after so many records.")
    ] = None,
    exit_at_end: Annotated[
        bool,
        typer.Option(
            "--exit-at-end/--follow", help="Stop at what was there at the start, or wait for more."
        ),
    ] = False,
    text_format: Annotated[
        str, typer.Option("--format", metavar="TEXT", help="What to write of a record; see above.")
    ] = "%v",
    output: Annotated[
        Output, typer.Option(help="table: as --format says. json: an object a line.")
    ] = Output.table,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Share the topic with the others of this group and go on where it stopped; --from "
            "counts where it has not read yet. What was written out is committed.",
            show_default=False,
        ),
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="key=…|header:NAME=…|text=…",
            help="Only records with this key, this header, or this text in the value. May be "
            "repeated; then all must hold.",
            show_default=False,
        ),
    ] = None,
    bootstrap: Bootstrap = "",
) -> None:
    r"""Print the records of a topic, a line each.

    --format: %k key, %v value, %o offset, %p partition, %t time in milliseconds, %T time as ISO
    8601, %h headers, %% a percent sign; \t a tab, \n a new line. A line ends with a new line.

    TIME is ISO 8601 (UTC if it names no zone) or milliseconds since 1970. A whole number is an
    offset; from 10^12 on it is milliseconds.

    JSON: topic, partition, offset, timestamp, key, value, headers (pairs). Bytes that are not UTF-8
    are base64, and a field says so: "value_encoding": "base64".

    On a terminal control characters are shown as \x1b and the like.
    """
    first = None if start is None else parse_place(start, "--from")
    last = None if end is None else parse_place(end, "--to")
    if last is not None and last.kind in ("earliest", "last"):
        raise typer.BadParameter(f"{end!r} cannot be an end", param_hint="--to")
    if group is not None and (partition or last is not None):
        raise typer.BadParameter(
            "the group decides what is read: leave out --partition and --to", param_hint="--group"
        )
    write = json_line if output is Output.json else text_line(text_format, safe=on_terminal())
    tests = [parse_filter(text) for text in filters or ()]
    if first is None:
        first = Place("earliest" if exit_at_end or last is not None else "latest")
    from ..client.blocking import SyncAdmin, SyncConsumer  # noqa: PLC0415 - only clients need it

    reach(bootstrap)
    with SyncAdmin(bootstrap, client_name="seglog-cli") as admin:
        ranges = find_ranges(admin, topic, partition)
        starts = find_starts(admin, topic, first, ranges)
        ends = find_ends(admin, topic, last, exit_at_end, ranges)
    options: dict[str, Any] = {"bootstrap": bootstrap, "client_name": "seglog-cli"}
    if group is not None:
        options |= {"group": group, "auto_commit": False}  # committed here, after it is out
    if partition:
        options["assign"] = [(topic, number) for number in ranges]
    else:
        options["topics"] = topic  # also those that are added meanwhile
    begin = {(topic, number): offset for number, offset in starts.items()}
    with SyncConsumer(start=begin, **options) as consumer:
        reading: Reading
        if group is None:
            reading = Reading(consumer, topic, starts, ends, max_records)
        else:
            reading = SharedReading(consumer, topic, ends, max_records)
        try:
            reading.run(write, tests)
        except BrokenPipeError:
            pass  # whoever read has seen enough: an end like any other


class Reading:
    """From the starts to the ends, where there are ends."""

    def __init__(
        self,
        consumer: SyncConsumer,
        topic: str,
        starts: Mapping[int, int],
        ends: Mapping[int, int] | None,
        max_records: int | None,
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._ends = ends
        #: Partitions whose end is not reached.
        self._open = {n: end for n, end in (ends or {}).items() if starts.get(n, 0) < end}
        self._left = max_records

    def run(self, write: Write, tests: list[Test]) -> None:
        timeout = None if self._ends is None else LOOK_S
        while not self._is_at_end():
            taken = self._consumer.getmany(self._most(), timeout)
            wanted = [
                record
                for record in taken
                if self._is_wanted(record) and all(test(record) for test in tests)
            ]
            wanted = wanted[: self._left]
            if wanted:
                write_all(b"".join(map(write, wanted)))
            self._note(taken)
            if self._left is not None:
                self._left -= len(wanted)
                if not self._left:
                    return

    def _most(self) -> int:
        return RECORDS_AT_ONCE

    def _is_at_end(self) -> bool:
        return self._ends is not None and not self._open

    def _is_wanted(self, record: Record) -> bool:
        return self._ends is None or record.offset < self._ends.get(record.partition, -1)

    def _note(self, taken: list[Record]) -> None:
        """Strike off the partitions that are read to their end."""
        if self._ends is None:
            return
        if taken:
            reached = {r.partition: r.offset + 1 for r in taken}  # the last one of each counts
        else:
            reached = {n: self._consumer.position(self._topic, n) for n in self._open}
        for number, position in reached.items():
            if number in self._open and position >= self._open[number]:
                del self._open[number]
                if self._open:
                    self._consumer.pause((self._topic, number))


class SharedReading(Reading):
    """As a member of a group: which partitions are read is the group's affair. What is written out
    is committed then, so after a crash some records come again, and none is missed."""

    def __init__(
        self,
        consumer: SyncConsumer,
        topic: str,
        ends: Mapping[int, int] | None,
        max_records: int | None,
    ) -> None:
        super().__init__(consumer, topic, {}, ends, max_records)

    def _most(self) -> int:
        """No more than may be written: what was taken and dropped would be lost to the group."""
        return RECORDS_AT_ONCE if self._left is None else min(RECORDS_AT_ONCE, self._left)

    def _is_at_end(self) -> bool:
        """Whether there is nothing left, up to the ends, in the partitions that are ours now."""
        if self._ends is None:
            return False
        try:
            positions = {n: self._consumer.position(t, n) for t, n in self._consumer.assignment}
        except UnknownPartition:
            return False  # given to another in this moment
        return bool(positions) and all(
            position >= self._ends.get(number, 0) for number, position in positions.items()
        )

    def _is_wanted(self, record: Record) -> bool:
        return True

    def _note(self, taken: list[Record]) -> None:
        if not taken:
            return
        try:
            self._consumer.commit({(r.topic, r.partition): r.offset + 1 for r in taken})
        except (NotOwner, StaleMemberEpoch, UnknownMember) as error:
            say(f"{error.what}: the new owner reads these records again")


def write_all(data: bytes) -> None:
    """To standard output, past Python's buffer: nothing is left to fail at the exit."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(_STANDARD_OUTPUT, rest) :]


# --- places --------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A place in the log as a flag names it; `number` is an offset, a count or microseconds."""

    kind: Literal["earliest", "latest", "offset", "last", "time"]
    number: int = 0


def parse_place(text: str, flag: str) -> Place:
    if text == "earliest":
        return Place("earliest")
    if text == "latest":
        return Place("latest")
    if re.fullmatch(r"-\d{1,18}", text, re.ASCII):
        return Place("last", int(text[1:]))
    if re.fullmatch(r"\d{1,18}", text, re.ASCII):
        number = int(text)
        if number >= LEAST_EPOCH_MS:
            return Place("time", number * 1000)
        return Place("offset", number)
    time_us = parse_time(text)
    if time_us is None:
        raise typer.BadParameter(
            f"{text!r} is no offset and no time such as 2026-01-31T12:00:00Z", param_hint=flag
        )
    return Place("time", time_us)


def find_ranges(
    admin: SyncAdmin, topic: str, partitions: list[int] | None
) -> dict[int, tuple[int, int]]:
    """The log start and the durable end of each partition that is read."""
    starts = admin.list_offsets(topic, "earliest")
    for number in partitions or ():
        if number not in starts:
            raise UnknownPartition(f"{topic} has {len(starts)} partitions, there is no {number}")
    wanted = sorted(set(partitions)) if partitions else sorted(starts)
    ends = admin.list_offsets(topic, "latest", wanted)
    return {number: (starts[number].offset, ends[number].offset) for number in wanted}


def find_starts(
    admin: SyncAdmin, topic: str, place: Place, ranges: Mapping[int, tuple[int, int]]
) -> dict[int, int]:
    match place.kind:
        case "earliest":
            return {number: start for number, (start, _) in ranges.items()}
        case "latest":
            return {number: end for number, (_, end) in ranges.items()}
        case "last":
            return {n: max(start, end - place.number) for n, (start, end) in ranges.items()}
        case "offset":
            if not any(start <= place.number <= end for start, end in ranges.values()):
                told = ", ".join(f"{n}: {start} to {end}" for n, (start, end) in ranges.items())
                raise typer.BadParameter(
                    f"no partition of {topic} has offset {place.number} (there are {told}). "
                    "Give one of these, earliest or latest.",
                    param_hint="--from",
                )
            return {n: min(max(place.number, start), end) for n, (start, end) in ranges.items()}
        case "time":
            return _at_time(admin, topic, place.number, ranges)


def find_ends(
    admin: SyncAdmin,
    topic: str,
    place: Place | None,
    exit_at_end: bool,
    ranges: Mapping[int, tuple[int, int]],
) -> dict[int, int] | None:
    """Before which offset to stop in each partition; None: nowhere."""
    now = {number: end for number, (_, end) in ranges.items()}
    if place is None:
        return now if exit_at_end else None
    if place.kind == "latest":
        return now
    if place.kind == "time":
        return _at_time(admin, topic, place.number, ranges)
    return {n: min(place.number, end) if exit_at_end else place.number for n, end in now.items()}


def _at_time(
    admin: SyncAdmin, topic: str, time_us: int, ranges: Mapping[int, tuple[int, int]]
) -> dict[int, int]:
    """The first record of that time or later, else the end."""
    found = admin.list_offsets(topic, max(time_us, 0), ranges)
    return {n: each.offset if each.offset >= 0 else ranges[n][1] for n, each in found.items()}


# --- filters -------------------------------------------------------------------------------------


def parse_filter(text: str) -> Test:
    """A plain comparison; nothing in it is evaluated."""
    what, equals, wanted_text = text.partition("=")
    wanted = wanted_text.encode(errors="surrogateescape")
    if equals and what == "key":
        return lambda record: record.key == wanted
    if equals and what == "text":
        return lambda record: record.value is not None and wanted in record.value
    if equals and what.startswith("header:"):
        pair = (what.removeprefix("header:"), wanted)
        return lambda record: pair in record.headers
    raise typer.BadParameter(
        f"{text!r} is not key=…, header:NAME=… or text=…", param_hint="--filter"
    )


# --- writing -------------------------------------------------------------------------------------


def text_line(text: str, *, safe: bool) -> Write:
    """A function that writes a record as `--format` says; `safe`: for a terminal."""
    clean = _for_terminal if safe else _as_it_is
    fields: dict[str, Write] = {
        "k": lambda record: clean(record.key),
        "v": lambda record: clean(record.value),
        "o": lambda record: b"%d" % record.offset,
        "p": lambda record: b"%d" % record.partition,
        "t": lambda record: b"%d" % (record.timestamp_us // 1000),
        "T": lambda record: iso_time(record.timestamp_us).encode(),
        "h": lambda record: b",".join(
            clean(name.encode()) + b"=" + clean(value) for name, value in record.headers
        ),
    }
    if text == "%v" and not safe:
        return lambda record: (record.value or b"") + b"\n"
    escapes = {r"\t": b"\t", r"\n": b"\n", r"\\": b"\\", "%%": b"%"}
    parts: list[bytes | Write] = []
    for piece in re.split(r"(%.?|\\[tn\\])", text, flags=re.DOTALL):
        if piece in escapes:
            parts.append(escapes[piece])
        elif not piece.startswith("%"):
            parts.append(piece.encode(errors="surrogateescape"))
        elif piece[1:] in fields:
            parts.append(fields[piece[1:]])
        else:
            known = " ".join(f"%{name}" for name in fields)
            raise typer.BadParameter(
                f"{piece!r} means nothing; there are {known} %%", param_hint="--format"
            )
    parts.append(b"\n")
    return lambda record: b"".join(
        part if isinstance(part, bytes) else part(record) for part in parts
    )


def _as_it_is(data: bytes | None) -> bytes:
    return data or b""


def _for_terminal(data: bytes | None) -> bytes:
    """What a record holds must not steer the terminal."""
    return (data or b"").decode(errors="backslashreplace").translate(_CONTROLS).encode()


def json_line(record: Record) -> bytes:
    shown: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": iso_time(record.timestamp_us),
    }
    for name, data in (("key", record.key), ("value", record.value)):
        shown[name], encoding = _json_text(data)
        if encoding:
            shown[f"{name}_encoding"] = encoding
    shown["headers"] = [_json_header(*pair) for pair in record.headers]
    return msgspec.json.encode(shown) + b"\n"


def _json_text(data: bytes | None) -> tuple[str | None, str | None]:
    """Text, or base64 and the word that says so."""
    if data is None:
        return None, None
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return base64.b64encode(data).decode("ascii"), "base64"


def _json_header(name: str, data: bytes | None) -> list[str | None]:
    text, encoding = _json_text(data)
    return [name, text, encoding] if encoding else [name, text]
