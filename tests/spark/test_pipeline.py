"""The pipeline of docs/spark.md does what the page says: counts by page and window, each once."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from scripts.pipeline import count_clicks
from seglog import SyncConsumer

from tests.spark_session import eventually

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_the_pipeline_counts_clicks_by_page_and_window_and_goes_on_after_a_stop(
    spark, broker, admin, producer, tmp_path
):
    admin.create_topic("clicks", 2)
    admin.create_topic("clicks-per-page", 1)

    def click(page: str, second: int, times: int = 1) -> None:
        at = NOON + timedelta(seconds=second)
        producer.send_batch("clicks", [b"{}"] * times, [page] * times, timestamps=at).result()

    def run_until(count: int) -> list[tuple[str, str, int]]:
        query = count_clicks(spark, broker.bootstrap, str(tmp_path / "checkpoint"))
        try:
            end = eventually(
                lambda: admin.list_offsets("clicks-per-page")[0].offset,
                lambda end: end >= count or query.exception(),
            )
            assert query.exception() is None
            eventually(
                lambda: admin.describe_group("click-counter").lag, lambda lag: lag.records == 0
            )
        finally:
            query.stop()
        with SyncConsumer(
            "clicks-per-page", bootstrap=broker.bootstrap, start="earliest"
        ) as consumer:
            found = [json.loads(next(consumer).value or b"") for _ in range(end)]
        return sorted((each["page"], each["start"][11:19], each["count"]) for each in found)

    click("home", 1, 3)
    click("home", 9, 2)
    click("cart", 12)
    click("home", 40)  # moves the watermark past both windows
    first = run_until(2)
    assert first == [("cart", "12:00:10", 1), ("home", "12:00:00", 5)]
    click("cart", 41, 2)
    click("cart", 80)
    assert run_until(4) == sorted([*first, ("cart", "12:00:40", 2), ("home", "12:00:40", 1)])
