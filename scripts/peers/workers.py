"""Client processes that live for the whole run, so that starting one is never measured.

    parent                     worker
    job ────────────────────►  opens its client, prepares its records
        ◄──────────────────── ready
    begin at this time ─────►  does it
        ◄──────────────────── what it found, or why it failed

All workers of a cell begin at the same moment. A failure, or no answer in time, ends all workers by
their pid and makes new ones: none is left in the middle of something.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import uvloop

#: Between the order to begin and the beginning: for the order to reach everybody.
LEAD_S: Final = 0.05
JOIN_TIMEOUT_S: Final = 5.0

Gate = Callable[[], Awaitable[float]]


class Job(NamedTuple):
    """`work(gate, *arguments)` is awaited in the worker; both must be importable there."""

    work: Callable[..., Awaitable[Any]]
    arguments: tuple[Any, ...]


class JobFailed(Exception):
    """What a worker raised, with its traceback, or that it did not answer."""


class Workers:
    """Up to `count` processes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._context = multiprocessing.get_context("spawn")
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(is_patient=error is None)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def run(self, jobs: Sequence[Job], timeout_s: float) -> list[Any]:
        """Each job in a worker of its own, all at once; what each found."""
        assert len(jobs) <= self._count
        deadline = time.monotonic() + timeout_s
        pipes = self._pipes[: len(jobs)]
        try:
            for pipe, job in zip(pipes, jobs, strict=True):
                pipe.send(job)
            ready = [self._receive(pipe, deadline) for pipe in pipes]
            if any(kind == "ready" for kind, _ in ready):
                begin = time.monotonic() + LEAD_S
                for pipe in pipes:
                    pipe.send(begin)
                ready = [self._receive(pipe, deadline) for pipe in pipes]
            return [found for _, found in ready]
        except Exception:
            self._end(is_patient=False)
            self._start()
            raise

    def _receive(self, pipe: Connection, deadline: float) -> tuple[str, Any]:
        if not pipe.poll(max(0.0, deadline - time.monotonic())):
            raise JobFailed("no answer in time")
        try:
            kind, found = pipe.recv()
        except EOFError:
            raise JobFailed("the client process died") from None
        if kind == "failed":
            raise JobFailed(found)
        return kind, found

    def _start(self) -> None:
        for _ in range(self._count):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def _end(self, *, is_patient: bool) -> None:
        for pipe in self._pipes:
            pipe.close()  # tells a worker that waits for a job
        for process in self._processes:
            if is_patient:
                process.join(JOIN_TIMEOUT_S)
            if process.is_alive():
                process.kill()
            process.join()
        self._processes, self._pipes = [], []


def serve(pipe: Connection) -> None:
    """A worker's life: job after job until the parent closes the pipe or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us

    async def gate() -> float:
        pipe.send(("ready", None))
        begin: float = pipe.recv()
        await asyncio.sleep(max(0.0, begin - time.monotonic()))
        return begin

    try:
        while True:
            job: Job = pipe.recv()
            try:
                found = uvloop.run(_work(job, gate))
            except Exception:
                pipe.send(("failed", traceback.format_exc()))
            else:
                pipe.send(("done", found))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


async def _work(job: Job, gate: Gate) -> Any:
    return await job.work(gate, *job.arguments)
