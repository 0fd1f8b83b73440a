"""A server beside a benchmark: its process, and connections that speak the protocol to it.

No client library stands between: what is measured is the server.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from seglog.protocol import api
from seglog.protocol import messages as m
from seglog.protocol.frame import SHARED_BUFFER_BYTES, Buffer, FrameReceiver, pack_frame


class Server:
    """A server process that prints `listening on HOST:PORT`."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"listening on \S+:(\d+)", line)
        if found is None:
            raise RuntimeError(f"{command[0]} did not start: {line!r}")
        self.port = int(found[1])

    def rss_bytes(self) -> int:
        """Memory of its own: what it maps of the log is the page cache's, and can be taken back."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


_shared = memoryview(bytearray(SHARED_BUFFER_BYTES))


class Peer(asyncio.BufferedProtocol):
    """One connection with one request under way: sends parts, gives back the answer's frame."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.receiver = FrameReceiver(_shared)
        self.on_answer: Callable[[bytes | bytearray], None] = lambda _: None

    @classmethod
    async def open(cls, port: int, *, greet: bool) -> Peer:
        loop = asyncio.get_running_loop()
        _, peer = await loop.create_connection(cls, "127.0.0.1", port)
        if greet:
            await peer.ask(api.HELLO, m.HelloRequest("bench"))
        return peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's own class

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        for frame in self.receiver.received(nbytes):
            self.on_answer(frame)

    async def send(self, parts: Sequence[Buffer]) -> bytes | bytearray:
        answer: asyncio.Future[bytes | bytearray] = asyncio.get_running_loop().create_future()
        self.on_answer = answer.set_result
        self.transport.writelines(pack_frame(parts))
        return await answer

    async def ask(self, which: api.Api, request: m.Message) -> Any:
        frame = await self.send([api.encode_request(which, 0, request)])
        envelope = api.decode_response_envelope(frame)
        if envelope.error is not None:
            raise envelope.error.to_exception()
        return api.decode_response(which, envelope.body)
