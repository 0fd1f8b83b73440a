"""The real broker in this process, on a free port: for tests, notebooks and small programs.

    async with embedded() as broker:             in the running event loop
        async with Producer(broker.bootstrap) as producer: ...

    with embedded_blocking() as broker:          in a thread with a loop of its own
        with SyncProducer(broker.bootstrap) as producer: ...

Without `data` it keeps everything in a temporary folder, which is deleted with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from .loop_thread import LoopThread

if TYPE_CHECKING:
    from ..server.app import Broker


class EmbeddedBroker(NamedTuple):
    """`bootstrap` is what clients connect to, `data` the folder that holds the log."""

    bootstrap: str
    data: Path
    broker: Broker


@asynccontextmanager
async def embedded(
    data: str | Path | None = None, **settings: Any
) -> AsyncIterator[EmbeddedBroker]:
    """A broker in the running event loop.

    `settings` are the broker's, with underscores in place of dots: `auto_create_topics=True`.
    """
    with _folder(data) as folder:
        running = await _start(folder, settings)
        try:
            yield running
        finally:
            await running.broker.stop()


@contextmanager
def embedded_blocking(data: str | Path | None = None, **settings: Any) -> Iterator[EmbeddedBroker]:
    """A broker in a thread of its own, for callers with or without an event loop."""
    with _folder(data) as folder:
        thread = LoopThread("seglog-embedded")
        try:
            running = thread.call(_start(folder, settings))
            try:
                yield running
            finally:
                thread.call(running.broker.stop())
        finally:
            thread.close()


async def _start(folder: Path, settings: dict[str, Any]) -> EmbeddedBroker:
    # Here, so that a client that embeds no broker does not load one.
    from ..server.app import Broker  # noqa: PLC0415
    from ..server.config import BrokerConfig  # noqa: PLC0415

    config = BrokerConfig(**{"host": "127.0.0.1", "port": 0, **settings, "data": str(folder)})
    broker = Broker(config)
    await broker.start()
    return EmbeddedBroker(f"{config.host}:{broker.port}", folder, broker)


@contextmanager
def _folder(data: str | Path | None) -> Iterator[Path]:
    if data is not None:
        yield Path(data)
        return
    with TemporaryDirectory(prefix="seglog-") as folder:
        yield Path(folder)
