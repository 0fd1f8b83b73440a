"""The broker as the gateway sees it: one Producer and one Admin for all requests.

Both are opened when they are first needed and again after they failed for good, so a gateway starts
without a broker and recovers by itself. Before work is taken on, the broker must have answered
within the last second; where it does not, the request is refused with NoBroker, and nothing was
sent. So a request that comes while the broker is down fails soon and safely, and only one that was
under way when it went down can end without knowing its outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from ..client.admin import Admin
from ..client.consumer import Consumer
from ..client.producer import Producer
from ..protocol.errors import NoBroker, SeglogError, ShuttingDown
from .settings import GatewaySettings

logger = logging.getLogger(__name__)

CLIENT_NAME: Final = "seglog-gateway"
REACHED_FOR_S: Final = 1.0
PROBE_TIMEOUT_S: Final = 2.0
#: One batch of a partition under way, and no linger: the first record goes at once, and what comes
#: meanwhile, of however many requests, goes together in the next batch.
MAX_IN_FLIGHT: Final = 1
LINGER_MS: Final = 0


class Backend:
    """Belongs to one gateway, in one event loop."""

    def __init__(self, bootstrap: str, settings: GatewaySettings) -> None:
        self._bootstrap = bootstrap
        self._settings = settings
        self._timeout_s = settings.broker_timeout_ms / 1000
        self._admin: Admin | None = None
        self._producer: Producer | None = None
        self._probing: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[Producer] | None = None
        self._reached_at = -REACHED_FOR_S
        self.stopping = asyncio.Event()

    async def close(self) -> None:
        """Send what was taken, then close everything; may be called twice."""
        self.stopping.set()
        tasks = [task for task in (self._probing, self._opening) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        producer, self._producer = self._producer, None
        admin, self._admin = self._admin, None
        if producer is not None:
            await self._close_producer(producer, self._timeout_s)
        if admin is not None:
            await admin.close()

    # --- who does the work ---

    async def admin(self) -> Admin:
        """NoBroker where the broker does not answer now."""
        await self.reach()
        if self._admin is None:
            raise ShuttingDown("the gateway is stopping")
        return self._admin

    async def producer(self) -> Producer:
        """As `admin`."""
        await self.reach()
        if self._producer is None:
            if self._opening is None:
                self._opening = asyncio.create_task(self._open_producer())
                self._opening.add_done_callback(self._opened)
            return await asyncio.shield(self._opening)
        return self._producer

    def consumer(self, names: list[tuple[str, int]], starts: dict[tuple[str, int], int], *,
                 buffer_bytes: int, topic: str | None = None) -> Consumer:  # fmt: skip
        """One of its own for each reader, not yet open: of these partitions, or of a topic with all
        that it will have. Nothing is skipped: where records are gone, it raises."""
        return Consumer(
            topic,
            assign=None if topic is not None else names,
            bootstrap=self._bootstrap,
            start=starts,
            on_reset="error",
            max_buffer_bytes=buffer_bytes,
            fetch_max_bytes=buffer_bytes,
            partition_max_bytes=buffer_bytes,
            client_name=CLIENT_NAME,
            request_timeout_s=self._timeout_s,
        )

    async def drop(self, producer: Producer) -> None:
        """It failed for good: the next request gets another."""
        if self._producer is producer:
            self._producer = None
            await self._close_producer(producer, 0)

    # --- is it there ---

    async def reach(self) -> None:
        """Return where the broker has answered lately; who asks while another does waits too."""
        if self.stopping.is_set():
            raise ShuttingDown("the gateway is stopping")
        now = asyncio.get_running_loop().time()
        if self._admin is not None and now - self._reached_at < REACHED_FOR_S:
            return
        if self._probing is None:
            self._probing = asyncio.create_task(self._probe())
            self._probing.add_done_callback(self._probed)
        await asyncio.shield(self._probing)

    async def _probe(self) -> None:
        try:
            async with asyncio.timeout(min(PROBE_TIMEOUT_S, self._timeout_s)):
                if self._admin is None:
                    admin = Admin(
                        self._bootstrap,
                        client_name=CLIENT_NAME,
                        request_timeout_s=self._timeout_s,
                    )
                    await admin.start()
                    self._admin = admin
                await self._admin.metadata([])
        except TimeoutError:
            raise NoBroker(f"no broker answers at {self._bootstrap}") from None
        self._reached_at = asyncio.get_running_loop().time()

    def _probed(self, task: asyncio.Task[None]) -> None:
        self._probing = None
        _look_at(task)

    async def _open_producer(self) -> Producer:
        producer = Producer(
            self._bootstrap,
            linger_ms=LINGER_MS,
            max_in_flight=MAX_IN_FLIGHT,
            delivery_timeout_s=self._timeout_s,
            request_timeout_s=self._timeout_s,
            client_name=CLIENT_NAME,
        )
        await producer.start()
        self._producer = producer
        return producer

    def _opened(self, task: asyncio.Task[Producer]) -> None:
        self._opening = None
        _look_at(task)

    async def _close_producer(self, producer: Producer, timeout_s: float) -> None:
        try:
            await producer.close(timeout_s)
        except SeglogError as error:
            # Whoever awaited these was told; this is about those that nobody waited for.
            logger.error("records were not delivered: %s", error)


def _look_at(task: asyncio.Task[Any]) -> None:
    """Its error is for those who wait for it: nobody may be left."""
    if not task.cancelled():
        task.exception()


async def unless_stopped(
    stopping: asyncio.Event, work: Coroutine[Any, Any, Any], timeout_s: float | None
) -> Any | None:
    """The result of `work`; None where the time is over, or the gateway stops, before it is there.

    Then `work` was cancelled.
    """
    task = asyncio.ensure_future(work)
    stop = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({task, stop}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, stop):
            each.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)
