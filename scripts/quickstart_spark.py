"""The quickstart's last part: the pipeline of docs/spark.md, from clicks to counts, with progress.

A producer sends clicks while Spark counts them by page and window and writes the counts back. When
it has sent everything it closes the last window, and the tour ends when every count is there. Each
click must be in exactly one count.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from scripts.checks import Check
from scripts.pipeline import count_clicks
from scripts.quickstart_broker import BrokerProcess
from scripts.spark_session import new_session
from seglog import SyncAdmin, SyncConsumer, SyncProducer, errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

PAGES: Final = [b"home", b"search", b"item", b"cart", b"pay"]
SECONDS: Final = 300  # of the clicks' own time: 30 windows
CLICKS_PER_SECOND: Final = 1_000
PACE_S: Final = 0.04  # a second of clicks each: 25 times as fast as life
WINDOWS: Final = SECONDS // 10
CLICKS: Final = SECONDS * CLICKS_PER_SECOND
COUNTS: Final = WINDOWS * len(PAGES)
NOON: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
GIVE_UP_S: Final = 300


class Clicks(threading.Thread):
    """Sends them, and counts."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self.sent = 0
        self.seconds = 0.0

    def run(self) -> None:
        started = time.perf_counter()
        keys = PAGES * (CLICKS_PER_SECOND // len(PAGES))
        with SyncProducer(self._address) as producer:
            for second in range(SECONDS):
                at = NOON + timedelta(seconds=second)
                producer.send_batch("clicks", [b"{}"] * len(keys), keys, timestamps=at).result()
                self.sent += len(keys)
                time.sleep(PACE_S)
            self.seconds = time.perf_counter() - started
            # One more, much later: the watermark passes every window that was counted.
            producer.send_and_wait("clicks", b"{}", b"end", timestamp=NOON + timedelta(hours=1))


def tour(console: Console, folder: Path) -> list[Check]:
    console.print(
        f"\n[bold]8. Spark[/] counts {CLICKS:,} clicks by page in windows of ten seconds, and "
        "writes the counts back to a topic, exactly once. Spark takes some seconds to start."
    )
    broker = BrokerProcess(folder / "broker")
    with _quiet(folder) as said:
        settings = {"spark.sql.shuffle.partitions": "2"}
        spark = new_session("seglog-quickstart", folder, settings)
        try:
            return _pipeline(console, spark, broker, folder)
        except BaseException:
            console.print(f"[red]What Spark said:[/]\n{said.read_text(errors='replace')[-4_000:]}")
            raise
        finally:
            spark.stop()
            broker.stop()


def _pipeline(
    console: Console, spark: SparkSession, broker: BrokerProcess, folder: Path
) -> list[Check]:
    with SyncAdmin(broker.address) as admin:
        admin.create_topic("clicks", 4)
        admin.create_topic("clicks-per-page", 1)
        clicks = Clicks(broker.address)
        started = time.perf_counter()
        query = count_clicks(spark, broker.address, str(folder / "checkpoint"))
        clicks.start()
        try:
            lag = _watch(console, admin, query, clicks, started)
        finally:
            clicks.join()
            query.stop()
        seconds = time.perf_counter() - started
    with SyncConsumer("clicks-per-page", bootstrap=broker.address, start="earliest") as consumer:
        found = [
            json.loads(record.value)
            for record in consumer.getmany(10 * COUNTS, timeout=5)
            if record.value is not None
        ]
    counted = sum(each["count"] for each in found)
    windows = {(each["page"], each["start"]) for each in found}
    return [
        Check("Spark: records in", f"{CLICKS:,}"),
        Check(
            "Spark: counts out, each once", f"{len(found)}", len(found) == len(windows) == COUNTS
        ),
        Check("Spark: clicks in these counts", f"{counted:,}", counted == CLICKS),
        Check("Spark: lag left, seen from the broker", f"{lag}", lag == 0),
        Check("Spark: records in/s, as they were sent", f"{CLICKS / clicks.seconds:,.0f}"),
        Check("Spark: records/s, from the first to the last count", f"{CLICKS / seconds:,.0f}"),
    ]


def _watch(
    console: Console, admin: SyncAdmin, query: StreamingQuery, clicks: Clicks, started: float
) -> int:
    """Show the query at work until every count is there and nothing waits; the lag then."""
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while True:
            lag = _lag(admin)
            out = admin.list_offsets("clicks-per-page")[0].offset
            seconds = time.perf_counter() - started
            live.update(_progress(clicks.sent, out, lag, seconds))
            failure = query.exception()
            if failure is not None:
                raise failure
            if not clicks.is_alive() and out >= COUNTS and lag == 0:
                return lag
            if seconds > GIVE_UP_S:
                raise SystemExit(f"the counts did not come in {GIVE_UP_S} s: {out} of {COUNTS}")
            time.sleep(0.25)


def _lag(admin: SyncAdmin) -> int:
    """How far the query is behind: all of it, until it has begun."""
    try:
        return admin.describe_group("click-counter").lag.records
    except errors.UnknownGroup:
        return sum(found.offset for found in admin.list_offsets("clicks").values())


def _progress(sent: int, out: int, lag: int, seconds: float) -> Table:
    table = Table(box=None)
    for heading in ("clicks sent", "counts written", "lag", "seconds"):
        table.add_column(heading, justify="right")
    table.add_row(f"{sent:,} of {CLICKS:,}", f"{out} of {COUNTS}", f"{lag:,}", f"{seconds:.0f}")
    return table


@contextmanager
def _quiet(folder: Path) -> Iterator[Path]:
    """What Spark says goes to a file: it says much, and little of it is for a newcomer."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".log", delete=False) as log:
        before = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield Path(log.name)
        finally:
            os.dup2(before, 2)
            os.close(before)
