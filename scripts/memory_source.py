"""A Spark data source that yields Arrow batches it has in memory, and a sink that drops what it is
given: the baselines of `bench spark`.

They do what any Python source and sink must, and nothing else: no broker, no decoding. A worker
loads the file once and keeps it, so that only the first round pays for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)


@cache
def _batches(path: str) -> list[pa.RecordBatch]:
    with pa.ipc.open_file(path) as file:
        return [file.get_batch(number) for number in range(file.num_record_batches)]


class MemoryReader(DataSourceReader):
    """One task a file."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(path) for path in self._paths]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(_batches(partition.value))


class DropWriter(DataSourceArrowWriter):
    """Takes every batch, and keeps none."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class MemorySource(DataSource):
    """`format("memory-arrow")`: to read with `files`, separated by commas, and `ddl`, their schema;
    to write with nothing.
    """

    @classmethod
    def name(cls) -> str:
        return "memory-arrow"

    def schema(self) -> str:
        return str(self.options["ddl"])

    def reader(self, schema: Any) -> MemoryReader:
        return MemoryReader(self.options["files"].split(","))

    def writer(self, schema: Any, overwrite: bool) -> DropWriter:
        return DropWriter()
