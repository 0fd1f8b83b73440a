"""`format("seglog")`: what Spark is told, and who does it.

Spark pickles this by name, and makes it anew in each of its processes: it holds options only. What
the sink needs is loaded by the sink.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pyspark.sql.datasource import DataSource

from .arrow import spark_schema
from .batch_reader import SeglogReader, make_reader
from .options import boolean
from .read_options import INCLUDE_HEADERS, read_options
from .stream_reader import SeglogStreamReader


class SeglogDataSource(DataSource):
    """Registered by `seglog.spark_connector.register(spark)`; the method names are Spark's."""

    options: Mapping[str, str]

    @classmethod
    def name(cls) -> str:
        return "seglog"

    def schema(self) -> str:
        wanted = self.options.get(INCLUDE_HEADERS.name, INCLUDE_HEADERS.default)
        return spark_schema(include_headers=boolean(str(wanted)))

    def reader(self, schema: Any) -> SeglogReader:
        return make_reader(read_options(self.options, is_streaming=False))

    def streamReader(self, schema: Any) -> SeglogStreamReader:  # noqa: N802
        return SeglogStreamReader(read_options(self.options, is_streaming=True))

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return _sink().make_batch_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
        return _sink().make_stream_writer(schema, self.options, overwrite)


def _sink() -> Any:
    """Loaded where something is written: a reader does not need it."""
    return import_module("seglog.spark_connector.writer")
