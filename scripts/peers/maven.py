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
    <dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"""
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
    folder: Path, artifacts: Sequence[Artifact], *, proof: str, only: Sequence[str] = ()
) -> None:
    """Put the jars of these and of what they need into `folder`/jars, or `only` those so named.

    A jar that matches `proof` must be there afterwards.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise NotStarted("jars come through Maven: apt-get install maven")
    folder.mkdir(parents=True, exist_ok=True)
    dependencies = "".join(_DEPENDENCY.format(**artifact._asdict()) for artifact in artifacts)
    (folder / "pom.xml").write_text(_POM.format(dependencies=dependencies))
    command = [
        maven, "--batch-mode", "--quiet", "dependency:copy-dependencies",
        "-DincludeScope=runtime", f"-DoutputDirectory={folder / 'jars'}",
    ]  # fmt: skip
    if only:
        command.append(f"-DincludeArtifactIds={','.join(only)}")
    subprocess.run(command, cwd=folder, check=True, timeout=RESOLVE_TIMEOUT_S)
    if not list((folder / "jars").glob(proof)):
        raise NotStarted(f"Maven left no {proof} in {folder}")
    _mark(folder).touch()


def _mark(folder: Path) -> Path:
    """Written last: without it the folder is not whole."""
    return folder / "complete"
