"""The brokers as a client sees them: who leads what, one connection each, and trying again.

A broker that was reached through a bootstrap address is reached there from then on, and only
otherwise by the address that metadata gives: so a port mapping or a tunnel works without telling
the broker. A connection that ended is made anew by the next one who asks for it. Nothing here sends
a request a second time unless doing it twice is the same as once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Self, TypeVar

from ..protocol import api
from ..protocol.errors import (
    ClientClosed,
    ConnectionLost,
    NoBroker,
    RequestTimeout,
    SeglogError,
    UnknownPartition,
    UnknownTopic,
)
from ..protocol.messages import Message, MetadataRequest, MetadataResponse
from .backoff import backoff_s
from .connection import DEFAULT_CONNECT_TIMEOUT_S, DEFAULT_REQUEST_TIMEOUT_S, Connection
from .metadata import Address, Metadata, TopicPartition, parse_bootstrap

logger = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_METADATA_MAX_AGE_S: Final = 60.0


class Cluster:
    """Shared by nobody: each producer, consumer and admin has its own.

    Example::

        async with Cluster("127.0.0.1:7400") as cluster:
            answer = await cluster.request_to_any(api.METADATA, MetadataRequest())
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        client_name: str = "seglog-python",
        connect_timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S,
        request_timeout_s: float = DEFAULT_REQUEST_TIMEOUT_S,
        metadata_max_age_s: float = DEFAULT_METADATA_MAX_AGE_S,
    ) -> None:
        self._bootstrap = parse_bootstrap(bootstrap)
        self.client_name = client_name
        self.connect_timeout_s = connect_timeout_s
        self.request_timeout_s = request_timeout_s
        self._metadata_max_age_s = metadata_max_age_s
        self.metadata = Metadata()
        self._reached_at: dict[int, Address] = {}
        self._connections: dict[int, Connection] = {}
        self._locks: defaultdict[int | None, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._refresh_lock = asyncio.Lock()
        self._refreshes = 0
        self._refresher: asyncio.Task[None] | None = None
        self._is_closed = False
        #: Called after metadata was refreshed by age.
        self.on_refresh: Callable[[], None] = lambda: None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Reach a broker, any of them, and keep metadata fresh from now on."""
        await self.retry(self.any_connection)
        self._refresher = asyncio.create_task(self._refresh_by_age())

    async def close(self) -> None:
        """Close every connection; may be called twice."""
        self._is_closed = True
        if self._refresher is not None:
            self._refresher.cancel()
            await asyncio.gather(self._refresher, return_exceptions=True)
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close()

    # --- connections ---

    def open_connection(self, broker_id: int) -> Connection | None:
        """The connection to this broker, if there is one now."""
        found = self._connections.get(broker_id)
        return found if found is not None and found.is_open else None

    async def connection(self, broker_id: int) -> Connection:
        """The connection to this broker; made if there is none."""
        async with self._locks[broker_id]:
            found = self.open_connection(broker_id)
            if found is not None:
                return found
            known = (self._reached_at.get(broker_id), self.metadata.brokers.get(broker_id))
            addresses = [address for address in known if address is not None]
            return await self._connect(dict.fromkeys(addresses), broker_id)

    async def reached_at(self, broker_id: int) -> Address:
        """Where this broker is reached, for a connection of one's own."""
        await self.connection(broker_id)
        return self._reached_at[broker_id]

    async def any_connection(self) -> Connection:
        """One that is open, else one made by a bootstrap or other known address."""
        async with self._locks[None]:
            for connection in self._connections.values():
                if connection.is_open:
                    return connection
            return await self._connect(
                dict.fromkeys([*self._bootstrap, *self.metadata.brokers.values()])
            )

    async def _connect(
        self, addresses: Iterable[Address], broker_id: int | None = None
    ) -> Connection:
        failure: SeglogError = NoBroker(f"no address of broker {broker_id} is known")
        for address in addresses:
            try:
                connection = await Connection.open(
                    address.host,
                    address.port,
                    client_name=self.client_name,
                    connect_timeout_s=self.connect_timeout_s,
                    request_timeout_s=self.request_timeout_s,
                )
            except SeglogError as error:
                failure = error
                continue
            found = connection.hello.broker_id
            if broker_id is not None and found != broker_id:
                await connection.close()
                failure = NoBroker(f"{address} is broker {found}, not {broker_id}")
                continue
            if self._has_closed():
                await connection.close()
                raise ClientClosed("closed while connecting")
            older = self._connections.get(found)
            if older is not None and older.is_open:
                # Two callers were at it, one by number, one by address.
                await connection.close()
                return older
            self._connections[found] = connection
            self._reached_at[found] = address
            return connection
        raise failure

    # --- metadata ---

    async def refresh(self, topics: Sequence[str], *, may_create: bool = False) -> None:
        """Ask again for these topics; who asks while another does waits for a common answer."""
        before = self._refreshes
        async with self._refresh_lock:
            # Counted twice: an answer that was under way when we came may be older than our reason.
            if self._refreshes >= before + 2 and all(map(self.metadata.knows, topics)):
                return
            # What must not be created again is not named in a request that may create.
            others = [] if may_create else self.metadata.topics()
            wanted = list(dict.fromkeys([*topics, *others]))
            response: MetadataResponse = await self.request_to_any(
                api.METADATA, MetadataRequest(wanted, may_create)
            )
            self.metadata.update(response)
            self._refreshes += 1

    async def partition_count(self, topic: str, *, may_create: bool = False) -> int:
        """From the cache, or asked for; UnknownTopic where there is none."""
        if not self.metadata.knows(topic):
            await self.retry(lambda: self.refresh([topic], may_create=may_create))
        return self.metadata.partition_count(topic)

    async def leader(self, topic: str, partition: int) -> int:
        """The broker_id of the partition's leader, from the cache, or asked for."""
        try:
            return self.metadata.leader(topic, partition)
        except (UnknownTopic, UnknownPartition):
            await self.retry(lambda: self.refresh([topic]))
            return self.metadata.leader(topic, partition)

    async def _refresh_by_age(self) -> None:
        while True:
            await asyncio.sleep(self._metadata_max_age_s)
            if not self.metadata.topics():
                continue
            try:
                await self.refresh([])
            except SeglogError as error:
                logger.warning("metadata could not be refreshed: %s", error)
            else:
                self.on_refresh()

    # --- requests ---

    async def request_to_any(self, which: api.Api, message: Message) -> Any:
        """Ask whichever broker can be reached; once."""
        self._check_open()
        connection = await self.any_connection()
        return await connection.request(which, message)

    async def request_to_leader(
        self, topic: str, partition: int, which: api.Api, message: Message
    ) -> Any:
        """Ask the leader of a partition; once. Routes by metadata, which is refreshed as needed."""
        self._check_open()
        connection = await self.connection(await self.leader(topic, partition))
        return await connection.request(which, message)

    async def by_leader(
        self, partitions: Iterable[TopicPartition], *, skips_missing: bool = False
    ) -> dict[int, list[TopicPartition]]:
        """Partitions by the broker that leads them; one that is not there is raised or skipped."""
        grouped: dict[int, list[TopicPartition]] = {}
        for name in partitions:
            try:
                leader = await self.leader(*name)
            except (UnknownTopic, UnknownPartition):
                if not skips_missing:
                    raise
            else:
                grouped.setdefault(leader, []).append(name)
        return grouped

    async def retry(
        self,
        call: Callable[[], Awaitable[T]],
        *,
        timeout_s: float | None = None,
        may_repeat: bool = True,
    ) -> T:
        """`await call()`, again after an error that may pass, until `timeout_s` is over.

        Without `may_repeat` a call is not repeated once a request may have reached the broker.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.request_timeout_s if timeout_s is None else timeout_s)
        attempt = 0
        while True:
            try:
                return await call()
            except SeglogError as error:
                unknown = isinstance(error, ConnectionLost | RequestTimeout)
                delay = backoff_s(attempt)
                if not error.retriable or (unknown and not may_repeat):
                    raise
                if self._is_closed or loop.time() + delay > deadline:
                    raise
                logger.debug("attempt %d failed, again in %.2f s: %s", attempt, delay, error)
            await asyncio.sleep(delay)
            attempt += 1

    def _has_closed(self) -> bool:
        return self._is_closed

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("this client is closed")
