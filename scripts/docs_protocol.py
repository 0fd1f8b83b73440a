"""The parts of docs/protocol.md that are made from the code; scripts/update-docs fills them in.

The tables come from protocol/api.py, messages.py and errors.py. The dumps are frames that the code
encodes, cut into pieces with a note each; a piece that is missing or too many is an error here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from inspect import cleandoc
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import inspect as kinds

from seglog.protocol import api, constants, messages
from seglog.protocol.batch import encode_batch
from seglog.protocol.constants import PREFIX_BYTES
from seglog.protocol.errors import ERRORS, ClientError
from seglog.protocol.fetch_frame import FetchedPartition, fetch_response_parts
from seglog.protocol.frame import pack_frame
from seglog.protocol.header import pack_prefix

DOCUMENT: Final = Path(__file__).resolve().parents[1] / "docs" / "protocol.md"
PLACE: Final = re.compile(
    r"(?P<begin><!-- generated: (?P<name>protocol-[\w-]+) -->\n).*?(?P<end><!-- /generated -->)",
    re.DOTALL,
)
_BYTES_A_LINE: Final = 12


# --- the table of APIs, and every message ---


def api_table() -> str:
    rows = ["| key | api | versions |", "|---|---|---|"]
    for each in api.APIS.values():
        versions = f"{each.lowest_version}"
        if each.highest_version != each.lowest_version:
            versions += f" to {each.highest_version}"
        rows.append(f"| {each.key} | [`{each.name}`](#{_anchor(each)}) | {versions} |")
    return "\n".join(rows)


def _anchor(each: api.Api) -> str:
    return f"{each.name}-{each.key}"


def api_reference() -> str:
    return "\n\n".join(part for each in api.APIS.values() for part in _api(each))


def _api(each: api.Api) -> Iterator[str]:
    yield f"### {each.name} ({each.key})"
    yield from _message("Request", each.request)
    yield from _message("Response", each.response)


def _message(
    role: str, message: type[msgspec.Struct], *, seen: set[type] | None = None
) -> Iterator[str]:
    seen = set() if seen is None else seen
    seen.add(message)
    fields = msgspec.structs.fields(message)
    layout = ", ".join(field.name for field in fields)
    yield f"{role} `[{layout}]`"
    if message.__doc__:
        yield _described(message.__doc__)
    if fields:
        rows = ["| at | field | type | default |", "|---|---|---|---|"]
        rows += [
            f"| {at} | `{field.name}` | {_type(kinds.type_info(field.type))} | {_default(field)} |"
            for at, field in enumerate(fields)
        ]
        yield "\n".join(rows)
    for field in fields:
        for inner in _messages_in(kinds.type_info(field.type)):
            if inner is not messages.WireError and inner not in seen:
                yield from _message(f"Each of `{field.name}`:", inner, seen=seen)


def _described(docstring: str) -> str:
    """A docstring as Markdown: what is said of one field becomes a point of a list."""
    return re.sub(r"^(?=`\w+`: )", "- ", cleandoc(docstring), flags=re.MULTILINE)


def _messages_in(kind: kinds.Type) -> Iterator[type[msgspec.Struct]]:
    match kind:
        case kinds.StructType(cls=cls):
            yield cls
        case kinds.ListType(item_type=item):
            yield from _messages_in(item)
        case kinds.UnionType(types=types):
            for each in types:
                yield from _messages_in(each)


def _type(kind: kinds.Type) -> str:
    match kind:
        case kinds.Metadata(type=inner):
            return _type(inner)
        case kinds.IntType():
            return _range("int", *_bounds(kind))
        case kinds.StrType(min_length=low, max_length=high, pattern=pattern):
            text = _range("str", low, high, " characters")
            return f"{text}, matching `{pattern}`" if pattern else text
        case kinds.ListType(item_type=item, min_length=low, max_length=high):
            return _range(f"array of {_inner_type(item)}", low, high, " entries")
        case kinds.DictType(key_type=key, value_type=value, max_length=high):
            text = f"map of {_inner_type(key)} to {_inner_type(value)}"
            return _range(text, None, high, " entries")
        case kinds.UnionType(types=types):
            named = [_type(each) for each in types if not isinstance(each, kinds.NoneType)]
            return " or ".join([*named, *["nil"] * kind.includes_none])
        case kinds.StructType(cls=messages.WireError):
            return "[error](#errors)"
        case kinds.StructType(cls=cls):
            return f"`[{', '.join(field.name for field in msgspec.structs.fields(cls))}]`"
        case kinds.MemoryViewType():
            return "bin"
        case kinds.BoolType():
            return "bool"
    raise TypeError(f"nobody has said how to name {kind}")


def _inner_type(kind: kinds.Type) -> str:
    text = _type(kind)
    return f"({text})" if ", " in text and not text.startswith("`") else text


def _bounds(kind: kinds.IntType) -> tuple[int | None, int | None]:
    low = kind.gt + 1 if kind.gt is not None else kind.ge
    high = kind.lt - 1 if kind.lt is not None else kind.le
    return low, high


def _range(what: str, low: int | None, high: int | None, unit: str = "") -> str:
    if low is not None and high is not None:
        return f"{what}, {low} to {high}{unit}"
    if low is not None:
        return f"{what}, {low}{unit} or more"
    return what if high is None else f"{what}, at most {high}{unit}"


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return ""
    value: Any = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory()
    return "nil" if value is None else f"`{msgspec.json.encode(value).decode()}`"


# --- errors and numbers ---


def error_table() -> str:
    rows = ["| code | name | retry | what it means | what to do |", "|---|---|---|---|---|"]
    for code, kind in sorted(ERRORS.items()):
        if issubclass(kind, ClientError):  # a client's own: they never travel
            continue
        details = ", ".join(f"`{name}`" for name in kind("").details())
        meaning = " ".join(cleandoc(kind.__doc__ or "").split())
        retry = "yes" if kind.retriable else ""
        with_details = f" Details: {details}." if details else ""
        rows.append(
            f"| {code} | `{kind.wire_name()}` | {retry} | {meaning}{with_details} | {kind.advice} |"
        )
    return "\n".join(rows)


def fixed_numbers() -> str:
    """The limits that are the format's own: no setting changes them."""
    named = [
        ("MAX_BATCH_BYTES", "bytes of a stored batch, header included"),
        ("MAX_UNCOMPRESSED_BYTES", "bytes of a batch's columns, unpacked"),
        ("MAX_BATCH_RECORDS", "records in a batch"),
        ("MAX_TOPIC_NAME_LENGTH", "characters in a topic's name"),
        ("MAX_PARTITIONS_PER_TOPIC", "partitions of a topic"),
        ("MAX_ARRAY_LENGTH", "entries in an array of a request, unless its field says otherwise"),
        ("MAX_FETCH_WAIT_MS", "milliseconds that a fetch may wait"),
        ("MAX_CLIENT_NAME_LENGTH", "characters in a client's name"),
    ]
    rows = ["| at most | |", "|---|---|"]
    rows += [f"| {getattr(constants, name):,} | {meaning} |" for name, meaning in named]
    return "\n".join(rows)


# --- dumps ---

_AT_US: Final = 1_700_000_000_000_000
_BATCH: Final = bytes(
    encode_batch([b"hi", b"there"], [b"k", None], _AT_US, producer_id=12, base_sequence=0)
)
_STORED: Final = pack_prefix(41, _AT_US + 1500, len(_BATCH), 0) + _BATCH[PREFIX_BYTES:]

Pieces = Sequence[tuple[int, str]]

_HEADER_PIECES: Final[Pieces] = [
    (4, "crc32c of everything behind it"),
    (4, "format 1, codec 0 (none), flags 0"),
    (8, "record_count 2, offset_span 2"),
    (4, "base_sequence 0"),
    (8, "producer_id 12"),
    (8, "producer_epoch 0, uncompressed_length 50"),
    (8, "first_timestamp"),
    (8, "max_timestamp"),
]
_COLUMN_PIECES: Final[Pieces] = [
    (2, "columns: an array of 5; timestamps nil: all are first_timestamp"),
    (6, "keys: an array of 2; a bin of 8 bytes:"),
    (8, "  lengths 1 and -1 (null)"),
    (6, '  a bin of 1 byte: "k"'),
    (6, "values: an array of 2; a bin of 8 bytes:"),
    (8, "  lengths 2 and 5"),
    (5, "  a bin of 7 bytes:"),
    (7, '  "hi" "there"'),
    (2, "headers nil; offsets nil (only compacted batches have them)"),
]


def produce_request_frame() -> bytes:
    """Two records for partition 0 of `orders`."""
    batch = messages.ProduceBatch("orders", 0, memoryview(_BATCH))
    request = messages.ProduceRequest([batch])
    return b"".join(pack_frame([api.encode_request(api.PRODUCE, 7, request)]))


def produce_response_frame() -> bytes:
    response = messages.ProduceResponse([messages.ProduceResult(None, 41, _AT_US + 1500)])
    return b"".join(pack_frame([api.encode_response(7, response)]))


def fetch_request_frame() -> bytes:
    place = messages.FetchPartition("orders", 0, 41, 1_048_576, 0)
    request = messages.FetchRequest(500, 1, 4_194_304, [place])
    return b"".join(pack_frame([api.encode_request(api.FETCH, 8, request)]))


def fetch_response_frame() -> bytes:
    found = FetchedPartition(None, 0, 43, memoryview(_STORED))
    return b"".join(pack_frame(fetch_response_parts(8, [found])))


def dump_produce_request() -> str:
    return _dump(
        produce_request_frame(),
        [
            (1, "an array of 4: a request"),
            (3, "api 7 (produce), version 0, correlation_id 7"),
            (2, "body: an array of 1; batches: an array of 1"),
            (1, "an array of 3"),
            (7, 'topic "orders"'),
            (1, "partition 0"),
            (2, "batch: a bin of 130 bytes:"),
            (28, "  the broker's 28 bytes: zeros"),
            *((length, "  " + note) for length, note in [*_HEADER_PIECES, *_COLUMN_PIECES]),
        ],
    )


def dump_produce_response() -> str:
    return _dump(
        produce_response_frame(),
        [
            (1, "an array of 3: a response"),
            (2, "correlation_id 7, error nil"),
            (2, "body: an array of 1; results: an array of 1"),
            (2, "an array of 3; error nil"),
            (1, "base_offset 41"),
            (9, "append_time_us"),
        ],
    )


def dump_fetch_request() -> str:
    return _dump(
        fetch_request_frame(),
        [
            (1, "an array of 4: a request"),
            (3, "api 8 (fetch), version 0, correlation_id 8"),
            (1, "body: an array of 4"),
            (3, "max_wait_ms 500"),
            (1, "min_bytes 1"),
            (5, "max_bytes 4194304"),
            (1, "partitions: an array of 1"),
            (1, "an array of 5"),
            (7, 'topic "orders"'),
            (2, "partition 0, offset 41"),
            (5, "max_bytes 1048576"),
            (1, "epoch 0: that of the last batch read"),
        ],
    )


def dump_fetch_response() -> str:
    return _dump(
        fetch_response_frame(),
        [
            (1, "an array of 3: a response"),
            (2, "correlation_id 8, error nil"),
            (6, "body: an array of 1; results: an array of 1"),
            (2, "an array of 4; error nil"),
            (2, "log_start 0, durable_end 43"),
            (5, "batches: a bin of 130 bytes:"),
            (8, "  base_offset 41"),
            (8, "  append_time"),
            (8, "  length 130, log_epoch 0"),
            (4, "  crc32c of the 24 bytes before it"),
            *((length, "  " + note) for length, note in [*_HEADER_PIECES, *_COLUMN_PIECES]),
        ],
    )


def _dump(frame: bytes, pieces: Pieces) -> str:
    """Bytes on the left, what they are on the right; the frame's length comes first."""
    pieces = [(4, f"the frame's length: {len(frame) - 4} bytes follow"), *pieces]
    if sum(length for length, _ in pieces) != len(frame):
        raise ValueError(f"notes for {sum(n for n, _ in pieces)} bytes, the frame has {len(frame)}")
    lines = []
    position = 0
    for length, note in pieces:
        piece = frame[position : position + length]
        for start in range(0, length, _BYTES_A_LINE):
            shown = piece[start : start + _BYTES_A_LINE].hex(" ")
            lines.append(f"{shown:<{3 * _BYTES_A_LINE}} {note if not start else ''}".rstrip())
        position += length
    return "\n".join(["```text", *lines, "```"])


# --- putting it in place ---

GENERATED: Final[dict[str, Callable[[], str]]] = {
    "protocol-apis": api_table,
    "protocol-messages": api_reference,
    "protocol-errors": error_table,
    "protocol-numbers": fixed_numbers,
    "protocol-produce-request": dump_produce_request,
    "protocol-produce-response": dump_produce_response,
    "protocol-fetch-request": dump_fetch_request,
    "protocol-fetch-response": dump_fetch_response,
}


def updated(text: str) -> str:
    """The document with every part of ours made anew."""
    return PLACE.sub(
        lambda place: place["begin"] + GENERATED[place["name"]]() + "\n" + place["end"], text
    )


def main(check: bool = False) -> None:
    """Bring docs/protocol.md up to date, or only tell whether it is."""
    before = DOCUMENT.read_text(encoding="utf-8")
    after = updated(before)
    if after == before:
        return
    if check:
        raise SystemExit("out of date: docs/protocol.md. Run scripts/update-docs")
    DOCUMENT.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main(check="--check" in sys.argv[1:])
