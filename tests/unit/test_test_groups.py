"""Tests that need the machine, or a JVM, for themselves are run by one process: `xdist_group`."""

import re
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
TESTS = """
import pytest

@pytest.mark.xdist_group("alone")
@pytest.mark.parametrize("number", range(10))
def test_something(number):
    pass
"""


def test_a_group_of_tests_stays_in_one_process(tmp_path: Path):
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text(encoding="utf-8"), encoding="utf-8")
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(TESTS)

    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-n", "2", "--dist=loadgroup", "-c", "/dev/null",
         "--rootdir", tmp_path, tmp_path],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=200,
    )  # fmt: skip

    workers = re.findall(r"(?m)^\[(gw\d)\] .* PASSED ", result.stdout)
    assert len(workers) == 20
    assert len(set(workers)) == 1
