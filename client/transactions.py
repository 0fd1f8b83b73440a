"""Publishing exactly once: stage batches for a numbered step, then commit the step.

    stage    durable in the broker when it returns, seen by no reader
    commit   all of it becomes readable; a step that was committed before stays as it is

Any number of processes may stage for one step, and each hands the positions it got to the one that
commits. Everything here may be repeated: what was staged twice is published once, as the positions
in the commit say. So all calls try again, for `retry_timeout_s`, while the broker is not there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, Self, TypeVar

from ..protocol import api
from ..protocol import messages as m
from ..protocol.constants import MAX_STAGED_BATCHES
from ..protocol.errors import InternalError, LimitExceeded, RequestTimeout
from ..protocol.header import Buffer
from .cluster import Cluster
from .connection import DEFAULT_REQUEST_TIMEOUT_S

logger = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_RETRY_TIMEOUT_S: Final = 120.0
DEFAULT_COMMIT_TIMEOUT_S: Final = 600.0


class Target(NamedTuple):
    """An encoded batch and where it belongs."""

    topic: str
    partition: int
    batch: Buffer


class Committed(NamedTuple):
    """What a commit found."""

    was_done: bool  # the step, or a later one, had been committed before
    last_step: int


class Transactions:
    """Example::

    async with Transactions("127.0.0.1:7400") as transactions:
        positions = await transactions.stage("import-7", 0, [Target("orders", 0, batch)])
        await transactions.commit("import-7", 0, positions)
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] = "127.0.0.1:7400",
        *,
        client_name: str = "seglog-python",
        request_timeout_s: float = DEFAULT_REQUEST_TIMEOUT_S,
        retry_timeout_s: float = DEFAULT_RETRY_TIMEOUT_S,
        commit_timeout_s: float = DEFAULT_COMMIT_TIMEOUT_S,
    ) -> None:
        self._cluster = Cluster(
            bootstrap, client_name=client_name, request_timeout_s=request_timeout_s
        )
        self._retry_timeout_s = retry_timeout_s
        self._commit_timeout_s = commit_timeout_s

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Nothing is asked of the broker yet: it may come up later."""

    async def close(self) -> None:
        """Close the connections; may be called twice."""
        await self._cluster.close()

    async def partition_count(self, topic: str) -> int:
        """Asked of the broker now; a missing topic is created where the broker does that."""
        return await self._repeat(lambda: self._partition_count(topic))

    async def _partition_count(self, topic: str) -> int:
        await self._cluster.refresh([topic], may_create=True)
        return self._cluster.metadata.partition_count(topic)

    async def last_step(self, name: str) -> int:
        """The last step of a transaction that was decided; -1 where there is none."""
        request = m.DescribeTransactionRequest(name)
        response: m.DescribeTransactionResponse = await self._repeat(
            lambda: self._cluster.request_to_any(api.DESCRIBE_TRANSACTION, request)
        )
        return response.last_step

    async def stage(self, name: str, step: int, batches: Sequence[Target]) -> list[int]:
        """Make batches durable for a step; their positions, in order, for the commit.

        StepCommitted where the step, or a later one, was decided before.
        """
        request = m.StageRequest(
            name,
            step,
            [
                m.ProduceBatch(topic, partition, memoryview(batch))
                for topic, partition, batch in batches
            ],
        )
        return await self._repeat(lambda: self._stage(request))

    async def _stage(self, request: m.StageRequest) -> list[int]:
        response: m.StageResponse = await self._cluster.request_to_any(api.STAGE, request)
        if len(response.results) != len(request.batches):
            raise InternalError(
                f"{len(response.results)} results for {len(request.batches)} batches"
            )
        for result in response.results:
            if result.error is not None:
                raise result.error.to_exception()
        return [result.position for result in response.results]

    async def commit(
        self, name: str, step: int, positions: Sequence[int], *, is_last: bool = False
    ) -> Committed:
        """Publish what was staged at these positions, in their order, once.

        With `is_last` no step follows: the broker need not remember the transaction for long. A
        large step takes its time: a broker that is there is waited for, for `commit_timeout_s`.
        """
        if len(positions) > MAX_STAGED_BATCHES:
            raise LimitExceeded(
                f"step {step} of {name} has {len(positions)} batches, {MAX_STAGED_BATCHES} are "
                "allowed: use larger batches, or write to fewer partitions from fewer tasks"
            )
        request = m.CommitStagedRequest(name, step, list(positions), is_last)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._commit_timeout_s
        while True:
            try:
                response: m.CommitStagedResponse = await self._repeat(
                    lambda: self._cluster.request_to_any(api.COMMIT_STAGED, request)
                )
            except RequestTimeout:
                if loop.time() > deadline:
                    raise
                logger.info("step %d of %s is still being published", step, name)
            else:
                return Committed(response.was_done, response.last_step)

    async def _repeat(self, call: Callable[[], Awaitable[T]]) -> T:
        return await self._cluster.retry(call, timeout_s=self._retry_timeout_s)
