"""Puts what is made from the code into the docs: update_docs.py [--check].

A document marks the place with a pair of comments, and keeps everything around it:

    <!-- generated: broker-settings -->
    <!-- /generated -->

Files that are no documents are made whole.
"""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path

from seglog import reference

DOCS = Path(__file__).resolve().parents[1] / "docs"
sys.path.insert(0, str(DOCS.parent))  # so that the files find each other as scripts.NAME
GENERATED: dict[str, Callable[[], str]] = {
    "broker-settings": reference.broker_settings,
    "topic-settings": reference.topic_settings,
    "metrics": reference.metrics,
    "http-settings": reference.http_settings,
    **importlib.import_module("scripts.docs_protocol").GENERATED,
    **importlib.import_module("scripts.docs_benchmarks").GENERATED,
    **importlib.import_module("scripts.docs_cli").GENERATED,
    **importlib.import_module("scripts.docs_spark").GENERATED,
    **importlib.import_module("scripts.docs_loadgen").GENERATED,
    **importlib.import_module("scripts.docs_http").GENERATED,
}
FILES: dict[str, Callable[[], str]] = importlib.import_module("scripts.docs_dashboard").FILES
PLACE = re.compile(
    r"(?P<begin><!-- generated: (?P<name>[\w-]+) -->\n).*?(?P<end><!-- /generated -->)", re.DOTALL
)


def updated(text: str) -> str:
    """A document with every marked place filled anew."""
    return PLACE.sub(
        lambda place: place["begin"] + GENERATED[place["name"]]() + "\n" + place["end"], text
    )


def main(arguments: list[str]) -> None:
    if arguments not in ([], ["--check"]):
        raise SystemExit("usage: update_docs.py [--check]")
    stale = []
    for path in [*sorted(DOCS.rglob("*.md")), *(DOCS / name for name in FILES)]:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        after = FILES[path.name]() if path.name in FILES else updated(before)
        if after != before:
            stale.append(str(path.relative_to(DOCS.parent)))
            if not arguments:
                path.write_text(after, encoding="utf-8")
    if stale and arguments:
        raise SystemExit(f"out of date: {', '.join(stale)}. Run scripts/update-docs")
    for name in stale:
        print(f"updated {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
