"""Spark looks for modules whose names begin with `pyspark_` and takes their `DefaultSource`: where
this one lies on its Python path, `format("seglog")` needs no call of `register`.
"""

from seglog.spark_connector.source import SeglogDataSource as DefaultSource

__all__ = ["DefaultSource"]
