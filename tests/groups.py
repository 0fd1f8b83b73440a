"""What the tests of consumer groups share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from seglog import Consumer, TopicPartition

#: Long enough for a busy machine; whoever waits for its end sets his own.
SESSION_MS = 30_000
PATIENCE_S = 120


class Calls:
    """The callbacks of a consumer, as they came."""

    def __init__(self) -> None:
        self.made: list[tuple[str, list[TopicPartition]]] = []
        self.held: set[TopicPartition] = set()
        self._changed = asyncio.Event()

    def options(self) -> dict[str, Any]:
        return {f"on_{name}": self._taker(name) for name in ("assigned", "revoked", "lost")}

    def _taker(self, name: str) -> Callable[[list[TopicPartition]], None]:
        def take(names: list[TopicPartition]) -> None:
            self.made.append((name, names))
            if name == "assigned":
                self.held |= set(names)
            else:
                self.held -= set(names)
            self._changed.set()

        return take

    async def until(self, condition: Callable[[Calls], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    async def until_held(self, count: int) -> None:
        await self.until(lambda calls: len(calls.held) == count)

    def of(self, name: str) -> list[list[TopicPartition]]:
        return [names for called, names in self.made if called == name]


def member_of(broker: Any, *topics: Any, calls: Calls | None = None, **options: Any) -> Consumer:
    """A consumer in group `g`, from the log start."""
    defaults = {
        "group": "g",
        "start": "earliest",
        "session_timeout_ms": SESSION_MS,
        "bootstrap": broker.bootstrap,
    }
    called = {} if calls is None else calls.options()
    return Consumer(*topics, **(defaults | called | options))


async def eventually(ask: Callable[[], Coroutine[Any, Any, Any]], expected: Any) -> None:
    """For what only the broker knows: asked until it is so."""
    found = None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while (found := await ask()) != expected:  # noqa: ASYNC110 - nobody here tells it
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{found!r}, not {expected!r}") from None


async def fill(admin: Any, producer: Any, topic: str = "t", partitions: int = 1, count: int = 100,
               per_batch: int = 10, **config: Any) -> None:  # fmt: skip
    """A topic with the numbers 0 to `count` - 1 in each partition."""
    await admin.create_topic(topic, partitions, config)
    for number in range(partitions):
        for start in range(0, count, per_batch):
            values = [b"%d" % n for n in range(start, min(count, start + per_batch))]
            await producer.send_batch(topic, values, partition=number)
    await producer.flush()
