"""constraints.txt: every package Seglog can need, pinned and hashed, with the sets that need it.

A block of the file is a line `# for: <sets>`, then one requirement with its hashes:

    # for: base dev
    msgpack==1.1.2 \\
        --hash=sha256:… \\
        --hash=sha256:…

The sets are `base` (the project and its build) and the extras of pyproject.toml. pip refuses a
hashed install unless each package, dependencies too, is pinned where it is asked for, so a plain
`-c constraints.txt` cannot install a part of the file. `select` writes that part out. Standard
library only: it runs before anything is installed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
OLDEST_PYTHON = "3.11"

HEADER = """\
# Pinned versions and hashes, for Python 3.11 to 3.14 on every platform.
# Written by scripts/update-constraints: do not edit. scripts/setup installs the parts asked for.
"""


def extras() -> list[str]:
    """The extras that pyproject.toml declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return sorted(project["optional-dependencies"])


def select(text: str, wanted: Iterable[str]) -> str:
    """The requirements, with their hashes, that any of the wanted sets needs."""
    wanted = set(wanted)
    kept = []
    for block in re.split(r"(?m)^# for: ", text)[1:]:
        sets, requirement = block.split("\n", 1)
        if wanted & set(sets.split()):
            kept.append(requirement.rstrip() + "\n")
    return "".join(kept)


def compiled(uv: str, *options: str, build_requires: str) -> dict[str, str]:
    """What uv resolves, as {the line `name==version ; marker`: the lines of its hashes}."""
    command = [uv, "pip", "compile", "pyproject.toml", "-", "--universal", "--quiet"]
    command += ["--python-version", OLDEST_PYTHON, "--no-header", "--no-annotate"]
    command += ["--no-emit-index-url", "--no-emit-find-links", "--generate-hashes", *options]
    output = subprocess.run(
        command, cwd=ROOT, input=build_requires, check=True, text=True, stdout=subprocess.PIPE
    ).stdout
    requirements: dict[str, str] = {}
    for block in re.findall(r"(?m)^\S.*(?:\n[ ]+.*)*", output):
        first, _, hashes = block.partition(" \\\n")
        requirements[first] = hashes
    return requirements


def update(uv: str) -> None:
    """Resolve everything at once, so that all sets agree, then note which set needs what."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    build_requires = "\n".join(build) + "\n"
    every_extra = [option for extra in extras() for option in ("--extra", extra)]
    everything = compiled(uv, *every_extra, build_requires=build_requires)

    pins = ROOT / "constraints.txt.new"
    pins.write_text("\n".join(everything) + "\n")
    try:
        needed_by: dict[str, list[str]] = {requirement: [] for requirement in everything}
        for name in ["base", *extras()]:
            extra = [] if name == "base" else ["--extra", name]
            part = compiled(uv, "-c", pins.name, *extra, build_requires=build_requires)
            for requirement in part:
                # The marker may be wider in the whole than in a part: match by name and version.
                pin = requirement.split(" ;")[0]
                for whole in everything:
                    if whole.split(" ;")[0] == pin:
                        needed_by[whole].append(name)
    finally:
        pins.unlink()
    unclaimed = [requirement for requirement, sets in needed_by.items() if not sets]
    if unclaimed:
        raise SystemExit(f"no set needs {unclaimed}: the parts were resolved differently")

    blocks = [
        f"# for: {' '.join(dict.fromkeys(needed_by[requirement]))}\n{requirement} \\\n{hashes}\n"
        for requirement, hashes in everything.items()
    ]
    CONSTRAINTS.write_text(HEADER + "\n" + "".join(blocks))


def main(arguments: list[str]) -> None:
    match arguments:
        case ["select", *wanted]:
            unknown = set(wanted) - {"base", *extras()}
            if unknown:
                known = ", ".join(extras())
                raise SystemExit(f"no such extra: {', '.join(sorted(unknown))} (known: {known})")
            sys.stdout.write(select(CONSTRAINTS.read_text(), wanted))
        case ["update", uv]:
            update(uv)
        case _:
            raise SystemExit("usage: constraints.py select SET… | update PATH_OF_UV")


if __name__ == "__main__":
    main(sys.argv[1:])
