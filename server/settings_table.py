"""Every setting as one row: its dotted key, its default, what it may be, and what it is for.

The rows are read from the fields of `BrokerConfig` and `LogConfig`, or of whatever extends them: a
setting is written down once. A field that is a struct itself is a section: its name and a dot stand
before its settings. What a setting is for stands in the `#:` comment above its field; `explanation`
reads it there.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ..protocol.constants import GIB, KIB, MIB
from .config import DAY_MS, BrokerConfig

VARIABLE_PREFIX: Final = "SEGLOG_"

_ROOTS: Final = (object, msgspec.Struct)

#: What a key's last word counts, and the short forms that text may use: `64MiB`, `7d`.
UNITS: Final[Mapping[str, Mapping[str, int]]] = {
    "bytes": {"KiB": KIB, "MiB": MIB, "GiB": GIB},
    "ms": {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": DAY_MS},
}


@dataclass(frozen=True, slots=True)
class Setting:
    key: str
    type: Any
    default: int | str | bool
    owner: type[msgspec.Struct]
    field: str

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return VARIABLE_PREFIX + self.key.upper().replace(".", "_")

    @property
    def units(self) -> Mapping[str, int]:
        return UNITS.get(self.key.rpartition(".")[2], {})

    @property
    def allowed(self) -> str:
        """The values it takes, to read after "must be"."""
        from msgspec import inspect as types  # noqa: PLC0415 - only errors and documents ask

        match types.type_info(self.type):
            case types.IntType(ge=low, le=high):
                return self._range(low, high)
            case types.LiteralType(values=values):
                return " or ".join(str(value) for value in values)
            case types.BoolType():
                return "true or false"
            case types.StrType(min_length=length):
                return "text that is not empty" if length else "text"
            case other:
                raise TypeError(f"{self.key}: nobody has said how to explain {other}")

    def _range(self, low: int | None, high: int | None) -> str:
        if low == -1 and high is None:
            return "0 or more, or -1 for no limit"
        if low is None:
            return "a number" if high is None else f"at most {self.short(high)}"
        return f"{self.short(low)} {'or more' if high is None else 'to ' + self.short(high)}"

    def short(self, number: int) -> str:
        """A number in the largest unit that divides it: 67108864 as `64MiB`."""
        for name, size in reversed([*self.units.items()]):
            if number >= size and number % size == 0:
                return f"{number // size}{name}"
        return str(number)

    @property
    def explanation(self) -> str:
        return field_comments(self.owner)[self.field]


SettingsTable = Mapping[str, Setting]


@functools.cache
def settings_table(kind: type[BrokerConfig] = BrokerConfig) -> SettingsTable:
    """All settings by their dotted keys, in the order of their fields; topics' own come last."""
    return {setting.key: setting for setting in _rows(kind, "")}


def sections(kind: type[BrokerConfig]) -> list[str]:
    """The fields that hold settings of their own: `topic`, and what an extension adds."""
    return [field.name for field in msgspec.structs.fields(kind) if _is_section(field.type)]


def _rows(owner: type[msgspec.Struct], prefix: str) -> Iterator[Setting]:
    for field in msgspec.structs.fields(owner):
        key = prefix + field.encode_name
        if _is_section(field.type):
            yield from _rows(field.type, key + ".")
        else:
            yield Setting(key, field.type, field.default, owner, field.name)


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


@functools.cache
def field_comments(owner: type) -> Mapping[str, str]:
    """The `#:` comment lines right above each annotated field of a class, joined."""
    inherited = [field_comments(base) for base in owner.__bases__ if base not in _ROOTS]
    comments = {name: text for base in inherited for name, text in base.items()}
    source = textwrap.dedent(inspect.getsource(owner))
    lines = [line.strip() for line in source.splitlines()]
    (definition,) = ast.parse(source).body
    for node in ast.walk(definition):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            first = node.lineno - 1
            while lines[first - 1].startswith("#:"):
                first -= 1
            words = [line.removeprefix("#:").strip() for line in lines[first : node.lineno - 1]]
            comments[node.target.id] = " ".join(words)
    return comments
