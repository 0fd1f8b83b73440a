"""The examples of docs/loadgen.md run as they stand there, and what is made from the code is so."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import docs_loadgen
from scripts.loading.result import load_result

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "loadgen.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(
    r"<!-- tests/integration/test_loadgen_docs.py runs this -->\n```sh\n(.*?)```",
    DOCUMENT,
    re.DOTALL,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One where `scripts/loadgen` is the program, run by the interpreter that runs the tests."""
    (tmp_path / "scripts").mkdir()
    program = tmp_path / "scripts" / "loadgen"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/scripts/loadgen.py" "$@"\n')
    program.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
@pytest.mark.timeout(300)
def test_the_examples_run(number, folder):
    done = subprocess.run(
        ["bash", "-ec", EXAMPLES[number]],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=290, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for path in folder.glob("*.json"):
        assert load_result(path).seconds > 0
    assert ("compare" in EXAMPLES[number]) == ("B / A" in done.stdout)
    if "--check" in EXAMPLES[number]:
        assert "check: lost 0, doubled 0, reordered 0, damaged 0" in done.stdout
        pages = [(folder / name).read_text() for name in ("both.html", "again.html")]
        assert pages[0] == pages[1]


def test_there_are_examples():
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("name", sorted(docs_loadgen.GENERATED))
def test_what_is_made_from_the_code_is_up_to_date(name):
    part = DOCUMENT.split(f"<!-- generated: {name} -->\n")[1].split("<!-- /generated -->")[0]
    assert part.strip() == docs_loadgen.GENERATED[name]().strip(), "run scripts/update-docs"
