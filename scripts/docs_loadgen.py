"""What docs/loadgen.md has from the code: the options, and the form of a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import inspect

from scripts.docs_cli import reference_of
from scripts.loadgen import app
from scripts.loading.result import Result


def loadgen_reference() -> str:
    return reference_of("scripts/loadgen", app)


def result_reference() -> str:
    """A table of each object that a result holds, outermost first."""
    return "\n\n".join(_tables(inspect.type_info(Result), {"Result"}))


def _tables(info: Any, told: set[str]) -> Iterator[str]:
    title = info.cls.__name__
    meaning = (info.cls.__doc__ or "").strip().splitlines()[0]
    rows = [f"**{title}**: {meaning}", "", "| field | type | meaning |", "|---|---|---|"]
    inner: list[Any] = []
    for field in info.fields:
        kind, description = _described(field.type)
        name, found = _named(kind)
        inner += [each for each in found if each.cls.__name__ not in told]
        told.update(each.cls.__name__ for each in found)
        rows.append(f"| `{field.encode_name}` | {name} | {description} |")
    yield "\n".join(rows)
    for each in inner:
        yield from _tables(each, told)


def _described(info: Any) -> tuple[Any, str]:
    if isinstance(info, inspect.Metadata):
        return info.type, (info.extra_json_schema or {}).get("description", "")
    return info, ""


_PLAIN: dict[type, str] = {
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.StrType: "string",
    inspect.BoolType: "boolean",
    inspect.NoneType: "null",
}


def _named(info: Any) -> tuple[str, list[Any]]:
    """A type in words, and the objects in it."""
    if type(info) in _PLAIN:
        return _PLAIN[type(info)], []
    if isinstance(info, inspect.LiteralType):
        return " or ".join(f"`{value}`" for value in info.values), []
    if isinstance(info, inspect.StructType):
        return info.cls.__name__, [info]
    if isinstance(info, inspect.ListType):
        name, found = _named(_described(info.item_type)[0])
        return f"array of {name}", found
    if isinstance(info, inspect.DictType):
        name, found = _named(info.value_type)
        return f"object of {name}", found
    if isinstance(info, inspect.UnionType):
        parts = [_named(each) for each in info.types]
        return " or ".join(name for name, _ in parts), [f for _, found in parts for f in found]
    raise TypeError(f"a result may not hold {info!r} until this function can tell of it")


GENERATED: dict[str, Callable[[], str]] = {
    "loadgen-reference": loadgen_reference,
    "loadgen-result": result_reference,
}
