"""An event loop in a thread of its own, for callers that have none. All blocking clients of a
process share one; it ends with the last of them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")


class LoopThread:
    """`LoopThread.share()`, then `call` from any thread, then `release`."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _shared: ClassVar[LoopThread | None] = None

    def __init__(self, name: str = "seglog-client") -> None:
        self._loop = _new_loop()
        self._process_id = os.getpid()
        self._users = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @classmethod
    def share(cls) -> LoopThread:
        """The one of this process; made if there is none. A forked child gets its own."""
        with cls._lock:
            shared = cls._shared
            if shared is None or shared._process_id != os.getpid():
                shared = cls._shared = cls()
            shared._users += 1
            return shared

    def release(self) -> None:
        """Once for each `share`; the last one ends the thread."""
        with LoopThread._lock:
            self._users -= 1
            if self._users > 0:
                return
            if LoopThread._shared is self:
                LoopThread._shared = None
        self.close()

    def close(self) -> None:
        """End the thread and its loop. Nothing may be under way."""
        if self._process_id == os.getpid() and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for it; interrupted, it is cancelled there."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking call inside the event loop would wait for itself")
        future = self.begin(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop, and let the caller wait when he wants to."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a plain function in the loop's thread and wait for it."""

        async def work() -> T:
            return function(*arguments)

        return self.call(work())

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
