"""Which records of a batch are wanted: `--filter`, as plain comparisons; nothing is evaluated.

A batch stays columns all the way, and only the columns that are looked at are cut into cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, compress
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from ..protocol.columns import Headers
    from ..protocol.records import Columns

T = TypeVar("T")

#: For each record of a batch, whether it is wanted.
Filter = Callable[["Columns"], list[bool]]


def parse_filter(text: str) -> Filter:
    what, equals, wanted_text = text.partition("=")
    wanted = wanted_text.encode(errors="surrogateescape")
    if equals and what == "key":
        return lambda columns: [key == wanted for key in columns.keys]
    if equals and what == "text":
        return lambda columns: [v is not None and wanted in v for v in columns.values]
    if what.startswith("header:") and what != "header:":
        name = what.removeprefix("header:")
        if equals:
            return lambda columns: [(name, wanted) in pairs for pairs in columns.headers]
        return lambda columns: [any(name == n for n, _ in pairs) for pairs in columns.headers]
    raise typer.BadParameter(
        f"{text!r} is not key=KEY, header:NAME, header:NAME=VALUE or text=TEXT",
        param_hint="--filter",
    )


class Rows:
    """The wanted records of a batch, as columns of equal length."""

    def __init__(self, columns: Columns, wanted: Sequence[bool] | None) -> None:
        self.columns = columns  # whether wanted or not
        self._wanted = wanted  # None: all

    @classmethod
    def of(cls, columns: Columns, filters: Iterable[Filter]) -> Rows:
        marks = [each(columns) for each in filters]
        if not marks:
            return cls(columns, None)
        return cls(columns, list(map(all, zip(*marks, strict=True))))

    def first(self, count: int) -> Rows:
        """At most so many; what is not wanted and follows the last of them is left out as well."""
        if len(self) <= count:
            return self
        if self._wanted is None:
            return Rows(self.columns.window(0, count), None)
        stop = list(accumulate(map(int, self._wanted))).index(count) + 1
        return Rows(self.columns.window(0, stop), self._wanted[:stop])

    def __len__(self) -> int:
        return len(self.columns) if self._wanted is None else sum(self._wanted)

    @property
    def topic(self) -> str:
        return self.columns.topic

    @property
    def partition(self) -> int:
        return self.columns.partition

    @property
    def offsets(self) -> Sequence[int]:
        return self._chosen(self.columns.offsets)

    @property
    def timestamps(self) -> Sequence[int]:
        return self._chosen(self.columns.timestamps)

    @property
    def keys(self) -> Sequence[bytes | None]:
        return self._chosen(self.columns.keys)

    @property
    def values(self) -> Sequence[bytes | None]:
        return self._chosen(self.columns.values)

    @property
    def headers(self) -> Sequence[Headers]:
        return self._chosen(self.columns.headers)

    def _chosen(self, column: Sequence[T]) -> Sequence[T]:
        return column if self._wanted is None else list(compress(column, self._wanted))
