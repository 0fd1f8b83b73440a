"""`seglog produce`: lines from files or standard input become records.

    input_lines   reads become lines, lines become columns
    json_input    … or are JSON
    here          columns go to the producer, and what the broker has is counted

Memory is bounded by the producer's buffer, one read, and one line.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ..protocol.errors import SeglogError, UnknownPartition
from .common import Bootstrap, counted, reach, say
from .completion import complete_topic
from .input_lines import STANDARD_INPUT, Columns, Lines, raw_columns, read_lines
from .interrupts import Interrupts, Terminated
from .json_input import json_columns
from .progress import Progress

if TYPE_CHECKING:
    from ..client.blocking import SyncBulkDelivery, SyncProducer

MAX_UNSETTLED: Final = 1000  # sends whose answer is looked at later


class Compression(StrEnum):
    none = "none"
    zstd = "zstd"
    lz4 = "lz4"


class InputFormat(StrEnum):
    raw = "raw"
    json = "json"


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topic)],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILES", help="Standard input if none is given, or as -."),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help=r"A line is a key, this, and a value. \t is a tab.",
            show_default=False,
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="For every record. May be repeated.", show_default=False
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="To this one; else the key decides.")
    ] = None,
    compression: Annotated[Compression, typer.Option()] = Compression.none,
    batch_bytes: Annotated[
        int | None,
        typer.Option(
            min=1024,
            help="Send at most so much together: no more than max.batch.bytes of the topic.",
            show_default=False,
        ),
    ] = None,
    input_format: Annotated[
        InputFormat,
        typer.Option("--format", help="raw: a line is a value. json: a line is an object."),
    ] = InputFormat.raw,
    bootstrap: Bootstrap = "",
) -> None:
    """Write a record for each line of files or of standard input.

    With --format json a line is an object of "value", "key" (text or null), "headers" (an object,
    or a list of pairs), "timestamp" (ISO 8601, or milliseconds) and "partition"; each may be
    missing. "value_encoding": "base64" is for bytes that are not text; "key_encoding" likewise.
    That is what consume --output json writes.

    Standard error says how many records were written. A record counts once the broker has it.
    """
    headers = [_header(text) for text in header or ()]
    separator = None if key_separator is None else _unescaped(key_separator)
    if separator == b"":
        raise typer.BadParameter("it must not be empty", param_hint="--key-separator")
    if input_format is InputFormat.json and separator is not None:
        raise typer.BadParameter("a JSON line names its key", param_hint="--key-separator")
    sources = files or [STANDARD_INPUT]
    for path in sources:
        _check_file(path)

    def to_columns(found: Lines) -> list[Columns]:
        if input_format is InputFormat.json:
            return json_columns(found, headers, partition)
        return [raw_columns(found, headers, separator, partition)]

    from ..client.blocking import SyncProducer  # noqa: PLC0415 - other commands need no client

    reach(bootstrap)
    options: dict[str, Any] = {"compression": compression.value, "client_name": "seglog-cli"}
    if batch_bytes is not None:
        options["batch_bytes"] = batch_bytes
    with Interrupts() as interrupts, ExitStack() as stack:
        with interrupts.allowed():
            producer = stack.enter_context(SyncProducer(bootstrap, **options))
            _check_topic(producer, topic, partition)
        written = _send_all(Sending(producer, topic), topic, sources, to_columns, interrupts)
    say(f"wrote {counted(written, 'record')} to {topic}")


def _send_all(
    sending: Sending,
    topic: str,
    sources: list[Path],
    to_columns: Callable[[Lines], list[Columns]],
    interrupts: Interrupts,
) -> int:
    """How many records the broker has; where something ends it early, that is told as well."""
    if STANDARD_INPUT in sources and sys.stdin.isatty():
        say("type a line for each record; Ctrl-D ends")
    in_bytes = STANDARD_INPUT not in sources
    try:
        with _progress(topic, sources) as progress:
            for found in (each for path in sources for each in read_lines(path, interrupts)):
                sending.send(to_columns(found))
                progress.advance(found.size_bytes if in_bytes else len(found.lines))
            sending.finish()
    except SeglogError as error:
        sending.settle_quietly()
        error.what += f" ({counted(sending.written, 'record')} written before)"
        raise
    except (KeyboardInterrupt, Terminated):
        sending.settle_quietly()
        say(f"interrupted: wrote {counted(sending.written, 'record')} to {topic}")
        raise
    return sending.written


def _check_file(path: Path) -> None:
    if path == STANDARD_INPUT:
        return
    if not path.exists():
        raise typer.BadParameter(f"there is no file {path}", param_hint="FILES")
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder, not a file", param_hint="FILES")


def _check_topic(producer: SyncProducer, topic: str, partition: int | None) -> None:
    """Before anything is read: whoever types lines wants to know at once."""
    count = producer.partitions_for(topic)
    if partition is not None and partition >= count:
        raise UnknownPartition.beyond(topic, partition, count)


def _progress(topic: str, sources: list[Path]) -> Progress:
    """In bytes of files, whose size is known, or in records."""
    what = f"writing {topic}"
    if STANDARD_INPUT not in sources:
        return Progress(what, "bytes", sum(path.stat().st_size for path in sources))
    is_typed = sys.stdin.isatty()
    return Progress(what, "records", None, is_shown=sys.stderr.isatty() and not is_typed)


class Sending:
    """Hands columns to the producer and counts what the broker has."""

    def __init__(self, producer: SyncProducer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._unsettled: deque[SyncBulkDelivery] = deque()
        self.written = 0

    def send(self, parts: Iterable[Columns]) -> None:
        for part in parts:
            self._unsettled.append(
                self._producer.send_batch(
                    self._topic, part.values, part.keys, part.partition, part.headers,
                    part.timestamps,
                )
            )  # fmt: skip
        while self._unsettled and (
            self._unsettled[0].is_done or len(self._unsettled) > MAX_UNSETTLED
        ):
            self._settle_one()

    def finish(self) -> None:
        while self._unsettled:
            self._settle_one()

    def settle_quietly(self) -> None:
        """After an error that is told: count what was written all the same."""
        while self._unsettled:
            try:
                self._settle_one()
            except SeglogError:
                continue

    def _settle_one(self) -> None:
        delivery = self._unsettled.popleft()
        delivery.result()
        self.written += delivery.record_count


# --- flags ---------------------------------------------------------------------------------------


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--header")
    return name, value.encode(errors="surrogateescape")


def _unescaped(text: str) -> bytes:
    plain = text.replace(r"\t", "\t").replace(r"\0", "\0").replace(r"\\", "\\")
    return plain.encode(errors="surrogateescape")
