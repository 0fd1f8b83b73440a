"""Commands that run until they are told to stop, as processes of their own: `serve`, `gateway`."""

import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.commands import SEGLOG, TIMEOUT_S

Kind = TypeVar("Kind", bound="Serving")


def environment(**variables: str) -> dict[str, str]:
    """This process's, without any setting that happens to be in it."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("SEGLOG_")}
    return {**ours, "COLUMNS": "100", **variables}


class Serving(ABC):
    """A command; what it says first tells where it listens."""

    def __init__(self, cwd: Path, *arguments: str, **variables: str) -> None:
        self.process = subprocess.Popen(
            [*SEGLOG, *arguments],
            cwd=cwd,
            env=environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @abstractmethod
    def listen(self) -> None:
        """Read where it listens."""

    def line(self) -> str:
        """The next one that it says."""
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        if not said:
            pytest.fail(self.process.communicate()[1])
        return said

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """The exit code, and what it said after it listened."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, out, err


@contextmanager
def starting(kind: type[Kind], cwd: Path) -> Iterator[Callable[..., Kind]]:
    """Gives what starts commands there; those that still run at the end are ended."""
    started: list[Kind] = []

    def start(*arguments: str, **variables: str) -> Kind:
        begun = kind(cwd, *arguments, **variables)
        started.append(begun)
        begun.listen()
        return begun

    try:
        yield start
    finally:
        for each in started:
            each.process.kill()
            each.process.communicate()
