"""Which partition each row goes to, for a whole Arrow batch at once.

    a `partition` cell       that one
    else a `key` cell        by the key, as the client's producer does: one key, one partition
    else                     nobody's: the writer gives such rows to one partition after the other

Rows are brought into the order of their partitions, by a stable sort: within a partition they stay
as they came. Python runs once for each key that differs from the others of its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..client.partitioner import Partitioner
from ..protocol.errors import BadBatch, UnknownPartition

KEY: Final = "key"
TOPIC: Final = "topic"
PARTITION: Final = "partition"


class Run(NamedTuple):
    """Rows `start` to `stop` go to this partition; None: to any."""

    topic: str
    partition: int | None
    start: int
    stop: int


class Arranged(NamedTuple):
    """An Arrow batch in the order of its partitions, and where each begins and ends."""

    rows: pa.RecordBatch
    runs: list[Run]


def arrange(
    batch: pa.RecordBatch,
    topic: str | None,
    partition_count: Callable[[str], int],
    partitioner: Partitioner,
) -> Iterator[Arranged]:
    """The rows of a batch by partition; `topic` None: as the topic column says."""
    if topic is not None:
        yield _arrange_topic(batch, topic, partition_count(topic), partitioner)
        return
    names = batch.column(TOPIC)
    if names.null_count:
        raise BadBatch(
            f"{names.null_count} rows have no topic: fill the column `topic`, filter them out,"
            ' or give .option("topic", …)'
        )
    encoded = names.dictionary_encode()
    ordered, counts = _group(batch, encoded.indices)
    start = 0
    for number, count in counts:
        name = encoded.dictionary[number].as_py()
        rows = ordered.slice(start, count)
        yield _arrange_topic(rows, name, partition_count(name), partitioner)
        start += count


def _arrange_topic(
    batch: pa.RecordBatch, topic: str, partition_count: int, partitioner: Partitioner
) -> Arranged:
    numbers = _partitions(batch, topic, partition_count, partitioner)
    if numbers is None:
        return Arranged(batch, [Run(topic, None, 0, batch.num_rows)])
    ordered, counts = _group(batch, numbers)
    runs: list[Run] = []
    start = 0
    for number, count in counts:
        runs.append(Run(topic, number, start, start + count))
        start += count
    return Arranged(ordered, runs)


def _partitions(
    batch: pa.RecordBatch, topic: str, partition_count: int, partitioner: Partitioner
) -> pa.Array | None:
    """The partition of each row, null where any will do; None: any will do for all of them."""
    names = batch.schema.names
    numbers: pa.Array | None = None
    if PARTITION in names:
        numbers = batch.column(PARTITION)
        bounds = pc.min_max(numbers)
        lowest, highest = bounds["min"].as_py(), bounds["max"].as_py()
        if lowest is not None and (lowest < 0 or highest >= partition_count):
            wrong = lowest if lowest < 0 else highest
            raise UnknownPartition(
                f"the column `partition` says {wrong}, {topic} has 0 to {partition_count - 1}"
            )
        if not numbers.null_count:
            return numbers
    if KEY in names:
        by_key = keyed_partitions(batch.column(KEY), partition_count, partitioner)
        numbers = by_key if numbers is None else pc.coalesce(numbers, by_key)
    if numbers is None or numbers.null_count == len(numbers):
        return None
    return numbers


def keyed_partitions(keys: pa.Array, partition_count: int, partitioner: Partitioner) -> pa.Array:
    """The partition of each key, as the client's producer computes it; null for a null key."""
    encoded = keys.dictionary_encode()
    distinct = encoded.dictionary
    if pa.types.is_string(distinct.type) or pa.types.is_large_string(distinct.type):
        distinct = distinct.cast(pa.large_binary())
    numbers = [partitioner(key, partition_count) for key in distinct.to_pylist()]
    return pa.array(numbers, pa.int32()).take(encoded.indices)


def _group(
    batch: pa.RecordBatch, numbers: pa.Array
) -> tuple[pa.RecordBatch, list[tuple[int | None, int]]]:
    """The rows in the order of their numbers, nulls last, and how many there are of each."""
    found = pc.min_max(numbers, skip_nulls=False)["min"].as_py()
    if found is not None and found == pc.max(numbers).as_py():
        return batch, [(found, batch.num_rows)]
    order = pc.sort_indices(numbers)  # stable, nulls at the end
    counts = pc.value_counts(numbers.take(order))  # in the order of their first appearance
    values, sizes = counts.field("values").to_pylist(), counts.field("counts").to_pylist()
    return batch.take(order), list(zip(values, sizes, strict=True))
