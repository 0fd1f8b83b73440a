"""Which part of Seglog may import which, read from the source of every file.

    protocol         nothing of ours; no asyncio, no I/O
    server           protocol
    server.storage   protocol; no asyncio, no sockets
    server.groups    protocol; no asyncio, no I/O, no clock
    client           protocol
    spark_connector  client, protocol
    seglog.gateway   client, protocol, seglog.places
    seglog.places    client, protocol
    scripts          client, protocol, spark_connector, server.storage

An import counts wherever it stands: in a function, under TYPE_CHECKING, relative, or by name
through importlib.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("protocol", "server", "client", "spark_connector", "scripts")

EVENT_LOOP = {"asyncio", "uvloop", "selectors", "concurrent", "threading"}
SOCKETS = {"socket", "socketserver", "ssl", "http", "urllib", "select"}
# `io` is not here: io.BytesIO is how columns are decoded in memory.
FILES = {"os", "pathlib", "mmap", "fcntl", "tempfile", "shutil", "subprocess", "glob"}


@dataclass(frozen=True)
class Rule:
    allowed: tuple[str, ...]  # parts of Seglog, besides the module's own
    banned: frozenset[str] = frozenset()  # top-level modules of others


RULES = {
    "protocol": Rule((), frozenset(EVENT_LOOP | SOCKETS | FILES)),
    # The broker counts with plain numbers, and runs without the extra that writes them for
    # Prometheus.
    "server": Rule(("protocol",), frozenset({"prometheus_client"})),
    # No loop and no socket; but a lock, or a thread that syncs beside the writer, may be its own.
    "server.storage": Rule(
        ("protocol",), frozenset((EVENT_LOOP - {"threading", "concurrent"}) | SOCKETS)
    ),
    "server.groups": Rule(("protocol",), frozenset(EVENT_LOOP | SOCKETS | FILES | {"time"})),
    "client": Rule(("protocol",)),
    # embedded() runs the real broker in the caller's process, and the pytest plugin offers it as a
    # fixture. Everything else in the client must work without the server's code.
    "client.embedded": Rule(("protocol", "client", "server")),
    "client.pytest_plugin": Rule(("protocol", "client", "server")),
    "spark_connector": Rule(("client", "protocol")),
    # The storage layer, for tools that look into segment files; seglog, for the public names; the
    # Spark connector, for its bench, its part of the quickstart and the table of its options.
    "scripts": Rule(("client", "protocol", "server.storage", "spark_connector", "seglog")),
    # It measures what counting costs on the broker's hot path, piece by piece.
    "scripts.bench_metrics": Rule(
        ("client", "protocol", "server.storage", "server.metrics", "seglog")
    ),
    # It goes through the client library for everything: as a process of its own it has no broker
    # to call.
    "seglog.gateway": Rule(("client", "protocol", "seglog.places")),
    # What the gateway and the command line share.
    "seglog.places": Rule(("client", "protocol")),
    # The front door: it gathers the public names of all parts.
    "seglog": Rule(("client", "protocol", "server")),
}
PARTS = ("protocol", "server", "client", "spark_connector")


def within(module: str, part: str) -> bool:
    return module == part or module.startswith(part + ".")


def rule_of(module: str) -> tuple[str, Rule]:
    """The rule of the innermost part that holds the module."""
    part = max((part for part in RULES if within(module, part)), key=len)
    return part, RULES[part]


def imported(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Every (line, full dotted name) that a module's source imports."""
    # The package a relative import starts from. Parts live under seglog.
    package = ["seglog", *module.split(".")] if not within(module, "seglog") else module.split(".")
    if not is_package:
        package = package[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            for name in node.names:
                yield node.lineno, ".".join([*base, name.name])
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).split(".")[-1] in {"import_module", "__import__"}
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
        ):
            yield node.lineno, node.args[0].value


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """What a module imports and may not, each as a sentence with its line."""
    part, rule = rule_of(module)
    found = []
    for line, target in imported(ast.parse(source), module, is_package):
        top = target.split(".")[0]
        where = f"{module}, line {line}: {part} may not import {target}"
        if top in rule.banned:
            found.append(where)
        elif top in PARTS:
            found.append(f"{module}, line {line}: write seglog.{target}, not {target}")
        elif top == "seglog":
            inner = target.removeprefix("seglog").removeprefix(".")
            own = (part, *rule.allowed)
            if inner.split(".")[0] in PARTS:
                allowed = any(within(inner, other) for other in own)
            else:  # the public names, which load every part; the version is a plain string
                allowed = "seglog" in own or (inner == "__version__" and part != "protocol")
                # or a part that lives in the front door, beside this one
                allowed = allowed or any(within(target, o) for o in own if within(o, "seglog"))
            if not allowed:
                found.append(where)
    return found


def source_files() -> list[tuple[Path, str, bool]]:
    """(file, dotted module name, whether it is a package) of all that the rules cover."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    paths += [ROOT / "seglog" / "__init__.py", ROOT / "seglog" / "places.py"]
    paths += sorted((ROOT / "seglog" / "gateway").glob("*.py"))
    files = []
    for path in paths:
        names = list(path.relative_to(ROOT).with_suffix("").parts)
        is_package = names[-1] == "__init__"
        files.append((path, ".".join(names[:-1] if is_package else names), is_package))
    return files


def test_every_part_imports_only_in_the_allowed_direction():
    wrong = [
        violation
        for path, module, is_package in source_files()
        for violation in violations(path.read_text(encoding="utf-8"), module, is_package)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_check_reads_every_part():
    modules = {module for _, module, _ in source_files()}
    assert {"protocol", "server", "server.storage", "client", "spark_connector"} <= modules
    assert {"scripts.constraints", "seglog", "seglog.gateway", "seglog.gateway.app"} <= modules
    assert "seglog.places" in modules


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("protocol.frame", "import asyncio"),
        ("protocol.frame", "import os.path"),
        ("protocol.frame", "from socket import socket"),
        ("protocol.frame", "def late():\n    import mmap"),
        ("protocol.frame", "from seglog.server import app"),
        ("protocol.frame", "from seglog import server"),
        ("protocol.frame", "from seglog import Producer"),
        ("protocol.frame", "from ..client import producer"),
        ("protocol.frame", "from .. import client"),
        ("protocol.frame", "from protocol import errors"),
        ("protocol.frame", "import importlib\nimportlib.import_module('seglog.client')"),
        ("server.app", "from seglog.client import producer"),
        ("server.app", "if TYPE_CHECKING:\n    from seglog.spark_connector import source"),
        ("server.metrics", "from prometheus_client import Counter"),
        ("server.storage.log", "import asyncio"),
        ("server.storage.log", "import uvloop"),
        ("server.storage.log", "from seglog.server import config"),
        ("server.storage.log", "from ..config import Config"),
        ("server.groups.state", "from seglog.server.storage import log"),
        ("server.groups.state", "import time"),
        ("client.producer", "import seglog.server.app"),
        ("client.producer", "from seglog import serve"),
        ("client.embedded", "from seglog.spark_connector import source"),
        ("spark_connector.source", "from seglog.server import app"),
        ("scripts.bench", "from seglog.server import app"),
        ("seglog", "from seglog.spark_connector import source"),
        ("seglog.gateway.app", "from seglog.server import app"),
        ("seglog.gateway.app", "from ..server.app import Broker"),
        ("seglog.gateway.app", "from .. import Producer"),
        ("seglog.gateway.app", "from ..commands import common"),
        ("seglog.places", "from .gateway import app"),
        ("seglog.places", "from .server import app"),
    ],
)
def test_a_wrong_import_is_found(module, source):
    assert violations(source, module)


def test_relative_imports_of_a_package_start_at_the_package_itself():
    assert violations("from .. import client", "protocol", is_package=True)
    assert violations("from ..config import Config", "server.storage", is_package=True)
    assert not violations("from . import frame", "protocol", is_package=True)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("protocol.frame", "import io, struct, msgpack\nfrom seglog.protocol import errors"),
        ("protocol.frame", "from . import errors\nfrom .errors import SeglogError"),
        ("server.app", "import asyncio, uvloop\nfrom seglog.server.storage import log"),
        ("server.storage.log", "import os, mmap, threading\nfrom seglog.protocol import header"),
        ("server.storage.log", "from .segment import Segment\nfrom ...protocol import header"),
        ("server.groups.state", "from seglog.protocol import errors\nfrom . import assignors"),
        ("client.producer", "import asyncio\nfrom seglog import __version__"),
        ("client.embedded", "from seglog.server import app\nfrom seglog.client import admin"),
        ("client.pytest_plugin", "from seglog.server import app\nfrom . import embedded"),
        ("spark_connector.source", "from seglog.client import blocking"),
        ("seglog.gateway.app", "from ..client.admin import Admin\nfrom .. import __version__"),
        ("seglog.gateway.app", "from . import routes_topics\nfrom .backend import Backend"),
        ("seglog.gateway.places", "from .. import places\nfrom ..places import Place"),
        ("seglog.places", "from .client.offsets import FoundOffset\nfrom .protocol import errors"),
        ("scripts.bench", "import seglog\nfrom seglog import Producer"),
        ("scripts.dump", "from seglog.server.storage import segment"),
    ],
)
def test_a_right_import_is_left_alone(module, source):
    assert violations(source, module) == []
