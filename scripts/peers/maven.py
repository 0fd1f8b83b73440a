"""Jars from Maven, into a folder of the cache, once."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from scripts.peers.interface import NotStarted

RESOLVE_TIMEOUT_S: Final = 900

_DEPENDENCY: Final = """
    <dependency>
      <groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>{rest}
    </dependency>"""
_ALONE: Final = """
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"""
_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>seglog.bench</groupId><artifactId>jars</artifactId><version>1</version>
  <dependencies>{dependencies}
  </dependencies>
</project>
"""


class Artifact(NamedTuple):
    """As Maven names one."""

    group: str
    name: str
    version: str


def is_complete(folder: Path) -> bool:
    return _mark(folder).exists()


def resolve(
    folder: Path, artifacts: Sequence[Artifact], *, proof: str, alone: bool = False
) -> None:
    """Put the jars of these and of what they need, or of these `alone`, into `folder`/jars.

    A jar that matches `proof` must be there afterwards.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise NotStarted("jars come through Maven: apt-get install maven")
    folder.mkdir(parents=True, exist_ok=True)
    rest = _ALONE if alone else ""
    dependencies = "".join(
        _DEPENDENCY.format(**artifact._asdict(), rest=rest) for artifact in artifacts
    )
    (folder / "pom.xml").write_text(_POM.format(dependencies=dependencies))
    command = [
        maven, "--batch-mode", "--quiet", "dependency:copy-dependencies",
        "-DincludeScope=runtime", f"-DoutputDirectory={folder / 'jars'}",
    ]  # fmt: skip
    ended = subprocess.run(command, cwd=folder, check=False, timeout=RESOLVE_TIMEOUT_S)
    if ended.returncode:
        names = ", ".join(":".join(artifact) for artifact in artifacts)
        raise NotStarted(f"Maven did not bring {names}: what it said stands above")
    if not list((folder / "jars").glob(proof)):
        raise NotStarted(f"Maven left no {proof} in {folder}")
    _mark(folder).touch()


def _mark(folder: Path) -> Path:
    """Written last: without it the folder is not whole."""
    return folder / "complete"
