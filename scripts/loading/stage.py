"""What a run needs around it: a broker, topics, someone who watches. It is there before the load
begins, and gone after it: topics and the group of a broker that is not ours are deleted, a broker
that is ours is stopped and its folder removed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

from scripts.loading.broker import BrokerProcess, BrokerWatch, find_listener
from scripts.loading.workload import Workload
from seglog import Admin
from seglog.protocol.errors import SeglogError, UnknownGroup

#: A broker that is not there is soon said: the clients of the load are more patient.
REACH_S: Final = 2.0

logger = logging.getLogger(__name__)


class Place(NamedTuple):
    """Where the load goes: to a broker that is there, or to one that is started for it."""

    bootstrap: str = ""  # empty: start one
    folder: Path | None = None  # for its data; None: the system's temporary folder
    settings: tuple[str, ...] = ()  # of the broker that is started, KEY=VALUE
    keeps_topics: bool = False


class Stage:
    """Of one run."""

    def __init__(self, place: Place, workload: Workload) -> None:
        self._place = place
        self._workload = workload
        token = secrets.token_hex(4)
        self.topics = [f"loadgen-{token}-{number}" for number in range(workload.topics)]
        self.group = f"loadgen-{token}"
        self.bootstrap = place.bootstrap
        self.watch: BrokerWatch | None = None
        self._broker: BrokerProcess | None = None
        self._pid = 0  # of a broker that is not ours

    @asynccontextmanager
    async def set(self) -> AsyncIterator[None]:
        async with self._reached_broker(), self._made_topics():
            yield

    @asynccontextmanager
    async def _reached_broker(self) -> AsyncIterator[None]:
        if self._place.bootstrap:
            async with Admin(self.bootstrap, request_timeout_s=REACH_S):
                pass
            self._pid = find_listener(self.bootstrap)
            self.watch = BrokerWatch(None) if self._pid else None
            yield
            return
        self._broker = BrokerProcess(self._place.folder, list(self._place.settings))
        try:
            await self._broker.start()
            self.bootstrap = self._broker.bootstrap
            self.watch = BrokerWatch(self._broker.folder / "data")
            yield
        finally:
            await self._broker.stop()
            self._broker.delete()

    @asynccontextmanager
    async def _made_topics(self) -> AsyncIterator[None]:
        w = self._workload
        made: list[str] = []
        async with Admin(self.bootstrap) as admin:
            try:
                for topic in self.topics:
                    await admin.create_topic(topic, w.partitions, {"durability": w.durability})
                    made.append(topic)
                yield
            finally:
                if self._broker is None and not self._place.keeps_topics:
                    await self._clean_up(admin, made)

    async def _clean_up(self, admin: Admin, topics: list[str]) -> None:
        """Said where it fails, and no more: why a run failed must not be hidden by it."""
        try:
            for topic in topics:
                await admin.delete_topic(topic)
            if self._workload.consumes and self._workload.sharing == "group":
                await admin.delete_group(self.group)
        except UnknownGroup:
            pass  # nobody joined
        except SeglogError as error:
            logger.warning("topics or group of this run (%s) are left: %s", self.group, error)

    # --- the broker ---

    @property
    def kills(self) -> int:
        return self._broker.kills if self._broker is not None else 0

    @property
    def _broker_pid(self) -> int:
        return self._broker.pid if self._broker is not None else self._pid

    def check(self) -> None:
        """BrokerFailed where a broker that is ours has ended, and nobody killed it."""
        if self._broker is not None and not self._workload.kill_broker_every_s:
            self._broker.check()

    def begin_watching(self) -> None:
        if self.watch is not None:
            self.watch.begin(self._broker_pid)

    async def sample(self, second: float) -> None:
        if self.watch is not None:
            # In a thread: a folder with many files takes a while.
            await asyncio.to_thread(self.watch.sample, self._broker_pid, second)

    @asynccontextmanager
    async def killed_broker(self) -> AsyncIterator[None]:
        """Again and again while this lasts, where the workload asks for it; it runs afterwards."""
        every_s, broker = self._workload.kill_broker_every_s, self._broker
        if not every_s or broker is None:
            yield
            return
        over = asyncio.Event()

        async def kill() -> None:
            while not await happens(over, every_s):
                await broker.kill()

        killing = asyncio.create_task(kill())
        try:
            yield
        finally:
            over.set()
            await killing


async def happens(event: asyncio.Event, within_s: float) -> bool:
    """Whether it does."""
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
