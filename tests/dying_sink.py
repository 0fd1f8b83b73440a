"""Sinks that fail, wait or die where a test asks: the real one, with a seam around each call.

    held   `write` and `commit` say that they are reached, and wait to be let go
    dying  the whole Spark is killed, at one of three points of one batch
    flaky  the first attempt of each task fails after it has staged something
    slow   the first attempt of the first task stages something, and then waits to be let go

Spark loads these by name in its own processes, so what they do is said by options that begin with
`test.`; everything else goes to the real sink.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from seglog.spark_connector.source import SeglogDataSource
from seglog.spark_connector.write_options import write_options
from seglog.spark_connector.writer import BatchWriter, Staged, StreamWriter

if TYPE_CHECKING:
    import pyarrow as pa

#: The process group of the Spark that `dying` kills.
GROUP = "SEGLOG_TEST_PROCESS_GROUP"
PATIENCE_S = 240


def split_options(options: Any) -> tuple[dict[str, str], dict[str, str]]:
    """The sink's options, and the test's without their prefix."""
    given = dict(options)
    test = {name: value for name, value in given.items() if name.lower().startswith("test.")}
    own = {name: value for name, value in given.items() if name not in test}
    return own, {name.lower().removeprefix("test."): value for name, value in test.items()}


class Gate:
    """A place where one process waits until another, which sees it there, lets it go."""

    def __init__(self, folder: Path, name: str) -> None:
        self._reached = folder / f"{name}-reached"
        self._opened = folder / f"{name}-opened"

    @property
    def is_reached(self) -> bool:
        return self._reached.exists()

    def open(self) -> None:
        self._opened.touch()

    def wait(self) -> None:
        self._reached.touch()
        deadline = time.monotonic() + PATIENCE_S
        while not self._opened.exists():
            assert time.monotonic() < deadline, f"nobody opened {self._opened}"
            time.sleep(0.02)


def held(iterator: Iterator[pa.RecordBatch], gate: Gate) -> Iterator[pa.RecordBatch]:
    """The same, with a wait at the gate behind the first."""
    yield from islice(iterator, 1)
    gate.wait()
    yield from iterator


class HeldWriter(StreamWriter):
    """Waits at the gate `write` once something is staged, and at `commit` before it commits."""

    def __init__(self, schema: Any, options: dict[str, str], test: dict[str, str]) -> None:
        super().__init__(schema, write_options(options))
        self._folder = Path(test["folder"])
        self._at = test["at"].split(",")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        if "write" in self._at:
            iterator = held(iterator, Gate(self._folder, "write"))
        return super().write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        if "commit" in self._at:
            Gate(self._folder, "commit").wait()
        super().commit(messages, batchId)


class HeldSink(SeglogDataSource):
    @classmethod
    def name(cls) -> str:
        return "held"

    def streamWriter(self, schema: Any, overwrite: bool) -> HeldWriter:  # noqa: N802 - Spark's name
        return HeldWriter(schema, *split_options(self.options))


class DyingWriter(StreamWriter):
    """`at`: `write`, after something was staged; `decision`, before the commit; `end`, after it."""

    def __init__(self, schema: Any, options: dict[str, str], test: dict[str, str]) -> None:
        super().__init__(schema, write_options(options))
        self._at = test["at"]
        self._batch = int(test["batch"])

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        if self._at == "write" and batch == self._batch:
            super().write(islice(iterator, 1))
            die()
        return super().write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        if self._at == "decision" and batchId == self._batch:
            die()
        super().commit(messages, batchId)
        if self._at == "end" and batchId == self._batch:
            die()


def die() -> None:
    """Driver, JVM and this process, at once and without a goodbye."""
    os.killpg(int(os.environ[GROUP]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class DyingSink(SeglogDataSource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: Any, overwrite: bool) -> DyingWriter:  # noqa: N802 - Spark's name
        return DyingWriter(schema, *split_options(self.options))


def _fail_at_first(write: Any, iterator: Iterator[pa.RecordBatch]) -> Staged:
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        staged: Staged = write(islice(iterator, 1))
        assert staged.positions, "nothing was staged before the failure"
        raise RuntimeError("the first attempt fails, as the test asked")
    result: Staged = write(iterator)
    return result


class FlakyBatchWriter(BatchWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return _fail_at_first(super().write, iterator)


class FlakyStreamWriter(StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return _fail_at_first(super().write, iterator)


class FlakySink(SeglogDataSource):
    @classmethod
    def name(cls) -> str:
        return "flaky"

    def writer(self, schema: Any, overwrite: bool) -> FlakyBatchWriter:
        return FlakyBatchWriter(schema, write_options(self.options))

    def streamWriter(self, schema: Any, overwrite: bool) -> FlakyStreamWriter:  # noqa: N802 - Spark's name
        return FlakyStreamWriter(schema, write_options(self.options))


class SlowBatchWriter(BatchWriter):
    def __init__(self, schema: Any, options: dict[str, str], test: dict[str, str]) -> None:
        super().__init__(schema, write_options(options))
        self._folder = Path(test["folder"])

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        assert context is not None
        if (context.partitionId(), context.attemptNumber()) == (0, 0):
            iterator = held(iterator, Gate(self._folder, "slow"))
        return super().write(iterator)


class SlowSink(SeglogDataSource):
    @classmethod
    def name(cls) -> str:
        return "slow"

    def writer(self, schema: Any, overwrite: bool) -> SlowBatchWriter:
        return SlowBatchWriter(schema, *split_options(self.options))
