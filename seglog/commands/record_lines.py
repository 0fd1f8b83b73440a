"""Records as lines: text as `--format` says, or JSON. A batch at a time, with no code run for each
record where its cells are plain.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, Final, cast

import msgspec
import typer
from msgspec import UNSET, UnsetType

from .common import time_text
from .selection import Rows

#: Lines of records, each with its line end.
Write = Callable[[Rows], bytes]
#: One cell for each record: bytes or a whole number.
_Field = Callable[[Rows], Iterable[Any]]

_CONTROLS: Final = {
    code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))
}
_ESCAPES: Final = {r"\t": b"\t", r"\n": b"\n", r"\\": b"\\", "%%": b"%"}


# --- text ----------------------------------------------------------------------------------------


def text_lines(text: str, *, safe: bool) -> Write:
    """What `--format` says; `safe`: for a terminal."""
    template, fields = _parsed(text, _fields(_for_terminal if safe else _as_they_are))
    line = template + b"\n"
    if not fields:
        return lambda rows: (line % ()) * len(rows)
    if line == b"%b\n":
        (field,) = fields
        return lambda rows: b"\n".join([*field(rows), b""])
    return lambda rows: b"".join(
        map(line.__mod__, zip(*(field(rows) for field in fields), strict=False))
    )


def _fields(shown: Callable[[Sequence[bytes | None]], Sequence[bytes]]) -> dict[str, _Field]:
    return {
        "k": lambda rows: shown(rows.keys),
        "v": lambda rows: shown(rows.values),
        "o": lambda rows: rows.offsets,
        "p": lambda rows: repeat(rows.partition, len(rows)),
        "t": lambda rows: [time_us // 1000 for time_us in rows.timestamps],
        "T": lambda rows: [time_text(time_us).encode() for time_us in rows.timestamps],
        "h": lambda rows: [
            b",".join(map(b"%b=%b".__mod__, _shown_headers(pairs, shown))) for pairs in rows.headers
        ],
    }


def _shown_headers(
    pairs: Sequence[tuple[str, bytes | None]],
    shown: Callable[[Sequence[bytes | None]], Sequence[bytes]],
) -> Iterable[tuple[bytes, bytes]]:
    names = shown([name.encode() for name, _ in pairs])
    return zip(names, shown([value for _, value in pairs]), strict=True)


def _parsed(text: str, known: dict[str, _Field]) -> tuple[bytes, list[_Field]]:
    """A template for bytes' own `%`, and what fills it."""
    template = b""
    fields: list[_Field] = []
    for piece in re.split(r"(%.?|\\[tn\\])", text, flags=re.DOTALL):
        if piece in _ESCAPES or not piece.startswith("%"):
            plain = _ESCAPES.get(piece) or piece.encode(errors="surrogateescape")
            template += plain.replace(b"%", b"%%")
        elif piece[1:] in known:
            fields.append(known[piece[1:]])
            template += b"%d" if piece[1:] in {"o", "p", "t"} else b"%b"
        else:
            names = " ".join(f"%{name}" for name in known)
            raise typer.BadParameter(
                f"{piece!r} means nothing; there are {names} and %%", param_hint="--format"
            )
    return template, fields


def _as_they_are(cells: Sequence[bytes | None]) -> Sequence[bytes]:
    if None not in cells:
        return cast("Sequence[bytes]", cells)
    return [cell or b"" for cell in cells]


def _for_terminal(cells: Sequence[bytes | None]) -> Sequence[bytes]:
    """What a record holds must not steer the terminal."""
    return [
        (cell or b"").decode(errors="backslashreplace").translate(_CONTROLS).encode()
        for cell in cells
    ]


# --- JSON ----------------------------------------------------------------------------------------


class _JsonRecord(msgspec.Struct, gc=False):
    topic: str
    partition: int
    offset: int
    timestamp: str
    key: str | None
    key_encoding: str | UnsetType
    value: str | None
    value_encoding: str | UnsetType
    headers: list[list[str | None]]


_encoder: Final = msgspec.json.Encoder()


def json_lines(rows: Rows) -> bytes:
    """An object a line; `produce --format json` reads it."""
    keys, key_encodings = _texts(rows.keys)
    values, value_encodings = _texts(rows.values)
    records = map(
        _JsonRecord,
        repeat(rows.topic),
        repeat(rows.partition),
        rows.offsets,
        map(time_text, rows.timestamps),
        keys,
        key_encodings,
        values,
        value_encodings,
        _headers(rows),
    )
    return _encoder.encode_lines(list(records))


def _texts(
    cells: Sequence[bytes | None],
) -> tuple[Iterable[str | None], Iterable[str | UnsetType]]:
    """The cells as text, or as base64 and the word that says so."""
    missing = cells.count(None)
    if missing == len(cells):
        return repeat(None), repeat(UNSET)
    if not missing:
        try:
            return list(map(bytes.decode, cells)), repeat(UNSET)  # type: ignore[arg-type]  # no None
        except UnicodeDecodeError:
            pass  # some are not text: one by one
    pairs = [_text(cell) for cell in cells]
    return [text for text, _ in pairs], [encoding for _, encoding in pairs]


def _text(data: bytes | None) -> tuple[str | None, str | UnsetType]:
    if data is None:
        return None, UNSET
    try:
        return data.decode(), UNSET
    except UnicodeDecodeError:
        return base64.b64encode(data).decode("ascii"), "base64"


def _headers(rows: Rows) -> Iterable[list[list[str | None]]]:
    if rows.columns.raw.headers is None:
        return repeat([])
    return [[_header(*pair) for pair in pairs] for pairs in rows.headers]


def _header(name: str, data: bytes | None) -> list[str | None]:
    text, encoding = _text(data)
    return [name, text, encoding] if isinstance(encoding, str) else [name, text]
