"""What a DataFrame must look like to be written; checked in the driver, before anything runs.

    value      binary or string                     needed
    key        binary or string
    topic      string                               needed where the option `topic` is not given
    partition  int
    headers    array<struct<key string, value binary or string>>
    timestamp  timestamp

`offset` and `timestampType`, which the source gives, are let through and not written: what was read
can be written back. Any other column is refused: it would be lost silently.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_BYTES: Final = (BinaryType, StringType)
_COLUMNS: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "value": (_BYTES, "binary or string"),
    "key": (_BYTES, "binary or string"),
    "topic": ((StringType,), "string"),
    "partition": ((IntegerType,), "int"),
    "timestamp": ((TimestampType,), "timestamp"),
}
_HEADERS: Final = "array<struct<key: string, value: binary>>"
_NOT_WRITTEN: Final = frozenset({"offset", "timestampType"})


class InvalidSchema(ValueError):
    """A DataFrame that cannot be written: a column is missing, unknown, or of another type."""


def check_schema(schema: StructType, has_topic: bool) -> None:
    """Raise InvalidSchema, with what to change, where `schema` cannot be written."""
    for name, count in Counter(schema.fieldNames()).items():
        if count > 1:
            raise InvalidSchema(f"there are {count} columns `{name}`: keep one of them")
    for field in schema.fields:
        _check_column(field.name, field.dataType)
    if "value" not in schema.fieldNames():
        raise InvalidSchema(
            "there is no column `value`: name the data so, for example"
            ' df.select(F.to_json(F.struct("*")).alias("value"))'
        )
    if not has_topic and "topic" not in schema.fieldNames():
        raise InvalidSchema(
            'where to? Give the topic with .option("topic", …), or a column `topic` for each row'
        )


def _check_column(name: str, kind: DataType) -> None:
    if name in _NOT_WRITTEN:
        return
    if name == "headers":
        if not _are_headers(kind):
            raise InvalidSchema(f"column `headers` is {kind.simpleString()}, it must be {_HEADERS}")
        return
    expected = _COLUMNS.get(name)
    if expected is None:
        known = ", ".join([*_COLUMNS, "headers"])
        raise InvalidSchema(
            f"column `{name}` has no meaning here, and would be lost: drop it, or make it a part"
            f" of `value`. Columns are: {known}"
        )
    types, words = expected
    if isinstance(kind, types):
        return
    hint = f'cast it, for example F.col("{name}").cast("{words.split(" ", maxsplit=1)[0]}")'
    if isinstance(kind, TimestampNTZType):
        hint = "it has no time zone; " + hint
    raise InvalidSchema(f"column `{name}` is {kind.simpleString()}, it must be {words}: {hint}")


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, _BYTES)
    )
