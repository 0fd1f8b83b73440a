"""scripts/java: a Java that fits is enough; else it is installed where it can be, or asked for."""

from __future__ import annotations

import subprocess
from pathlib import Path
from shutil import which

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "java"
SEVENTEEN = "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2"
EIGHT = "echo 'java version \"1.8.0_292\"' >&2"


class Machine:
    """A folder of programs, which is all that the script finds; `calls` are those of apt-get."""

    def __init__(self, folder: Path) -> None:
        self.programs = folder / "bin"
        self.calls = folder / "apt-calls"
        self.programs.mkdir()
        for name in ("bash", "sed", "head", "cp"):
            (self.programs / name).symlink_to(which(name) or name)

    def add(self, name: str, body: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)

    def run(self, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.programs / "bash", SCRIPT],
            env={"PATH": str(self.programs), **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def installing(machine: Machine, java: str) -> None:
    """apt-get that brings this Java with openjdk-17, and knows no other package."""
    machine.add("prepared", java)
    machine.add(
        "apt-get",
        f'echo "$@" >>{machine.calls}\n'
        'case "$*" in\n'
        f"*openjdk-17*) cp -p {machine.programs}/prepared {machine.programs}/java ;;\n"
        "*) exit 100 ;;\n"
        "esac",
    )


def test_a_java_that_fits_is_enough(machine):
    machine.add("java", SEVENTEEN)
    result = machine.run()
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("java", [None, EIGHT], ids=["none", "java-8"])
def test_elsewhere_it_says_what_to_do(machine, java):
    if java:
        machine.add("java", java)
    machine.add("id", "echo 1000")
    installing(machine, SEVENTEEN)
    result = machine.run()
    assert result.returncode == 1
    assert "Spark needs Java 17 or newer, and none was found" in result.stderr
    assert not machine.calls.exists(), "it installs only as root"


def test_on_debian_as_root_it_is_installed(machine):
    machine.add("id", "echo 0")
    installing(machine, SEVENTEEN)
    result = machine.run()
    assert result.returncode == 0, result.stderr
    assert "Installed openjdk-17-jre-headless" in result.stderr
    assert "--no-install-recommends openjdk-17-jre-headless" in machine.calls.read_text()


def test_a_java_home_that_does_not_fit_is_named_and_nothing_installed(machine, tmp_path):
    machine.add("java", SEVENTEEN)
    machine.add("id", "echo 0")
    installing(machine, SEVENTEEN)
    result = machine.run(JAVA_HOME=str(tmp_path / "nowhere"))
    assert result.returncode == 1
    assert "JAVA_HOME" in result.stderr
    assert not machine.calls.exists()
