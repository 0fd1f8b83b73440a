"""The broker beside the load: started in a folder of its own, watched, killed where asked.

Watching is reading the process's counters once a second: CPU, memory without the mapped log (that
is the page cache's), bytes written, and the size of the data folder where it is ours.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Final

import psutil
from msgspec import Meta, Struct

from scripts.ports import kept_port

START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 30.0


class BrokerSample(Struct, frozen=True, kw_only=True):
    """The broker's process at one moment."""

    second: Annotated[float, Meta(description="since the begin of the load")]
    cpu_percent: Annotated[float, Meta(description="of one core, since the last sample")]
    memory_bytes: Annotated[int, Meta(description="of its own, without the mapped log")]
    written_bytes: Annotated[int, Meta(description="by the process, since the load began")]
    disk_bytes: Annotated[int, Meta(description="of the data folder; -1 where it is not known")]


class BrokerFailed(Exception):
    """The broker could not be started, or has ended by itself."""


class BrokerProcess:
    """`seglog serve` on a free port, with its data in a temporary folder below `parent`."""

    def __init__(self, parent: Path | None, settings: list[str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="seglog-loadgen-", dir=parent))
        self._settings = settings
        self._port = kept_port()  # it comes back there after a kill
        self._process: asyncio.subprocess.Process | None = None
        self.kills = 0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    async def start(self) -> None:
        """Listening when it returns. Of a session of its own: Ctrl-C is not for it."""
        flags = [word for setting in self._settings for word in ("--set", setting)]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "seglog", "serve", "--data", str(self.folder / "data"),
            "--port", str(self._port), "--log-level", "error", *flags,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                line = (await self._process.stdout.readline()).decode()
        except TimeoutError:
            line = f"nothing for {START_TIMEOUT_S:.0f} s"
        found = re.search(r"listening on \S+:(\d+)", line)
        if found is None:
            await self.stop()
            raise BrokerFailed(f"the broker did not start: {line.strip() or 'see its message'}")
        self._port = int(found[1])

    async def kill(self) -> None:
        """As a crash would; then start it again on the same data and port."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()
        self.kills += 1
        await self.start()

    async def stop(self) -> None:
        """May be called twice."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    def check(self) -> None:
        """BrokerFailed where it has ended by itself."""
        if self._process is not None and self._process.returncode is not None:
            raise BrokerFailed(f"the broker ended with code {self._process.returncode}")

    def delete(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class BrokerWatch:
    """Samples of a process that may be another one after a kill: counters go on."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._process: psutil.Process | None = None
        self._cpu_before = self._written_before = 0.0  # of processes that are gone
        self._cpu = self._written = 0.0
        self._last_at = time.monotonic()
        self._last_cpu = 0.0
        self._written_at_begin = self._cpu_at_begin = 0.0
        self.samples: list[BrokerSample] = []

    def begin(self, pid: int) -> None:
        """What comes from now on counts."""
        self._read(pid)
        self._last_at, self._last_cpu = time.monotonic(), self._cpu_before + self._cpu
        self._cpu_at_begin = self._last_cpu
        self._written_at_begin = self._written_before + self._written

    def sample(self, pid: int, second: float) -> None:
        """One more; nothing where the process cannot be read now (it is being restarted)."""
        memory = self._read(pid)
        if memory is None:
            return
        now, cpu = time.monotonic(), self._cpu_before + self._cpu
        passed = max(now - self._last_at, 1e-3)
        self.samples.append(
            BrokerSample(
                second=round(second, 3),
                cpu_percent=round(100 * (cpu - self._last_cpu) / passed, 1),
                memory_bytes=memory,
                written_bytes=int(self._written_before + self._written - self._written_at_begin),
                disk_bytes=folder_bytes(self._folder) if self._folder is not None else -1,
            )
        )
        self._last_at, self._last_cpu = now, cpu

    @property
    def cpu_seconds(self) -> float:
        return self._last_cpu - self._cpu_at_begin

    def _read(self, pid: int) -> int | None:
        """Take the counters; its memory."""
        try:
            if self._process is None or self._process.pid != pid:
                process = psutil.Process(pid)
                self._cpu_before += self._cpu
                self._written_before += self._written
                self._process, self._cpu, self._written = process, 0.0, 0.0
            with self._process.oneshot():
                times = self._process.cpu_times()
                self._cpu = times.user + times.system
                memory = self._process.memory_info()
                if hasattr(self._process, "io_counters"):  # not on macOS
                    self._written = self._process.io_counters().write_bytes
            return int(memory.rss - getattr(memory, "shared", 0))
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            return None


def folder_bytes(folder: Path) -> int:
    """What the files take on disk: preallocated space counts, as it does for `df`."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_blocks * 512
            except FileNotFoundError:
                pass  # deleted meanwhile
    return total


def split_address(bootstrap: str) -> tuple[str, int]:
    """Of `host:port`; ValueError where it is not."""
    host, _, port = bootstrap.strip().rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{bootstrap!r} is not host:port")
    return host.strip("[]"), int(port)


def is_loopback(bootstrap: str) -> bool:
    """Whether all addresses of the host are this machine's own."""
    host, port = split_address(bootstrap)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(info[4][0])).is_loopback for info in found)


def find_listener(bootstrap: str) -> int:
    """The process that listens at an address of this machine; 0 where it cannot be told."""
    try:
        if not is_loopback(bootstrap):
            return 0
        port = split_address(bootstrap)[1]
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                return connection.pid or 0
    except psutil.AccessDenied:
        pass
    return 0
