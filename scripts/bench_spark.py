"""The Spark source: rows a second from a topic, as a ratio to the same Arrow batches from memory.

    noop    every row to Spark's sink that does nothing
    count   every row counted

Both sources yield the same RecordBatches (100-byte values, no keys): one from a broker, the other
from the worker's memory. What is left is the price of fetching, checking and decoding. With one
task (one partition) and with two. The first round of each warms the workers and does not count.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from scripts.bench_broker import Server
from scripts.figures import Figure, alternate, median_ratio, report
from seglog import SyncAdmin, SyncProducer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUE_BYTES: Final = 100
BULK: Final = 10_000
TASKS: Final = (1, 2)
AIM: Final = 0.8


def fill(address: str, topic: str, partitions: int, count: int) -> None:
    with SyncAdmin(address) as admin, SyncProducer(address, batch_bytes=2_000_000) as producer:
        admin.create_topic(topic, partitions)
        for first in range(0, count, BULK):
            values = [os.urandom(VALUE_BYTES) for _ in range(BULK)]
            place = first // BULK % partitions
            producer.send_batch(topic, values, partition=place).result()


def save(address: str, topic: str, partitions: int, folder: Path) -> list[str]:
    """What the source yields for each partition, as Arrow files."""
    import pyarrow as pa  # noqa: PLC0415 - only in the spark set

    from seglog.spark_connector.source import SeglogDataSource  # noqa: PLC0415

    options = {"seglog.bootstrap.servers": address, "subscribe": topic}
    reader = SeglogDataSource(options).reader(None)
    paths = []
    for number, split in enumerate(reader.partitions()):
        path = folder / f"{topic}-{number}.arrow"
        batches = reader.read(split)
        first = next(batches)
        with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, first.schema) as file:
            file.write_batch(first)
            for batch in batches:
                file.write_batch(batch)
        paths.append(str(path))
    assert len(paths) == partitions
    return paths


def session(folder: Path) -> SparkSession:
    root = str(Path(__file__).resolve().parents[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = root  # the workers load the baseline from here
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession  # noqa: PLC0415 - after the variables

    from scripts.memory_source import MemorySource  # noqa: PLC0415
    from seglog.spark_connector import register  # noqa: PLC0415

    builder = SparkSession.builder.master("local[2]").appName("seglog-bench")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.memory": "2g",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    spark.dataSource.register(MemorySource)
    return spark


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def count_rows(frame: DataFrame, expected: int) -> None:
    found = frame.count()
    assert found == expected, f"{found} rows, not {expected}"


def run(folder: Path, rounds: int, count: int) -> list[Figure]:
    from seglog.spark_connector.arrow import spark_schema  # noqa: PLC0415

    broker = Server("-m", "seglog", "serve", "--data", str(folder / "data"), "--port", "0")
    address = f"127.0.0.1:{broker.port}"
    figures: list[Figure] = []
    spark = session(folder)
    try:
        for tasks in TASKS:
            topic = f"bench-{tasks}"
            fill(address, topic, tasks, count)
            files = save(address, topic, tasks, folder)
            log = spark.read.format("seglog").option("seglog.bootstrap.servers", address)
            memory = spark.read.format("memory-arrow").option("files", ",".join(files))
            frames = (
                log.option("subscribe", topic).load(),
                memory.option("ddl", spark_schema(include_headers=False)).load(),
            )
            actions: dict[str, Callable[[Any], None]] = {
                "noop": noop,
                "count": lambda frame: count_rows(frame, count),
            }
            for name, action in actions.items():
                group = f"topic to {name}, {VALUE_BYTES} B values"
                figures += measure(group, tasks, frames, action, rounds, count)
    finally:
        spark.stop()
        broker.stop()
    return sorted(figures, key=lambda figure: figure.group)


def measure(
    group: str,
    tasks: int,
    frames: tuple[DataFrame, DataFrame],
    action: Callable[[Any], None],
    rounds: int,
    count: int,
) -> list[Figure]:
    logs, memories = alternate(lambda: action(frames[0]), lambda: action(frames[1]), rounds + 1)
    logs, memories = logs[1:], memories[1:]
    name = "1 task" if tasks == 1 else f"{tasks} tasks"
    note = "median of the rounds' ratios"
    return [
        Figure(group, f"{name}: from the log", count / median(logs), "rows/s"),
        Figure(group, f"{name}: from memory", count / median(memories), "rows/s"),
        Figure.at_least(group, f"{name}: ratio", median_ratio(memories, logs), AIM, note),
    ]


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each is measured.")] = 5,
    count: Annotated[int, typer.Option(min=2 * BULK, help="Rows of a topic.")] = 3_000_000,
    json: Annotated[Path | None, typer.Option(help="Save the figures here as well.")] = None,
) -> None:
    """Takes some minutes; needs the spark set (scripts/setup spark) and Java 17 or newer."""
    with tempfile.TemporaryDirectory(prefix="seglog-bench-") as temporary:
        figures = run(Path(temporary), rounds, count // (2 * BULK) * 2 * BULK)
    report(figures, "scripts/bench spark", json)
