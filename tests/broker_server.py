"""A broker in a process of its own, for tests without an event loop: stopped, killed, started again
on the same port and folder.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from scripts.ports import kept_port

PATIENCE_S = 120


class BrokerServer:
    """Running inside `with`, but for what a test does to it. `settings` as `name=value`."""

    def __init__(self, data: Path, *settings: str) -> None:
        self._data = data
        self._settings = settings
        self._port = kept_port()  # it comes back there after a kill
        self._process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Return once it listens."""
        assert self._process is None
        flags = [word for setting in self._settings for word in ("--set", setting)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "seglog", "serve", "--data", str(self._data), "--port",
             str(self._port), "--log-level", "error", *flags],
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("listening on "), line
        assert line.strip().endswith(f":{self._port}"), line

    def stop(self) -> None:
        """As an operator stops it."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(PATIENCE_S)
            assert process.stdout is not None
            process.stdout.close()

    @contextmanager
    def away(self, seconds: float) -> Iterator[None]:
        """Killed now, and back after `seconds`; returns once it is back."""
        self.kill()
        back = threading.Thread(target=self._come_back, args=(seconds,))
        back.start()
        try:
            yield
        finally:
            back.join(PATIENCE_S)

    def _come_back(self, seconds: float) -> None:
        time.sleep(seconds)  # the fault itself: how long it lasts
        self.start()
