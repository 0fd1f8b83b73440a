"""The Spark source and sink: rows a second, as ratios to Arrow batches from memory and to nowhere.

    noop    from a topic, every row to Spark's sink that does nothing
    count   from a topic, every row counted
    sink    from memory to a topic, exactly once and durable; against a sink that drops what it gets

Both sources yield the same RecordBatches (100-byte values, no keys): one from a broker, the other
from the worker's memory. What is left is the price of fetching, checking and decoding. With one
task (one partition) and with two. The first round of each warms the workers and does not count.
With --peers, Spark's own Kafka source reads as many such records from a Kafka beside it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from scripts.figures import Figure, alternate, median_ratio, report
from scripts.server_process import Server
from scripts.spark_session import new_session
from seglog import SyncAdmin, SyncProducer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from scripts.peers.spark_kafka import KafkaTopics

VALUE_BYTES: Final = 100
BULK: Final = 10_000
TASKS: Final = (1, 2)
AIM: Final = 0.8


def some_values() -> list[bytes]:
    return [os.urandom(VALUE_BYTES) for _ in range(BULK)]


def fill(address: str, topic: str, partitions: int, count: int) -> None:
    with SyncAdmin(address) as admin, SyncProducer(address, batch_bytes=2_000_000) as producer:
        admin.create_topic(topic, partitions)
        for first in range(0, count, BULK):
            place = first // BULK % partitions
            producer.send_batch(topic, some_values(), partition=place).result()


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


def session(folder: Path, jars: str) -> SparkSession:
    # The workers load the baseline from here.
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    settings = {"spark.driver.memory": "2g", **({"spark.jars": jars} if jars else {})}
    spark = new_session("seglog-bench", folder, settings)
    from scripts.memory_source import MemorySource  # noqa: PLC0415 - only in the spark set

    spark.dataSource.register(MemorySource)
    return spark


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def drop(frame: DataFrame) -> None:
    frame.select("value").write.format("memory-arrow").mode("append").save()


def append(frame: DataFrame, address: str, topic: str) -> None:
    """To a topic that is empty again, so that the disk does not fill up."""
    with SyncAdmin(address) as admin:
        for partition in admin.list_offsets(topic):
            admin.delete_records(topic, partition, -1)
    writer = frame.select("value").write.format("seglog").option("topic", topic)
    writer.option("seglog.bootstrap.servers", address).mode("append").save()


def count_rows(frame: DataFrame, expected: int) -> None:
    found = frame.count()
    assert found == expected, f"{found} rows, not {expected}"


ACTIONS: Final[dict[str, Callable[[Any, int], None]]] = {
    "noop": lambda frame, _: noop(frame),
    "count": count_rows,
}


def run(folder: Path, rounds: int, count: int, *, with_kafka: bool) -> list[Figure]:
    from seglog.spark_connector.arrow import spark_schema  # noqa: PLC0415

    kafka = _kafka(folder) if with_kafka else None
    broker = Server("-m", "seglog", "serve", "--data", str(folder / "data"), "--port", "0")
    address = f"127.0.0.1:{broker.port}"
    figures: list[Figure] = []
    spark = session(folder, _kafka_jars() if with_kafka else "")
    try:
        for tasks in TASKS:
            topic = f"bench-{tasks}"
            fill(address, topic, tasks, count)
            files = save(address, topic, tasks, folder)
            log = spark.read.format("seglog").option("seglog.bootstrap.servers", address)
            memory = spark.read.format("memory-arrow").option("files", ",".join(files))
            ours = log.option("subscribe", topic).load()
            others = {"memory": memory.option("ddl", spark_schema(include_headers=False)).load()}
            if kafka is not None:
                kafka.fill(topic, tasks, some_values, count)
                theirs = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.address)
                others["Kafka"] = theirs.option("subscribe", topic).load()
            for name, action in ACTIONS.items():
                group = f"topic to {name}, {VALUE_BYTES} B values"
                for other, frame in others.items():
                    act = partial(action, frame, count), partial(action, ours, count)
                    figures += measure(group, tasks, other, act, rounds, count)
            figures += measure_sink(others["memory"], address, tasks, rounds, count)
    finally:
        spark.stop()
        broker.stop()
        if kafka is not None:
            kafka.stop()
    return sorted(figures, key=lambda figure: figure.group)


def measure_sink(
    frame: DataFrame, address: str, tasks: int, rounds: int, count: int
) -> list[Figure]:
    topic = f"written-{tasks}"
    with SyncAdmin(address) as admin:
        admin.create_topic(topic, tasks)
    dropped, written = (
        times[1:]
        for times in alternate(
            partial(drop, frame), partial(append, frame, address, topic), rounds + 1
        )
    )
    with SyncAdmin(address) as admin:
        ends, starts = admin.list_offsets(topic), admin.list_offsets(topic, "earliest")
    found = sum(ends[number].offset - starts[number].offset for number in ends)
    assert found == count, f"{found} rows, not {count}"
    group, name = f"memory to topic, {VALUE_BYTES} B values", _named(tasks)
    return [
        Figure(group, f"{name}: to the log", count / median(written), "rows/s"),
        Figure(group, f"{name}: to nowhere", count / median(dropped), "rows/s"),
        Figure(group, f"{name}: ratio to nowhere", median_ratio(dropped, written), "×"),
    ]


def _named(tasks: int) -> str:
    return "1 task" if tasks == 1 else f"{tasks} tasks"


def _has_kafka(*, install: bool) -> bool:
    """Whether Kafka and Spark's source for it are here; says so if not."""
    from scripts.peers import spark_kafka  # noqa: PLC0415 - only with --peers
    from scripts.peers.interface import NotStarted  # noqa: PLC0415

    if install:
        try:
            spark_kafka.install()
        except NotStarted as error:
            typer.echo(f"{error}")
    missing = spark_kafka.missing()
    if missing is not None:
        typer.echo(f"Kafka is left out: {missing.reason}. To bring it: {missing.install}")
    return missing is None


def _kafka(folder: Path) -> KafkaTopics:
    from scripts.peers.spark_kafka import KafkaTopics  # noqa: PLC0415 - as above

    return KafkaTopics(folder / "kafka")


def _kafka_jars() -> str:
    from scripts.peers import spark_kafka  # noqa: PLC0415 - as above

    return spark_kafka.jars()


def measure(
    group: str,
    tasks: int,
    other: str,
    actions: tuple[Callable[[], None], Callable[[], None]],
    rounds: int,
    count: int,
) -> list[Figure]:
    """Ours beside one other source, in turns; the first turn of each warms up."""
    theirs, logs = (times[1:] for times in alternate(*actions, rounds + 1))
    name = _named(tasks)
    ratio = median_ratio(theirs, logs)
    note = "median of the rounds' ratios"
    label = f"{name}: ratio to {other}"
    return [
        Figure(group, f"{name}: from the log, beside {other}", count / median(logs), "rows/s"),
        Figure(group, f"{name}: from {other}", count / median(theirs), "rows/s"),
        Figure.at_least(group, label, ratio, AIM, note)
        if other == "memory"
        else Figure(group, label, ratio, "×", "", None, note),
    ]


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each is measured.")] = 5,
    count: Annotated[int, typer.Option(min=2 * BULK, help="Rows of a topic.")] = 3_000_000,
    peers: Annotated[
        bool, typer.Option("--peers", help="Beside Spark's Kafka source, too.")
    ] = False,
    install: Annotated[
        bool, typer.Option("--install", help="With --peers: bring its jars through Maven first.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Save the figures here as well.")] = None,
) -> None:
    """Takes some minutes; needs the spark set (scripts/setup spark) and Java 17 or newer."""
    if peers:
        peers = _has_kafka(install=install)
    with tempfile.TemporaryDirectory(prefix="seglog-bench-") as temporary:
        whole = count // (2 * BULK) * 2 * BULK
        figures = run(Path(temporary), rounds, whole, with_kafka=peers)
    report(figures, f"scripts/bench spark{' --peers' if peers else ''}", json)
