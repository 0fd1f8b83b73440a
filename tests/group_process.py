"""A member of a group in a process of its own: it says what it does, a JSON line each.

    python -m tests.group_process BOOTSTRAP TOPIC SESSION_MS [INSTANCE_ID]

It handles batches, and commits after each. Words on its input: `hold` (keep the next batch in hand,
said as "holding"), `go` (on with it), `stop` (close and end). The end of the input ends it too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Any

from seglog import Consumer
from seglog.protocol.errors import SeglogError
from seglog.protocol.records import Columns


def say(event: str, **what: Any) -> None:
    print(json.dumps({"event": event, **what}), flush=True)  # noqa: T201


class Orders:
    """What was said on the input."""

    def __init__(self) -> None:
        self.holds = False
        self.may_go = asyncio.Event()
        self.stop = asyncio.Event()

    async def read(self) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while word := (await reader.readline()).decode().strip():
            if word == "hold":
                self.holds = True
                say("ready to hold")
            elif word == "go":
                self.holds = False
                self.may_go.set()
            else:
                break
        self.stop.set()
        self.may_go.set()


async def handle(consumer: Consumer, batch: Columns, orders: Orders) -> None:
    place = {"partition": batch.partition, "first": batch.offsets[0], "next": batch.next_offset}
    if orders.holds:
        say("holding", **place)
        await orders.may_go.wait()
    say("handled", **place)
    try:
        await consumer.commit()
        say("committed", **place)
    except SeglogError as error:
        say("refused", error=type(error).__name__, **place)


async def read(consumer: Consumer, orders: Orders) -> None:
    async for batch in consumer.batches():
        await handle(consumer, batch, orders)


async def main(bootstrap: str, topic: str, session_ms: str, instance_id: str | None = None) -> None:
    orders = Orders()
    listening = asyncio.create_task(orders.read())

    def teller(event: str) -> Any:
        return lambda names: say(event, partitions=[name.partition for name in names])

    consumer = Consumer(
        topic,
        bootstrap=bootstrap,
        group="g",
        start="earliest",
        instance_id=instance_id,
        session_timeout_ms=int(session_ms),
        auto_commit=False,
        on_assigned=teller("assigned"),
        on_revoked=teller("revoked"),
        on_lost=teller("lost"),
    )
    async with consumer:
        say("joined")
        reading = asyncio.create_task(read(consumer, orders))
        stopped = asyncio.create_task(orders.stop.wait())
        await asyncio.wait({reading, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            await reading  # it failed
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
    say("closed")
    listening.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
