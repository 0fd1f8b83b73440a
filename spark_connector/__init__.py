"""Seglog as a source and sink of Spark: `format("seglog")` after one call of `register(spark)`.

Where Spark finds data sources by itself (modules on its Python path whose names begin with
`pyspark_`), it finds `pyspark_seglog`, and the call is not needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Let this session know `format("seglog")`, for read, readStream, write and writeStream."""
    # Here, so that this package can be loaded where pyspark is not installed.
    from .source import SeglogDataSource  # noqa: PLC0415

    spark.dataSource.register(SeglogDataSource)
