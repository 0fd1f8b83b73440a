"""The pipeline of docs/spark.md: clicks in, clicks per page and ten seconds out.

The page shows this file's function as it stands, a test runs it, and so does the quickstart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


def count_clicks(spark: SparkSession, servers: str, checkpoint: str) -> StreamingQuery:
    """Events -> windowed counts with a watermark -> back to a topic, exactly once."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only who runs it needs Spark

    clicks = (
        spark.readStream.format("seglog")
        .option("seglog.bootstrap.servers", servers)
        .option("subscribe", "clicks")
        .option("startingOffsets", "earliest")
        .option("group.id", "click-counter")  # so that the broker shows how far behind it is
        .load()
    )
    counts = (
        clicks.select(f.col("key").cast("string").alias("page"), "timestamp")
        .withWatermark("timestamp", "10 seconds")
        .groupBy(f.window("timestamp", "10 seconds"), "page")
        .count()
    )
    return (
        counts.select(
            f.col("page").alias("key"),
            f.to_json(f.struct("page", "window.start", "window.end", "count")).alias("value"),
        )
        .writeStream.format("seglog")
        .option("seglog.bootstrap.servers", servers)
        .option("topic", "clicks-per-page")
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .start()
    )
