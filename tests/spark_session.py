"""Spark as the tests, and the programs they start, use it: small, local, without its web pages."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 240  # it only bounds a hang

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
}


def new_session(warehouse: Path, *, registers: bool = True, **settings: str) -> SparkSession:
    """`local[2]`; settings with dots written as two underscores."""
    # Spark runs its workers with whatever python3 is first on the path, unless it is told.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # pyspark_seglog, which Spark finds by its name, lies beside the package.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    from pyspark.sql import SparkSession

    from seglog.spark_connector import register

    builder = SparkSession.builder.master("local[2]").appName("seglog-tests")
    dotted = {name.replace("__", "."): value for name, value in settings.items()}
    for name, value in {**SETTINGS, "spark.sql.warehouse.dir": str(warehouse), **dotted}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    if registers:
        register(session)
    return session


def source(reader: Any, bootstrap: str, topic: str | None = "t", **options: Any) -> DataFrame:
    """`spark.read` or `spark.readStream` of a topic; options with dots as two underscores."""
    reader = reader.format("seglog").option("seglog.bootstrap.servers", bootstrap)
    if topic is not None:
        reader = reader.option("subscribe", topic)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), value)
    frame: DataFrame = reader.load()
    return frame


def eventually(ask: Callable[[], T], is_good: Callable[[T], object], what: str = "") -> T:
    """For what is only seen from outside: asked until it is so."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = ask()
        if is_good(found):
            return found
        assert time.monotonic() < deadline, f"{what} it is still {found!r}"
        time.sleep(0.05)


class Batches:
    """A `foreachBatch` that keeps what each micro-batch had, and may fail as asked.

    The rows are `(split, partition, offset, value)`: with the number of the task that read them.
    """

    def __init__(self, fails_in: int | None = None) -> None:
        self.rows: dict[int, list[tuple[int, int, int, bytes | None]]] = {}
        self.before: Callable[[int], None] = lambda batch_id: None
        self._fails_in = fails_in

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        from pyspark.sql import functions as f

        self.before(batch_id)
        rows = frame.select(f.spark_partition_id(), "partition", "offset", "value").collect()
        self.rows[batch_id] = sorted((r[0], r[1], r[2], _bytes(r[3])) for r in rows)
        if batch_id == self._fails_in:
            raise RuntimeError(f"batch {batch_id} fails, as the test asked")

    def start(self, frame: DataFrame, checkpoint: Path, **trigger: Any) -> StreamingQuery:
        writer = frame.writeStream.foreachBatch(self).option("checkpointLocation", str(checkpoint))
        return writer.trigger(**trigger).start() if trigger else writer.start()

    def run(self, frame: DataFrame, checkpoint: Path, **trigger: Any) -> None:
        """Until it ends: what ended it is raised."""
        query = self.start(frame, checkpoint, **trigger)
        try:
            assert query.awaitTermination(PATIENCE_S), "the query did not end"
        finally:
            query.stop()

    @property
    def values(self) -> list[bytes | None]:
        """Of all batches, in the order of offsets within each."""
        return [row[3] for batch_id in sorted(self.rows) for row in self.rows[batch_id]]

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """(partition, offset) of all rows, sorted."""
        return sorted((row[1], row[2]) for rows in self.rows.values() for row in rows)

    @property
    def counts(self) -> list[int]:
        """How many rows each batch had, in order."""
        return [len(self.rows[batch_id]) for batch_id in sorted(self.rows)]


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
