"""`seglog produce`: lines from files or standard input become records.

What has come in one read is sent together, so a slow pipe is passed on at once and a fast one in
bulk. Memory is bounded by the producer's buffer, one read, and one line.
"""

from __future__ import annotations

import base64
import binascii
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

import msgspec
import typer

from ..protocol.constants import MAX_BATCH_BYTES
from ..protocol.errors import SeglogError
from .common import Bootstrap, counted, parse_time, reach, say

if TYPE_CHECKING:
    from ..client.blocking import SyncBulkDelivery, SyncProducer

READ_BYTES: Final = 1 << 20
MAX_LINE_BYTES: Final = MAX_BATCH_BYTES
MAX_UNSETTLED: Final = 1000  # sends whose answer is looked at later

Pairs = list[tuple[str, bytes | None]]


class Compression(StrEnum):
    none = "none"
    zstd = "zstd"
    lz4 = "lz4"


class InputFormat(StrEnum):
    raw = "raw"
    json = "json"


class Columns(NamedTuple):
    """Records of one partition (None: the producer chooses), as `send_batch` takes them."""

    partition: int | None
    values: list[bytes | None]
    keys: list[bytes | None] | None
    headers: list[Pairs] | None
    timestamps: list[int] | None


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
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
    for path in files or ():
        if str(path) != "-" and not path.exists():
            raise typer.BadParameter(f"there is no file {path}", param_hint="FILES")
    from ..client.blocking import SyncProducer  # noqa: PLC0415 - other commands need no client

    with SyncProducer(
        reach(bootstrap), compression=compression.value, client_name="seglog-cli"
    ) as producer:
        sending = Sending(producer, topic)
        try:
            for source in files or [Path("-")]:
                for where, lines in _read(source):
                    if input_format is InputFormat.json:
                        parts = json_columns(where, lines, headers, partition)
                    else:
                        parts = [raw_columns(where, lines, headers, separator, partition)]
                    sending.send(parts)
            sending.finish()
        except SeglogError as error:
            sending.settle_quietly()
            error.what += f" ({counted(sending.written, 'record')} written before)"
            raise
        except KeyboardInterrupt:
            sending.settle_quietly()
            say(f"interrupted: wrote {counted(sending.written, 'record')} to {topic}")
            raise
    say(f"wrote {counted(sending.written, 'record')} to {topic}")


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


# --- lines ---------------------------------------------------------------------------------------


class Where(NamedTuple):
    """Where lines begin, for messages."""

    source: str
    first_line: int

    def line(self, index: int) -> str:
        return f"{self.source}, line {self.first_line + index}"


def _read(path: Path) -> Iterator[tuple[Where, list[bytes]]]:
    if str(path) == "-":
        yield from split_lines("standard input", sys.stdin.buffer)
        return
    with path.open("rb") as file:
        yield from split_lines(str(path), file)


def split_lines(source: str, file: IO[bytes]) -> Iterator[tuple[Where, list[bytes]]]:
    """The lines that each read completes; the last one may lack its newline."""
    number = 1
    begun: list[bytes] = []  # of a line that is not complete yet
    begun_bytes = 0
    read = getattr(file, "read1", file.read)  # read1: what is there, without waiting for more
    while data := read(READ_BYTES):
        head, newline, tail = data.rpartition(b"\n")
        if newline:
            lines = b"".join([*begun, head]).split(b"\n")
            yield Where(source, number), lines
            number += len(lines)
            begun, begun_bytes = [], 0
        if tail:
            begun.append(tail)
            begun_bytes += len(tail)
            if begun_bytes > MAX_LINE_BYTES:
                raise SeglogError(
                    f"{source}, line {number}: longer than {MAX_LINE_BYTES} bytes, which no batch "
                    "holds. Split it, or keep it elsewhere and send where it is"
                )
    if begun:
        yield Where(source, number), [b"".join(begun)]


def raw_columns(
    where: Where, lines: list[bytes], headers: Pairs, separator: bytes | None, partition: int | None
) -> Columns:
    """A value a line, or a key and a value."""
    values: list[bytes | None] = list(lines)
    keys: list[bytes | None] | None = None
    if separator is not None:
        keys = []
        for index, line in enumerate(lines):
            key, found, value = line.partition(separator)
            if not found:
                raise SeglogError(
                    f"{where.line(index)}: no {separator.decode(errors='replace')!r} in it. "
                    "Correct the line, or --key-separator"
                )
            keys.append(key)
            values[index] = value
    return Columns(partition, values, keys, [headers] * len(lines) if headers else None, None)


# --- JSON ----------------------------------------------------------------------------------------

Encoding = Literal["base64"] | None


class JsonLine(msgspec.Struct):
    value: str | None = None
    key: str | None = None
    headers: dict[str, str | None] | list[list[str | None]] | None = None
    timestamp: int | str | None = None
    partition: int | None = None
    value_encoding: Encoding = None
    key_encoding: Encoding = None


_decoder = msgspec.json.Decoder(JsonLine)


def json_columns(
    where: Where, lines: list[bytes], headers: Pairs, partition: int | None
) -> list[Columns]:
    """The records of these lines, by the partition that they name."""
    now_us = time.time_ns() // 1000
    found: dict[int | None, Columns] = {}
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            record = _decoder.decode(line)
            number = record.partition if partition is None else partition
            part = found.setdefault(number, Columns(number, [], [], [], []))
            value = _cell(record.value, record.value_encoding)
            key = _cell(record.key, record.key_encoding)
            pairs = headers + _pairs(record)
            time_us = now_us if record.timestamp is None else _microseconds(record.timestamp)
        except (msgspec.DecodeError, ValueError) as error:
            raise SeglogError(
                f"{where.line(index)}: {error}. Correct the line; seglog produce --help says what "
                "it may hold"
            ) from None
        assert part.keys is not None
        assert part.headers is not None
        assert part.timestamps is not None
        part.values.append(value)
        part.keys.append(key)
        part.headers.append(pairs)
        part.timestamps.append(time_us)
    return [part for part in found.values() if part.values]


def _cell(text: str | None, encoding: str | None) -> bytes | None:
    if text is None:
        return None
    if encoding is None:
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None


def _pairs(record: JsonLine) -> Pairs:
    given = record.headers
    if given is None:
        return []
    if isinstance(given, dict):
        return [(name, _cell(value, None)) for name, value in given.items()]
    pairs: Pairs = []
    for entry in given:
        name, value, encoding = (*entry, None, None, None)[:3]
        if name is None or len(entry) not in (2, 3) or encoding not in (None, "base64"):
            raise ValueError('a header must be ["name", "value"] or ["name", "…", "base64"]')
        pairs.append((name, _cell(value, encoding)))
    return pairs


def _microseconds(timestamp: int | str) -> int:
    if isinstance(timestamp, int):
        return timestamp * 1000
    time_us = parse_time(timestamp)
    if time_us is None:
        raise ValueError(f"timestamp {timestamp!r} is neither ISO 8601 nor milliseconds")
    return time_us


# --- flags ---------------------------------------------------------------------------------------


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--header")
    return name, value.encode(errors="surrogateescape")


def _unescaped(text: str) -> bytes:
    plain = text.replace(r"\t", "\t").replace(r"\0", "\0").replace(r"\\", "\\")
    return plain.encode(errors="surrogateescape")
