"""Transactions for code without an event loop: a Spark executor stages, its driver commits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from .blocking import Blocking
from .transactions import Committed, Target, Transactions


class SyncTransactions(Blocking[Transactions]):
    """Transactions that block. It takes the same options."""

    def __init__(self, bootstrap: str | Iterable[str] = "127.0.0.1:7400", **options: Any) -> None:
        super().__init__(Transactions, bootstrap, **options)

    def partition_count(self, topic: str) -> int:
        """Asked of the broker now; a missing topic is created where the broker does that."""
        return self._thread.call(self._client.partition_count(topic))

    def last_step(self, name: str) -> int:
        """The last step of a transaction that was decided; -1 where there is none."""
        return self._thread.call(self._client.last_step(name))

    def stage(self, name: str, step: int, batches: Sequence[Target]) -> list[int]:
        """Make batches durable for a step; their positions, in order, for the commit."""
        return self._thread.call(self._client.stage(name, step, batches))

    def begin_stage(self, name: str, step: int, batches: Sequence[Target]) -> Future[list[int]]:
        """`stage`, without waiting: the next batches are made while these travel."""
        return self._thread.begin(self._client.stage(name, step, batches))

    def commit(
        self, name: str, step: int, positions: Sequence[int], *, is_last: bool = False
    ) -> Committed:
        """Publish what was staged at these positions, in their order, once."""
        return self._thread.call(self._client.commit(name, step, positions, is_last=is_last))
