"""Requests at a fixed rate, whether or not the server keeps up, and how long each took.

The load costs less than what it measures: the two share a machine.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

from scripts.server_process import Peer
from seglog.protocol.frame import Buffer, pack_frame

TICK_S: Final = 0.001


class Ticks:
    """Wakes the loop every millisecond, to within some 0.1 ms; its own timers are ten
    times coarser.
    """

    def __init__(self, count: int) -> None:
        self.ready, self._waker = socket.socketpair()
        self.ready.setblocking(False)
        self.started = time.perf_counter()
        self._count = count
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        for number in range(1, self._count + 1):
            time.sleep(max(0.0, self.started + number * TICK_S - time.perf_counter()))
            self._waker.send(b"t")
        self._waker.close()


class OpenLoad:
    """Requests at a fixed rate, in bursts of a millisecond's worth, each to an idle connection.

    Counted from when a request was due: one that is late because of an earlier one counts its wait.
    No task and no future: what this process does is taken from the broker on a small machine.
    """

    def __init__(self, peers: Sequence[Peer], parts: Sequence[Buffer]) -> None:
        self._frame = pack_frame(parts)
        self._idle = deque(peers)
        self._due: deque[float] = deque()  # those that no connection is idle for
        self._unanswered = 0
        self._all_answered = asyncio.Event()
        self.taken: list[float] = []

    async def run(self, per_second: float, seconds: float) -> list[float]:
        burst = max(1, round(per_second * TICK_S))
        loop = asyncio.get_running_loop()
        ticks = Ticks(int(seconds / TICK_S))
        tick = 0
        gc.disable()  # the pauses of this process are not the broker's
        with ticks.ready:
            while passed := len(await loop.sock_recv(ticks.ready, 1024)):
                for _ in range(passed):
                    tick += 1
                    self._due.extend([ticks.started + tick * TICK_S] * burst)
                self._send()
        while self._unanswered or self._due:
            self._all_answered.clear()
            await self._all_answered.wait()
        gc.enable()
        return self.taken

    def _send(self) -> None:
        while self._due and self._idle:
            peer = self._idle.popleft()
            peer.on_answer = partial(self._answered, peer, self._due.popleft())
            self._unanswered += 1
            peer.transport.writelines(self._frame)

    def _answered(self, peer: Peer, due: float, _: bytes | bytearray) -> None:
        self.taken.append(time.perf_counter() - due)
        self._unanswered -= 1
        self._idle.append(peer)
        self._send()
        if not self._unanswered:
            self._all_answered.set()
