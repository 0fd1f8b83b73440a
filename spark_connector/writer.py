"""The sink: what Spark calls in the driver and in its tasks, and why each row is written once.

    task     write    stages its rows under (transaction, step), and reports their positions
    driver   commit   publishes the step: the positions of the attempts that Spark chose

A stream's transaction is its query id, which the checkpoint keeps, and the step is the batch id. A
batch that is replayed after a restart has the same two: the broker knows whether the step is
published, and then neither tasks nor driver add anything. A batch write has a transaction of its
own, made in the driver and sent along; or the name and number that the user gave.

An attempt that failed, or was slower than another, staged what no commit names: it goes with the
step, or expires. One that comes after the commit is refused by the broker.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ..client.blocking_transactions import SyncTransactions
from ..protocol.errors import SeglogError, StepCommitted
from .connections import client_name
from .options import SERVERS, InvalidOption, Options
from .staged_write import StagedWrite
from .write_options import (
    COMMIT_TIMEOUT,
    RETRY_TIMEOUT,
    TOPIC,
    TXN_APP_ID,
    TXN_VERSION,
    write_options,
)
from .write_schema import check_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


class StaleBatch(RuntimeError):
    """A batch that is older than what its query has published."""


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """What a task tells the driver."""

    transaction: str
    step: int
    positions: list[int] = field(default_factory=list)
    record_count: int = 0
    was_committed: bool = False  # the step was published before: this task wrote nothing


def make_batch_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceArrowWriter:
    """For df.write; refuses, in the driver, what cannot be written."""
    if overwrite:
        raise InvalidOption('a log only grows: use .mode("append"), or delete the topic first')
    return BatchWriter(schema, write_options(options))


def make_stream_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceStreamArrowWriter:
    """For df.writeStream. In complete mode the whole result is appended each time."""
    checked = write_options(options)
    if checked.has(TXN_APP_ID):
        raise InvalidOption(
            "txnAppId is for batch writes: a stream is written once by its checkpoint"
        )
    return StreamWriter(schema, checked)


class BatchWriter(DataSourceArrowWriter):
    """One write job. Holds options and names only: it is sent to every task."""

    def __init__(self, schema: StructType, options: Options) -> None:
        check_schema(schema, options.has(TOPIC))
        self._options = options
        application = options.get(TXN_APP_ID)
        self._is_named = application is not None
        self._transaction = f"app-{application}" if application else f"job-{uuid.uuid4().hex}"
        self._step = options[TXN_VERSION] if application else 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return _write(iterator, self._transaction, self._step, self._options)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        # A job's own transaction ends with it; one that the user named may go on.
        _commit(messages, self._transaction, self._step, self._options, is_last=not self._is_named)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nobody tries this job again: it ends with nothing, and its staged batches go at once."""
        _log_abort(messages, self._transaction, self._step)
        if self._is_named:
            return  # somebody may: then this is taken up again
        try:
            _client(self._options).commit(self._transaction, self._step, (), is_last=True)
        except SeglogError as error:
            logger.warning("%s: what it staged expires later: %s", self._transaction, error)


class StreamWriter(DataSourceStreamArrowWriter):
    """Made anew for each micro-batch, and again for its commit."""

    def __init__(self, schema: StructType, options: Options) -> None:
        check_schema(schema, options.has(TOPIC))
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        query = context and context.getLocalProperty(_QUERY_ID)
        batch = context and context.getLocalProperty(_BATCH_ID)
        if not query or not batch:
            raise RuntimeError(
                f"Spark did not say which batch this is ({_QUERY_ID}={query!r},"
                f" {_BATCH_ID}={batch!r}), so it cannot be written exactly once"
            )
        return _write(iterator, f"spark-{query}", int(batch), self._options)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        found = [message for message in messages if isinstance(message, Staged)]
        if found:  # a micro-batch may have no task at all
            _commit(messages, found[0].transaction, batchId, self._options, is_last=False)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        found = [message for message in messages if isinstance(message, Staged)]
        _log_abort(messages, found[0].transaction if found else "a query", batchId)


# --- in a task -----------------------------------------------------------------------------------


def _write(
    iterator: Iterator[pa.RecordBatch], transaction: str, step: int, options: Options
) -> Staged:
    client = _client(options)
    if not _was_committed(client, transaction, step):
        work = StagedWrite(client, transaction, step, options)
        try:
            for batch in iterator:
                work.add(batch)
            return Staged(transaction, step, work.finish(), work.record_count)
        except StepCommitted:
            # Committed while this attempt was at it: then another one did this task's part.
            _was_committed(client, transaction, step)
        finally:
            work.give_up()
    for _ in iterator:
        pass  # read to its end, so that Spark can use this worker again
    logger.info("%s: step %d is published already", transaction, step)
    return Staged(transaction, step, was_committed=True)


def _was_committed(client: SyncTransactions, transaction: str, step: int) -> bool:
    last_step = client.last_step(transaction)
    if last_step > step:
        raise StaleBatch(_stale(transaction, step, last_step))
    return last_step == step


def _stale(transaction: str, step: int, last_step: int) -> str:
    return (
        f"batch {step} of {transaction} comes after batch {last_step} was published. If this is a"
        " second instance of the query, stop it. If the checkpoint is an older copy, its batches"
        " may now hold other rows than those that were published, so they are not skipped"
        " silently: start with a new checkpoint, from the offsets where the old one really was"
    )


# --- in the driver -------------------------------------------------------------------------------


def _commit(
    messages: Sequence[WriterCommitMessage | None],
    transaction: str,
    step: int,
    options: Options,
    *,
    is_last: bool,
) -> None:
    positions: list[int] = []
    record_count = 0
    was_committed = False
    for message in messages:
        if message is None:  # a task over no partition: Spark makes one up
            continue
        assert isinstance(message, Staged)
        if (message.transaction, message.step) != (transaction, step):
            raise RuntimeError(
                f"a task wrote for step {message.step} of {message.transaction}, the driver commits"
                f" step {step} of {transaction}"
            )
        positions += message.positions
        record_count += message.record_count
        was_committed = was_committed or message.was_committed
    if not positions and not was_committed:
        return
    client = _client(options)
    if was_committed and not _was_committed(client, transaction, step):
        raise RuntimeError(
            f"tasks found step {step} of {transaction} published, and the broker does not know of"
            " it any more: was its data folder replaced? Run the batch again"
        )
    # Also where it was: decided is not yet published, and this waits for it.
    found = client.commit(transaction, step, positions, is_last=is_last)
    if found.was_done and found.last_step > step:
        raise StaleBatch(_stale(transaction, step, found.last_step))
    logger.info(
        "%s: step %d, %d records in %d batches, %s", transaction, step, record_count,
        len(positions), "published before" if found.was_done else "published",
    )  # fmt: skip


def _log_abort(messages: Sequence[WriterCommitMessage | None], transaction: str, step: int) -> None:
    count = sum(len(message.positions) for message in messages if isinstance(message, Staged))
    logger.warning(
        "%s: step %d is given up, with %d staged batches",
        transaction, step, count,
    )  # fmt: skip


# --- in both -------------------------------------------------------------------------------------

_clients: dict[tuple[int, str, int, int], SyncTransactions] = {}
_lock: Final = threading.Lock()


def _client(options: Options) -> SyncTransactions:
    """One for each process and broker, kept between tasks; a forked worker makes its own."""
    servers = options[SERVERS]
    retry_ms, commit_ms = options[RETRY_TIMEOUT], options[COMMIT_TIMEOUT]
    key = (os.getpid(), servers, retry_ms, commit_ms)
    with _lock:
        found = _clients.get(key)
        if found is None:
            found = _clients[key] = SyncTransactions(
                servers,
                client_name=client_name(),
                retry_timeout_s=retry_ms / 1000,
                commit_timeout_s=commit_ms / 1000,
            )
        return found
