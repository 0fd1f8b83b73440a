"""The specification as one page of plain HTML: no script, nothing from another server."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any, Final

_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 14px/1.4 ui-monospace, monospace; }
h3 { margin: 2rem 0 0; }
table { border-collapse: collapse; margin: .5rem 0; }
td, th { border-bottom: 1px solid #8884; padding: .2rem .8rem .2rem 0; text-align: left;
         vertical-align: top; }
"""


def render_page(specification: dict[str, Any]) -> str:
    info = specification["info"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style>",
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{escape(info['description'])}</p>",
        '<p>For tools: <a href="/openapi.json">/openapi.json</a></p>',
    ]
    for path, methods in specification["paths"].items():
        for method, operation in methods.items():
            parts += _operation(path, method, operation)
    parts.append("<h2>Bodies</h2>")
    for name, schema in specification["components"]["schemas"].items():
        parts += _schema(name, schema)
    return "\n".join(parts)


def _operation(path: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<h3><code>{method.upper()} {escape(path)}</code></h3>"
    for paragraph in operation.get("description", "").split("\n\n"):
        yield f"<p>{escape(paragraph)}</p>"
    rows = [
        (f"{each['name']} ({each['in']})", _type(each["schema"]), each.get("description", ""))
        for each in operation.get("parameters", ())
    ]
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        rows.append(("body", f"{_type(content['schema'])} as {escape(kind)}", ""))
    for status, response in operation["responses"].items():
        for kind, content in response.get("content", {}).items():
            shown = f"{_type(content.get('schema', {}))} as {escape(kind)}"
            rows.append((f"answer {status}", shown, response.get("description", "")))
    yield from _table(rows)


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f'<h3 id="{escape(name)}"><code>{escape(name)}</code></h3>'
    yield f"<p>{escape(schema.get('description', ''))}</p>"
    required = set(schema.get("required", ()))
    yield from _table(
        [
            (
                f"{field}{' *' if field in required else ''}",
                _type(each),
                each.get("description", ""),
            )
            for field, each in schema.get("properties", {}).items()
        ]
    )


def _table(rows: list[tuple[str, str, str]]) -> Iterator[str]:
    """The middle cell is HTML already."""
    yield "<table>"
    for name, kind, meaning in rows:
        yield f"<tr><td><code>{escape(name)}</code><td>{kind}<td>{escape(meaning)}"
    yield "</table>"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    text = " ".join(str(schema[key]) for key in ("type", "format") if key in schema) or "any"
    if "enum" in schema:
        text = ", ".join(map(str, schema["enum"]))
    if "default" in schema and schema["default"] is not None:
        text += f" (default {schema['default']})"
    return escape(text)
