"""A Spark in a process of its own, that may be killed: python -m tests.sink_program <what> …

dying <bootstrap> <checkpoint> <at> <batch>   topic `in` to topic `out`; killed as asked
flaky <bootstrap> <checkpoint> <warehouse>    a batch write and a query whose tasks fail at first
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.dying_sink import GROUP, DyingSink, FlakySink, Gate, SlowSink
from tests.spark_session import PATIENCE_S, new_session, source

ROWS_PER_BATCH = 20
#: So that a task gets several Arrow batches, and can die between them.
ONE_ROW_AT_A_TIME: dict[str, Any] = {"spark__sql__execution__arrow__maxRecordsPerBatch": "1"}


def dying(bootstrap: str, checkpoint: str, at: str, batch: str) -> None:
    spark = new_session(Path(checkpoint).parent / "warehouse", **ONE_ROW_AT_A_TIME)
    spark.dataSource.register(DyingSink)
    frame = source(
        spark.readStream, bootstrap, "in",
        startingOffsets="earliest", maxOffsetsPerTrigger=ROWS_PER_BATCH,
    )  # fmt: skip
    query = (
        frame.select("key", "value")
        .writeStream.format("dying")
        .option("seglog.bootstrap.servers", bootstrap)
        .option("topic", "out")
        .option("test.at", at)
        .option("test.batch", batch)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(PATIENCE_S)


def flaky(bootstrap: str, checkpoint: str) -> None:
    spark = new_session(
        Path(checkpoint).parent / "warehouse", spark__master="local[2,4]", **ONE_ROW_AT_A_TIME
    )
    spark.dataSource.register(FlakySink)
    rows = spark.range(20, numPartitions=2).selectExpr(
        "cast(id as string) key", "cast(id as string) value"
    )
    sink = {"seglog.bootstrap.servers": bootstrap}
    rows.write.format("flaky").options(**sink, topic="batch").mode("append").save()
    frame = source(spark.readStream, bootstrap, "batch", startingOffsets="earliest")
    query = (
        frame.select("key", "value")
        .writeStream.format("flaky")
        .options(**sink, topic="stream", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_S)


def slow(bootstrap: str, folder: str) -> None:
    """The slow attempt is let go only after the job: a second attempt must have done its part."""
    spark = new_session(
        Path(folder) / "warehouse",
        spark__master="local-cluster[2,2,1024]",
        spark__executor__memory="512m",
        spark__speculation="true",
        spark__speculation__interval="100ms",
        spark__speculation__quantile="0.5",
        spark__speculation__multiplier="1.1",
        spark__speculation__minTaskRuntime="1s",
        **ONE_ROW_AT_A_TIME,
    )
    spark.dataSource.register(SlowSink)
    rows = spark.range(40, numPartitions=4).selectExpr(
        "cast(id as string) key", "cast(id as string) value"
    )
    options = {"seglog.bootstrap.servers": bootstrap, "topic": "out", "batchBytes": "1"}
    writer = rows.write.format("slow").options(**options)
    writer.option("test.folder", folder).mode("append").save()
    assert Gate(Path(folder), "slow").is_reached, "the slow attempt did not begin"


if __name__ == "__main__":
    os.environ[GROUP] = str(os.getpgrp())
    what, *arguments = sys.argv[1:]
    programs: dict[str, Callable[..., None]] = {"dying": dying, "flaky": flaky, "slow": slow}
    programs[what](*arguments)
