"""The tree stands on its own: no file names a place that exists on one machine only."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {
    ".git",
    ".venv",
    ".venv.lock",
    ".hypothesis",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    "__pycache__",
    "build",
    "dist",
    "seglog.egg-info",
}

# Each pattern is written so that it does not match its own text.
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.~-])/(?:[w]ork|[r]oot|[h]ome/\w+|[U]sers/\w+)/"),
    "a file outside the tree": re.compile(r"\b[s]hared/\w+\.md\b"),
    "a registry address": re.compile(
        r"[p]ypi\.org|[p]ythonhosted\.org|[n]pmjs\.org|-[-](?:extra-)?index-url|-[-]find-links"
    ),
}


def project_files() -> list[Path]:
    """What git tracks or would track; outside a checkout, everything that is not generated."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if (ROOT / ".git").exists() and listing.returncode == 0:
        paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        paths = [
            path for path in ROOT.rglob("*") if not GENERATED & set(path.relative_to(ROOT).parts)
        ]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def findings(text: str) -> list[str]:
    return [
        f"line {number}: {what}: {match.group()}"
        for number, line in enumerate(text.splitlines(), start=1)
        for what, pattern in FORBIDDEN.items()
        if (match := pattern.search(line))
    ]


def test_no_file_names_a_place_outside_the_tree():
    wrong = []
    for path in project_files():
        data = path.read_bytes()
        if b"\0" in data:  # not text
            continue
        text = data.decode("utf-8", errors="replace")
        wrong += [f"{path.relative_to(ROOT)}, {finding}" for finding in findings(text)]
    assert not wrong, "\n".join(wrong)


def test_the_search_sees_the_tree():
    names = {path.relative_to(ROOT).as_posix() for path in project_files()}
    assert {"pyproject.toml", "constraints.txt", "scripts/setup", "seglog/__init__.py"} <= names


@pytest.mark.parametrize(
    "text",
    [
        "see /" + "work/x",
        "open('/" + "root/.cache')",
        "/" + "home/ann/seglog",
        "as in shared" + "/design.md",
        "https://py" + "pi.org/simple",
        "--index" + "-url=https://mirror",
        "--extra-index" + "-url https://mirror",
    ],
)
def test_a_foreign_place_is_found(text):
    assert findings(text)


@pytest.mark.parametrize(
    "text", ["a shared/exclusive lock", "tests/work/x", "$root/x", "--no-emit-index-url", "/tmp/x"]
)
def test_a_place_of_everybody_is_left_alone(text):
    assert findings(text) == []
