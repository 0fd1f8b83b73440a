"""What a PromQL expression names: enough of the language to check dashboards and alert rules."""

from __future__ import annotations

import re
from typing import NamedTuple

_STRING = r'"(?:[^"\\]|\\.)*"'
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_RANGE = re.compile(r"\[[^\]]*\]")
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?(\s*\()?")
_MATCHER = re.compile(rf"(\w+)\s*(=~|!~|!=|=)\s*({_STRING})")
_OPERATORS = {"and", "or", "unless", "bool", "offset"}


class Matcher(NamedTuple):
    label: str
    operator: str
    text: str


class Selector(NamedTuple):
    name: str
    matchers: list[Matcher]


class Uses(NamedTuple):
    """The metrics that an expression reads, and the labels that it groups by."""

    selectors: list[Selector]
    grouping: set[str]


def uses(expression: str) -> Uses:
    grouping = {
        label.strip()
        for found in _GROUPING.finditer(expression)
        for label in found[1].split(",")
        if label.strip()
    }
    plain = _RANGE.sub("", _GROUPING.sub(" ", expression))
    selectors = [
        Selector(found[1], [Matcher(m[1], m[2], m[3][1:-1]) for m in matchers(found[2] or "")])
        for found in _SELECTOR.finditer(plain)
        if not found[3] and found[1] not in _OPERATORS
    ]
    return Uses(selectors, grouping)


def matchers(text: str) -> list[re.Match[str]]:
    return list(_MATCHER.finditer(text))


def is_balanced(expression: str) -> bool:
    """Whether every bracket is closed by its own kind."""
    closing = {"(": ")", "[": "]", "{": "}"}
    awaited: list[str] = []
    for character in re.sub(_STRING, "", expression):
        if character in closing:
            awaited.append(closing[character])
        elif character in closing.values() and (not awaited or awaited.pop() != character):
            return False
    return not awaited
