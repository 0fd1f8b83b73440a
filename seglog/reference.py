"""The parts of the documentation that are made from the code, for scripts/update-docs."""

from __future__ import annotations

from collections.abc import Iterable

from .serve_config import ServeConfig
from .server.metrics_table import METRICS
from .server.settings_table import Setting, settings_table

TOPIC_PREFIX = "topic."
HTTP_PREFIX = "http."


def broker_settings() -> str:
    """A Markdown table of the settings of a broker."""
    return _table(row for row in settings_table().values() if not row.key.startswith(TOPIC_PREFIX))


def topic_settings() -> str:
    """A Markdown table of the settings of a topic, by the names that the topic knows them by."""
    return _table(row for row in settings_table().values() if row.key.startswith(TOPIC_PREFIX))


def metrics() -> str:
    """A Markdown table of everything that /metrics has of the broker's own."""
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{name}`' for name in metric.labels)} "
        f"| {metric.help} |"
        for metric in METRICS
    ]
    return "\n".join(rows)


def http_settings() -> str:
    """A Markdown table of the settings of the HTTP gateway."""
    rows = settings_table(ServeConfig).values()
    return _table(row for row in rows if row.key.startswith(HTTP_PREFIX))


def _table(settings: Iterable[Setting]) -> str:
    rows = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{setting.key.removeprefix(TOPIC_PREFIX)}` | {_default(setting)} | {setting.allowed} "
        f"| {setting.explanation} |"
        for setting in settings
    ]
    return "\n".join(rows)


def _default(setting: Setting) -> str:
    value = setting.default
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int) and setting.short(value) != str(value):
        return f"`{value}` ({setting.short(value)})"
    return f"`{value}`" if value != "" else "empty"
