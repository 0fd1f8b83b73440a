"""One run: the brokers of a strength are started together, and take turns cell by cell.

A *cell* is one system in one round of one row. Rounds alternate: every system has its turn before
the next round begins, and who goes first changes. Before each cell what the one before left to the
operating system is written to disk, so that nobody pays for somebody else. Whatever happens, every
process that was started is ended, by its pid.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from scripts.peers import jobs
from scripts.peers.interface import NotStarted, Server
from scripts.peers.jobs import Target
from scripts.peers.results import Absent, Row, Strength
from scripts.peers.systems import System
from scripts.peers.workers import Job, JobFailed, Workers

CLIENTS: Final = 4
SAMPLE_S: Final = 0.05
#: What a cell may take beyond the seconds that it is meant to.
GRACE_S: Final = 120.0


class Scale(NamedTuple):
    """How much is done; `seconds` is of one cell."""

    rounds: int
    seconds: float
    fill_records: int
    footprint_records: int


class Bench:
    """The processes of a run, and the cells that use them."""

    def __init__(
        self, scale: Scale, workers: Workers, folder: Path, console: Console, cells: int
    ) -> None:
        self.scale = scale
        self.rows: list[Row] = []
        #: The most memory a system's broker had while it produced, by strength.
        self.peak_memory: dict[tuple[str, str], int] = {}
        self.strength: Strength = "durable"
        self.is_any_strength = False  # the rows that are added now hold for every strength
        self.systems: list[System] = []
        self.dropped: list[Absent] = []
        self._workers = workers
        self._folder = folder
        self._servers: dict[type[Server], Server] = {}
        self._numbers = iter(range(1_000_000))
        self._progress = Progress(
            TextColumn("{task.description:60.60}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._bar = self._progress.add_task("", total=cells)

    @property
    def is_durable(self) -> bool:
        return self.strength == "durable"

    @contextmanager
    def showing(self) -> Iterator[None]:
        with self._progress:
            yield

    # --- servers ---

    def new_server(self, system: System) -> Server:
        """In a folder of its own; not started."""
        folder = self._folder / f"{system.name}-{next(self._numbers)}"
        return system.server(folder, is_durable=self.is_durable)

    @contextmanager
    def running(self) -> Iterator[None]:
        """One broker for each kind of server, until the block ends."""
        with ExitStack() as stack:
            for system in list(self.systems):
                if system.server not in self._servers:
                    server = self.new_server(system)
                    stack.callback(self._servers.pop, system.server, None)
                    stack.callback(server.stop)
                    self._servers[system.server] = server
                    with self.dropping(system):
                        server.start()
                        self.wait_for_first_ack(system, server)
            yield

    @contextmanager
    def dropping(self, system: System) -> Iterator[None]:
        """A system that does not even get ready is left out of this phase, and said."""
        try:
            yield
        except (JobFailed, NotStarted) as error:
            reason = f"failed to get ready: {last_line(error)}"
            self.dropped.append(Absent(system.title, self.strength, reason, ""))
            self.systems = [each for each in self.systems if each is not system]

    def wait_for_first_ack(self, system: System, server: Server) -> float:
        target = Target(system.name, server.address)
        try:
            return float(self.one(jobs.first_ack, target, self.new_topic(), self.is_durable))
        except JobFailed as error:
            server.check_alive()
            raise NotStarted(f"{system.title}: {error}\n{server.last_words()}") from None

    def target(self, system: System) -> Target:
        return Target(system.name, self._servers[system.server].address)

    # --- jobs ---

    def new_topic(self) -> str:
        return f"bench-{next(self._numbers)}"

    def one(self, work: Callable[..., Any], *arguments: Any, seconds: float = 0) -> Any:
        """A job in one client process."""
        return self.together([Job(work, arguments)], seconds)[0]

    def together(self, each: list[Job], seconds: float) -> list[Any]:
        """Jobs that begin at the same moment, each in a client process of its own."""
        return self._workers.run(each, seconds + GRACE_S)

    @contextmanager
    def topics(self, system: System, count: int) -> Iterator[list[str]]:
        """New ones, gone afterwards."""
        names = [self.new_topic() for _ in range(count)]
        target = self.target(system)
        self.one(jobs.create, target, names, self.is_durable)
        try:
            yield names
        finally:
            self.one(jobs.delete, target, names)

    @contextmanager
    def watching_memory(self, system: System) -> Iterator[None]:
        server = self._servers[system.server]
        key = (self.strength, system.name)
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(SAMPLE_S):
                self.peak_memory[key] = max(self.peak_memory.get(key, 0), server.memory_bytes())

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    # --- rows ---

    def add_row(self, key: str, title: str, unit: str, *, more_is_better: bool) -> Row:
        strength: Strength = "any" if self.is_any_strength else self.strength
        row = Row(f"{strength}/{key}", strength, title, unit, more_is_better, {}, {}, {})
        self.rows.append(row)
        return row

    def alternate(self, row: Row, measure: Callable[[System], float]) -> None:
        """All systems, in turns, for all rounds; a system that fails is out of this row."""
        for number in range(self.scale.rounds):
            shift = number % len(self.systems)
            for system in self.systems[shift:] + self.systems[:shift]:
                if system.name in row.notes:
                    self.skip()
                    continue
                with self.cell(row, system, number):
                    row.rounds.setdefault(system.name, []).append(measure(system))

    @contextmanager
    def cell(self, row: Row, system: System, number: int) -> Iterator[None]:
        """A failure within is noted in the row, and costs nothing else."""
        described = f"{row.strength}: {row.title}, {system.title}, round {number + 1}"
        self._progress.update(self._bar, description=described)
        os.sync()
        try:
            yield
        except (JobFailed, NotStarted) as error:
            note_failure(row, system.name, error)
        finally:
            self.skip()

    def skip(self) -> None:
        self._progress.advance(self._bar)


def note_failure(row: Row, name: str, error: Exception) -> None:
    row.notes[name] = f"failed: {last_line(error)}"
    row.rounds.pop(name, None)


def last_line(error: Exception) -> str:
    """Of a traceback, or of what a broker said: where the reason stands."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
