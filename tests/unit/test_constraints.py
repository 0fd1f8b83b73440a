"""constraints.txt installs what pyproject.toml asks for, and only what was asked for."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = (ROOT / "constraints.txt").read_text()


def load_script():
    spec = importlib.util.spec_from_file_location("constraints", ROOT / "scripts/constraints.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


constraints = load_script()


def names(requirements: str) -> set[str]:
    return set(re.findall(r"(?m)^([a-z0-9-]+)==", requirements))


def declared(requirements: list[str]) -> set[str]:
    return {re.split(r"[^a-z0-9-]", requirement)[0] for requirement in requirements}


def test_every_declared_dependency_is_pinned_in_its_set():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = pyproject["project"]
    base = declared(project["dependencies"]) | declared(pyproject["build-system"]["requires"])
    assert base <= names(constraints.select(CONSTRAINTS, ["base"]))
    for extra, requirements in project["optional-dependencies"].items():
        assert declared(requirements) <= names(constraints.select(CONSTRAINTS, [extra])), extra


def test_a_set_leaves_the_others_out():
    base = names(constraints.select(CONSTRAINTS, ["base"]))
    assert not base & {"pytest", "mypy", "pyspark", "pyarrow"}
    assert "pyspark" not in names(constraints.select(CONSTRAINTS, ["base", "dev"]))


def test_every_requirement_has_a_version_and_a_hash():
    selected = constraints.select(CONSTRAINTS, ["base", *constraints.extras()])
    blocks = re.findall(r"(?m)^\S.*(?:\n[ ]+.*)*", selected)
    assert len(blocks) == CONSTRAINTS.count("# for: ")
    for block in blocks:
        assert re.match(r"[a-z0-9-]+==\S+", block), block
        assert "--hash=sha256:" in block, block


def test_an_unknown_extra_is_refused_by_name():
    with pytest.raises(SystemExit, match="no such extra: sprak"):
        constraints.main(["select", "base", "sprak"])
