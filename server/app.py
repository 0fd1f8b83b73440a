"""The broker: its parts, in the order in which they start and stop.

    data folder ► journal ► topics ► transactions, groups ► listener ► writer ► housekeeping   start
    listener ► housekeeping ► transactions, groups ► writer ► topics ► journal ► data folder   stop

Stopping takes no new request, finishes what was accepted, makes everything durable and leaves logs
that open without a scan. A broker that is killed instead loses nothing that was acked; its logs
recover at the start.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import sys
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

from ..protocol.errors import LimitExceeded
from .config import BrokerConfig
from .connection import Connection
from .group_service import GroupService
from .housekeeping import Housekeeping
from .listener import Listener
from .metrics import Metrics
from .producer_ids import ProducerIds
from .router import Router
from .scrape import Scraper
from .signals import stop_on_signals
from .storage.checked_file import read_checked, write_checked
from .storage.filesystem import FileSystem, storage_error
from .storage.folder import DataFolder
from .storage.journal import Journal
from .topics import Topics
from .transactions import Transactions
from .version import VERSION
from .writer import Writer

logger = logging.getLogger(__name__)

_CLUSTER_FILE: Final = "cluster-id"
_CLUSTER_MAGIC: Final = b"SGCI"

# The writer's thread asks for the interpreter after each sync: the default of 5 ms would be its
# latency.
_SWITCH_INTERVAL_S: Final = 0.0005


class Broker:
    """One broker on one data folder."""

    version = VERSION
    broker_id = 0

    def __init__(self, config: BrokerConfig, fs: FileSystem | None = None) -> None:
        self.config = config
        self.metrics = Metrics()
        self.fs = fs or FileSystem()
        self.fs.on_sync = self.metrics.synced
        self.scraper = Scraper(self)
        self.port = 0
        self.cluster_id = ""
        self.readers = ThreadPoolExecutor(config.reader_threads, "seglog-reader")
        self._stopping: asyncio.Task[None] | None = None
        self._is_started = False

    async def start(self) -> None:
        """Open everything and listen. What fails here leaves nothing open."""
        config = self.config
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self.folder = DataFolder(self.fs, config.data, open_segments=config.open_segments)
        try:
            self.cluster_id = self._read_cluster_id()
            self.producer_ids = ProducerIds(self.fs, self.folder.path)
            self.journal = Journal(self.fs, self.folder.path, config.journal_bytes)
            self.writer = Writer(
                self.journal,
                asyncio.get_running_loop(),
                max_queued_bytes=config.max_queued_bytes,
                metrics=self.metrics,
            )
            self.topics = Topics(self.folder, self.writer, config, self.metrics)
            self.topics.open_all()
            self.transactions = Transactions(self)
            self.transactions.load()
            self.groups = GroupService(self)
            self.groups.load()
            self.listener = Listener(config, Router(self), self.metrics)
            self.port = await self.listener.start()
        except OSError as error:
            self._give_up_start()
            raise storage_error(error, f"opening the data folder {self.folder.path}") from error
        except BaseException:
            self._give_up_start()
            raise
        self.writer.start()
        self.transactions.start()
        self.groups.start()
        self.housekeeping = Housekeeping(self)
        self.housekeeping.start()
        self._is_started = True
        logger.info("serving %s on %s:%d", self.folder.path, config.host, self.port)

    def _give_up_start(self) -> None:
        self.folder.close()
        self.readers.shutdown(wait=False)

    async def stop(self) -> None:
        """See the module. May be called twice, also at the same time."""
        if not self._is_started:
            return
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        self.groups.release_waiters()
        await self.listener.close(self.config.shutdown_timeout_ms / 1000)
        await self.housekeeping.stop()
        await self.transactions.stop()
        await self.groups.stop()
        await self.topics.settle()
        await self.writer.stop()
        self.readers.shutdown(wait=True, cancel_futures=True)
        self.topics.close_all()
        self.journal.close()
        self.folder.close()
        logger.info("stopped")

    def advertised_address(self, connection: Connection) -> tuple[str, int]:
        """Where clients reach this broker: as configured, else by the address this one came to."""
        return self.config.advertised_host or connection.local_host, self.port

    def check_array(self, entries: Sequence[object], name: str) -> None:
        limit = self.config.max_array_length
        if len(entries) > limit:
            raise LimitExceeded(f"{name}: {len(entries)} entries, max.array.length allows {limit}")

    def _read_cluster_id(self) -> str:
        path = f"{self.folder.path}/{_CLUSTER_FILE}"
        if not self.fs.exists(path):
            write_checked(self.fs, path, _CLUSTER_MAGIC, uuid.uuid4().hex)
        return str(read_checked(self.fs, path, _CLUSTER_MAGIC))


async def serve(
    config: BrokerConfig,
    on_listening: Callable[[Broker], None] = lambda _: None,
    beside: Callable[[Broker], AbstractAsyncContextManager[object]] = nullcontext,
) -> None:
    """Run a broker until SIGTERM or SIGINT; a second one exits at once, and loses nothing acked.

    `beside` is entered once the broker serves, and left before it stops: for what uses it in the
    same process.
    """
    stop = stop_on_signals()
    _allow_many_files()
    broker = Broker(config)
    await broker.start()
    # What it has now, it keeps. A full collection looks at all of it while nobody is answered: some
    # 60 ms with the modules alone, more with every partition.
    gc.freeze()
    try:
        async with beside(broker):
            on_listening(broker)
            await stop.wait()
    finally:
        await broker.stop()


def _allow_many_files() -> None:
    """A partition takes two descriptors and a connection one: shells give out a few hundred, though
    the system allows more.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError) as error:  # macOS names a limit that it does not grant
        logger.debug("the limit of open files stays as it is: %s", error)
