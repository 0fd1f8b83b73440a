"""What a record is in Spark: every cell, every time zone; and lag as the broker sees it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from seglog import Lag, errors
from seglog.spark_connector import register

from tests.spark_session import Batches, eventually, source

NOON = datetime(2026, 1, 1, 12, 0, 0, 123_456, tzinfo=UTC)


def test_cells_times_and_headers_come_as_they_were_sent_in_any_time_zone(
    spark, broker, admin, producer
):
    admin.create_topic("t", 1)
    large = b"x" * 1_000_000
    sent: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]] = [
        (b"key", b"value", ()),
        (None, b"no key", ()),
        (b"tombstone", None, ()),
        (b"", b"", ()),
        (b"\x00\xff", "snow ☃".encode(), (("a", b"1"), ("a", None), ("☃", b""))),
        (b"large", large, ()),
    ]
    for key, value, headers in sent:
        producer.send("t", value, key, headers=headers, timestamp=NOON)
    producer.flush()
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        frame = source(spark.read, broker.bootstrap, includeHeaders="true").orderBy("offset")
        rows = frame.selectExpr(
            "key", "value", "topic", "partition", "offset", "unix_micros(timestamp) as at",
            "hour(timestamp) as hour", "timestampType", "headers",
        ).collect()  # fmt: skip
        late = frame.where("timestamp > timestamp'2026-01-01 07:00:00'").count()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert [(row.key, row.value) for row in rows] == [(key, value) for key, value, _ in sent]
    found = [row.headers and tuple((h.key, h.value) for h in row.headers) for row in rows]
    assert found == [headers or None for _, _, headers in sent]
    assert [row.offset for row in rows] == list(range(6))
    assert {(row.topic, row.partition, row.timestampType) for row in rows} == {("t", 0, 0)}
    assert {row.at for row in rows} == {int(NOON.timestamp()) * 1_000_000 + 123_456}
    assert {row.hour for row in rows} == {7}  # noon in UTC
    assert late == 6


def test_filters_are_pushed_down_where_spark_is_told_to(spark, broker, admin, producer):
    admin.create_topic("t", 3)
    for partition in range(3):
        at = NOON + timedelta(hours=partition)
        producer.send_batch("t", [b"v"] * 100, partition=partition, timestamps=at).result()

    def tasks_and_rows(wanted: str) -> tuple[int, int]:
        frame = source(spark.read, broker.bootstrap).where(wanted)
        return frame.rdd.getNumPartitions(), frame.count()

    by_offset = "partition = 1 and offset >= 90"
    by_time = "timestamp > timestamp'2026-01-01 13:30:00Z'"
    assert tasks_and_rows(by_offset) == (3, 10)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        assert tasks_and_rows(by_offset) == (1, 10)
        assert tasks_and_rows(by_time) == (1, 100)
        # And without any filter, the same reader reads everything.
        assert source(spark.read, broker.bootstrap).count() == 300
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        spark.conf.unset("spark.sql.session.timeZone")


def test_the_broker_sees_the_lag_of_a_query_fall_to_zero_and_refuses_a_second_one(
    spark, broker, admin, producer, tmp_path
):
    register(spark)  # a second time does no harm
    admin.create_topic("t", 2)
    producer.send_batch("t", [b"v"] * 500, partition=0).result()
    batches = Batches()
    lags: list[int] = []

    def lag() -> Lag | None:
        try:
            found: Lag = admin.describe_group("g").lag
            return found
        except errors.UnknownGroup:  # the query has not begun yet
            return None

    def note(batch_id: int) -> None:
        found = lag()
        assert found is not None
        lags.append(found.records)

    batches.before = note
    frame = source(
        spark.readStream,
        broker.bootstrap,
        startingOffsets="earliest",
        group__id="g",
        maxOffsetsPerTrigger=200,
    )
    query = batches.start(frame, tmp_path / "checkpoint")
    try:
        eventually(lag, lambda found: found == (0, 0.0, 0))
        producer.send_batch("t", [b"v"] * 50, partition=1).result()
        eventually(lambda: sum(batches.counts), lambda count: count == 550)
        eventually(lag, lambda found: found == (0, 0.0, 0))
        progress = json.loads(query.lastProgress.json)["sources"][0]
        assert progress["latestOffset"] == {"t": {"0": 500, "1": 50}}
        assert progress["endOffset"]["t"] == {"0": 500, "1": 50}
        same = source(
            spark.readStream, broker.bootstrap, group__id="g", group__session__timeout="1s"
        )
        with pytest.raises(Exception, match="cannot be used: group g is in use by spark on"):
            Batches().run(same, tmp_path / "second")
        assert query.exception() is None
        assert [member.session_timeout_ms for member in admin.describe_group("g").members] == [
            15_000
        ], "the first query has lost its group"
    finally:
        query.stop()
    assert lags[:3] == [500, 300, 100]
