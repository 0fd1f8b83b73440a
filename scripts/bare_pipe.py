"""The baseline of `scripts/bench broker`: a server with no log, as fast as the machine allows.

    python scripts/bare_pipe.py FOLDER

It prints its port and takes frames (a u32 length and the bytes):

    first byte 'f', then u32 size   answers with `size` bytes of a mapped file
    anything else                   goes to a preallocated file, in groups of what came together,
                                    each with one pwritev and one fdatasync, and is answered then

So it does what any broker must (receive, write, sync, answer), and nothing else.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import queue
import socket
import struct
import sys
import threading
from pathlib import Path

import uvloop

from seglog.protocol.frame import SHARED_BUFFER_BYTES, FrameReceiver, pack_frame

FILE_BYTES = 64 << 20
SERVED_BYTES = 64 << 20

Received = tuple["BareConnection", bytes | bytearray]


class Pipe:
    """The file, and the thread that writes it."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.get_running_loop()
        self.queue: queue.SimpleQueue[Received] = queue.SimpleQueue()
        self.folder = folder
        served = os.open(folder / "served", os.O_RDWR | os.O_CREAT)
        os.pwrite(served, os.urandom(1 << 20) * (SERVED_BYTES >> 20), 0)
        os.fsync(served)
        self.served = memoryview(mmap.mmap(served, SERVED_BYTES, prot=mmap.PROT_READ))
        self.shared = memoryview(bytearray(SHARED_BUFFER_BYTES))
        threading.Thread(target=self.write, daemon=True).start()

    def new_file(self) -> int:
        path = self.folder / "written"
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(descriptor, 0, FILE_BYTES)
        return descriptor

    def write(self) -> None:
        position = 0
        descriptor = self.new_file()
        while True:
            group = [self.queue.get()]
            try:
                while len(group) < 1000:
                    group.append(self.queue.get_nowait())
            except queue.Empty:
                pass
            length = sum(len(frame) for _, frame in group)
            if position + length > FILE_BYTES:
                os.close(descriptor)
                descriptor, position = self.new_file(), 0
            os.pwritev(descriptor, [frame for _, frame in group], position)
            os.fdatasync(descriptor)
            position += length
            self.loop.call_soon_threadsafe(self.answer, group)

    def answer(self, group: list[Received]) -> None:
        for connection, _ in group:
            connection.transport.writelines(pack_frame([b"ok"]))


class BareConnection(asyncio.BufferedProtocol):
    transport: asyncio.Transport

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self.receiver = FrameReceiver(pipe.shared)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's own class
        if hasattr(socket, "TCP_CONGESTION"):  # as the broker does: not paced, whatever the system
            sending = transport.get_extra_info("socket")
            sending.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        for frame in self.receiver.received(nbytes):
            if frame[:1] == b"f":
                (size,) = struct.unpack(">I", frame[1:5])
                self.transport.writelines(pack_frame([self.pipe.served[:size]]))
            else:
                self.pipe.queue.put((self, frame))


async def main() -> None:
    pipe = Pipe(Path(sys.argv[1]))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: BareConnection(pipe), "127.0.0.1", 0)
    print(f"listening on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
