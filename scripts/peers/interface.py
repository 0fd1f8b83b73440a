"""What a broker and its client must be able to do to be measured; the same for all.

A `Server` is one broker process in a folder of its own on a free port of the loopback. A `Client`
is one client library, used as its documentation recommends for throughput (or, with `for_latency`,
for latency). *Durable* means everywhere: the acknowledgement is sent after the record was synced
to disk. *Written* means: after it was handed to the operating system.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import psutil

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
#: Records between two looks at the clock, and in one pipeline where a client has such a thing.
CHUNK: Final = 500
#: Records handed over at once through a client's way for many.
BULK: Final = 10_000
#: Bytes that a consumer asks of one log at a time, where it can say so.
FETCH_BYTES: Final = 2 * 1024 * 1024

OnValues = Callable[[Sequence[bytes]], None]


class Missing(NamedTuple):
    """Why a broker cannot be measured here, and the command that would change it."""

    reason: str
    install: str


class NotStarted(Exception):
    """A broker ended, or did not listen, with what it said last."""


class Amount(NamedTuple):
    """What was read. The clock starts when the first piece is there, `first_records` of them, and
    stops before anything is closed."""

    records: int
    size_bytes: int
    first_records: int
    started: float
    ended: float


class Server(ABC):
    """A broker process; `start` and `stop` may each be called once."""

    def __init__(self, folder: Path, *, is_durable: bool) -> None:
        self.folder = folder
        self.is_durable = is_durable
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder.with_name(folder.name + ".log")

    @classmethod
    @abstractmethod
    def missing(cls, *, is_durable: bool) -> Missing | None:
        """None: it is here and can be as strong as asked."""

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """Of the broker that was found."""

    @classmethod
    @abstractmethod
    def settings(cls, *, is_durable: bool) -> list[str]:
        """How it is run, for the report; no ports and no folders."""

    @abstractmethod
    def prepare(self) -> list[str]:
        """Write what it needs into `folder`; the command that runs it."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> float:
        """Begin the process, without waiting for it; the monotonic time just before."""
        self.folder.mkdir(parents=True)
        command = self.prepare()
        with self._log.open("wb") as log, signals_held():
            began = time.monotonic()
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        return began

    def check_alive(self) -> None:
        if self._process is None or self._process.poll() is not None:
            raise NotStarted(f"{type(self).__name__} is not running: {self.last_words()}")

    def last_words(self) -> str:
        if not self._log.exists():
            return "it said nothing"
        return self._log.read_text(errors="replace")[-1000:].strip() or "it said nothing"

    def memory_bytes(self) -> int:
        """Its own memory: what it maps of its files is the page cache's, and can be taken back."""
        info = psutil.Process(self.pid).memory_info()
        return int(info.rss - getattr(info, "shared", 0))

    def disk_bytes(self) -> int:
        """What its files take on the disk; a hole or a reserved tail counts as what it takes."""
        total = 0
        for path in self.folder.rglob("*"):
            try:
                total += path.stat().st_blocks * 512
            except FileNotFoundError:  # deleted meanwhile
                continue
        return total

    def stop(self) -> None:
        """End the process, politely at first; may be called twice."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Client(ABC):
    """A client library. Opened and used in one process, by one task."""

    #: How it is used, for the report.
    settings: ClassVar[tuple[str, ...]]

    def __init__(self, address: str, *, for_latency: bool = False) -> None:
        self.address = address
        self.for_latency = for_latency

    @classmethod
    @abstractmethod
    def version(cls) -> str: ...

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def create(self, topic: str, *, is_durable: bool) -> None:
        """A topic that is one log."""

    @abstractmethod
    async def delete(self, topic: str) -> None: ...

    @abstractmethod
    async def length(self, topic: str) -> int:
        """How many records the broker says it has."""

    # --- producing: all return when everything is acknowledged ---

    async def produce(self, topic: str, values: Sequence[bytes], until: float) -> int:
        """Hand over record after record until that monotonic time; how many were acknowledged."""
        sent = 0
        for chunk in cycle(in_chunks(values, CHUNK)):
            if time.monotonic() >= until:
                break
            await self.hand_over(topic, chunk)
            sent += CHUNK
        await self.flush()
        return sent

    async def produce_bulk(self, topic: str, values: Sequence[bytes], until: float) -> int:
        """The same through the library's way for many records at once, where it has another."""
        return await self.produce(topic, values, until)

    @abstractmethod
    async def send_and_wait(self, topic: str, value: bytes) -> None:
        """One record, and its acknowledgement."""

    @abstractmethod
    async def hand_over(self, topic: str, values: Sequence[bytes]) -> None:
        """Take these and return, without waiting for acknowledgements unless a buffer is full."""

    @abstractmethod
    async def flush(self) -> None:
        """Wait for what was handed over; raises what was not acknowledged."""

    # --- reading from the first record on; connecting and finding the log is not timed ---

    @abstractmethod
    async def read_records(self, topic: str, count: int) -> Amount:
        """Through the plain iterator, looking at each record's value."""

    @abstractmethod
    async def read_batches(self, topic: str, count: int, on_values: OnValues) -> Amount:
        """As many at once as the library gives; `on_values` gets them as they come."""

    async def follow(self, topic: str, count: int, on_values: OnValues) -> Amount:
        """Records as soon as they are there: `read_batches`, unless that waits to be full."""
        return await self.read_batches(topic, count, on_values)


@contextmanager
def signals_held() -> Iterator[None]:
    """Ctrl-C and SIGTERM come when the block is left: a process that was started inside is known.

    Their handlers are changed, not the signal mask: that one, a new process would inherit.
    """
    came: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def in_chunks(values: Sequence[bytes], size: int) -> list[list[bytes]]:
    """The records in chunks of exactly `size`, each chunk begun where the last one ended."""
    count = max(1, len(values) // size)
    return [
        [values[(chunk * size + index) % len(values)] for index in range(size)]
        for chunk in range(count)
    ]


def free_port() -> int:
    """A port of the loopback that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
