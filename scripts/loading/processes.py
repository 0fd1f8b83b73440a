"""The workers of a run, as the one who conducts it sees them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from scripts.loading import messages as m

ROOT: Final = Path(__file__).resolve().parents[2]
READY_TIMEOUT_S: Final = 120.0
EXIT_TIMEOUT_S: Final = 10.0
#: Sightings of a checked run come as one line.
MAX_LINE_BYTES: Final = 1 << 30

Answer = TypeVar("Answer", bound=m.FromWorker)


class WorkerFailed(Exception):
    """A worker could not go on; says why."""


class WorkerProcess:
    """Started, spoken with, and ended here."""

    def __init__(
        self, name: str, plan: m.Plan, on_report: Callable[[WorkerProcess, m.Report], None]
    ) -> None:
        self.name = name
        self.plan = plan
        self.positions: m.Positions | None = None
        self.mean_bytes = 0.0
        self.cpu_s_at_begin = self.cpu_s = 0.0
        self._on_report = on_report
        self._answers: asyncio.Queue[m.FromWorker] = asyncio.Queue()
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._failure = ""

    async def start(self) -> None:
        # A session of its own: Ctrl-C is for the one who conducts.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "scripts.loading.worker", cwd=ROOT, start_new_session=True,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=MAX_LINE_BYTES,
        )  # fmt: skip
        self._listening = asyncio.create_task(self._listen(self._process))
        self.tell(self.plan)

    async def ready(self) -> None:
        ready = await self.answer(m.Ready, READY_TIMEOUT_S)
        self.mean_bytes = ready.mean_bytes
        self.cpu_s_at_begin = self.cpu_s = ready.cpu_s

    def tell(self, message: m.ToWorker) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(m.encode_line(message))

    async def answer(self, kind: type[Answer], timeout_s: float) -> Answer:
        """The next answer, which must be of this kind."""
        try:
            async with asyncio.timeout(timeout_s):
                message = await self._answers.get()
        except TimeoutError:
            raise WorkerFailed(f"{self.name}: no {kind.__name__} in {timeout_s:.0f} s") from None
        if isinstance(message, m.Failed):
            self._answers.put_nowait(message)  # whoever asks again is told the same
            raise WorkerFailed(f"{self.name}: {self._failure}")
        if not isinstance(message, kind):
            raise WorkerFailed(f"{self.name} answered {message!r}")
        return message

    def check(self) -> None:
        """WorkerFailed where it has, though nobody asked."""
        if self._failure:
            raise WorkerFailed(f"{self.name}: {self._failure}")

    async def end(self) -> None:
        """May be called twice, and on one that never started."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(EXIT_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        if self._listening is not None:
            await self._listening

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            message = m.from_worker.decode(line)
            if isinstance(message, m.Report):
                self.cpu_s = message.cpu_s
                self._on_report(self, message)
            elif isinstance(message, m.Positions):
                self.positions = message
            else:
                if isinstance(message, m.Failed):
                    self._failure = message.reason
                self._answers.put_nowait(message)
        code = await process.wait()
        self._failure = self._failure or f"the process ended with code {code}"
        self._answers.put_nowait(m.Failed(self._failure))
