"""What a user may set: one row an option, and how a set of them is read.

An `Option` row has a name, a default, what it means, and a function that turns text into a value.
`Options` is what one query was given: names in any case, as everywhere in Spark; a name that no row
has is refused, and the message says which one is nearest. The page docs/spark.md lists these rows.

Spark's own options that reach every source and sink are let through, and so are those of the Kafka
source that mean nothing here: they are named in the log, once, and change nothing.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Spark hands these to the source or sink of a query too; they are Spark's business.
_OF_SPARK: Final = frozenset(
    {
        "checkpointlocation",
        "path",
        "asyncprogresstrackingenabled",
        "asyncprogresstrackingcheckpointintervalms",
        "asyncprogresstrackingoverridesinksupportcheck",
        "querytimeout",
    }
)
# Of the Kafka source, without a meaning here: a pipeline moves over without losing them one by one.
_OF_KAFKA: Final = (
    "kafka.",
    "kafkaconsumer.",
    "fetchoffset.",
    "groupidprefix",
    "minoffsetspertrigger",
    "maxtriggerdelay",
)


class InvalidOption(ValueError):
    """An option that is missing, unknown, or has a value that means nothing."""


def text(value: str) -> str:
    """As it is, but not empty."""
    if not value.strip():
        raise ValueError("must not be empty")
    return value.strip()


def boolean(value: str) -> bool:
    """`true` or `false`."""
    known = {"true": True, "false": False}
    found = known.get(value.strip().lower())
    if found is None:
        raise ValueError("must be true or false")
    return found


def positive(value: str) -> int:
    """A whole number of at least 1."""
    number = whole(value)
    if number < 1:
        raise ValueError("must be at least 1")
    return number


def whole(value: str) -> int:
    """A whole number of at least 0."""
    try:
        number = int(value.strip())
    except ValueError:
        raise ValueError("must be a whole number") from None
    if number < 0:
        raise ValueError("must not be negative")
    return number


_SIZES: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def byte_size(value: str) -> int:
    """A number of bytes; `64k`, `8m` and `1g` are understood, as in Spark."""
    plain = value.strip().lower().removesuffix("b")
    unit = _SIZES.get(plain[-1:], 1)
    return positive(plain[:-1] if unit > 1 else plain) * unit


_DURATIONS_MS: Final = {"ms": 1, "s": 1_000, "min": 60_000, "m": 60_000, "h": 3_600_000}


def duration_ms(value: str) -> int:
    """Milliseconds; `500ms`, `30s`, `5m` and `1h` are understood, as in Spark."""
    plain = value.strip().lower()
    for unit in ("ms", "min", "s", "m", "h"):
        if plain.endswith(unit):
            return whole(plain.removesuffix(unit)) * _DURATIONS_MS[unit]
    return whole(plain)


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """One option. `parse` raises ValueError with what a value must be, for example "must be true
    or false"; `default` is text as a user would give it, or None where there is none.
    """

    name: str
    default: str | None
    meaning: str
    parse: Callable[[str], T]
    aliases: tuple[str, ...] = ()


class Options:
    """What one query was given. Holds text only, so that it can be sent to executors."""

    def __init__(
        self, given: Mapping[str, str], rows: Iterable[Option[Any]], purpose: str = "reading"
    ) -> None:
        """Refuses unknown names and bad values at once; `purpose` is for the message."""
        self._given: dict[str, str] = {}
        known = {name.lower(): row for row in rows for name in (row.name, *row.aliases)}
        ignored = []
        for name, value in given.items():
            row = known.get(name.lower())
            if row is None:
                if not _is_foreign(name):
                    raise InvalidOption(_unknown(name, known, purpose))
                if name.lower() not in _OF_SPARK:
                    ignored.append(name)
                continue
            if self._given.setdefault(row.name, value) != value:
                raise InvalidOption(
                    f"option {row.name} is given twice, as {self._given[row.name]!r} and as"
                    f" {name}={value!r}; give one of them"
                )
            _parsed(row, value)
        if ignored:
            logger.warning("these options of Kafka mean nothing here: %s", ", ".join(ignored))

    def __getitem__(self, option: Option[T]) -> T:
        """The value given, or the default; InvalidOption where there is neither."""
        value = self._given.get(option.name, option.default)
        if value is None:
            raise InvalidOption(
                f"option {option.name} is missing. It means: {option.meaning};"
                f' give it with .option("{option.name}", …)'
            )
        return _parsed(option, value)

    def get(self, option: Option[T]) -> T | None:
        """The value given, or the default, or None."""
        value = self._given.get(option.name, option.default)
        return None if value is None else _parsed(option, value)

    def has(self, option: Option[Any]) -> bool:
        """Whether the user gave it."""
        return option.name in self._given


def _parsed(option: Option[T], value: str) -> T:
    try:
        return option.parse(value)
    except ValueError as error:
        raise InvalidOption(f"option {option.name} {error}; it is {value!r}") from None


def _is_foreign(name: str) -> bool:
    return name.lower() in _OF_SPARK or name.lower().startswith(_OF_KAFKA)


def _unknown(name: str, known: Mapping[str, Option[Any]], purpose: str) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {known[near[0]].name}? " if near else ""
    names = ", ".join(sorted({row.name for row in known.values()}))
    return f"option {name} is not known for {purpose}; {hint}these are known: {names}"


SERVERS: Final = Option(
    "seglog.bootstrap.servers",
    None,
    "the broker's address, `host:port`; several with commas",
    text,
    ("kafka.bootstrap.servers", "bootstrap.servers"),
)
