"""Offsets by time, of many partitions at once: asked of each partition's leader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal, NamedTuple

from ..protocol import api
from ..protocol.constants import EARLIEST, LATEST, MAX_ARRAY_LENGTH
from ..protocol.messages import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse
from .cells import to_time_sought
from .cluster import Cluster
from .metadata import TopicPartition

#: Where a partition is read from at first: an offset and a time count for all, a mapping for each
#: (what it does not name is read from the log start).
Start = Literal["earliest", "latest"] | int | datetime | Mapping[tuple[str, int], int]


class FoundOffset(NamedTuple):
    """`offset` -1: no record is that late. `timestamp_us` -1: no record was looked for."""

    offset: int
    timestamp_us: int


async def find_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int]
) -> dict[TopicPartition, FoundOffset]:
    """For each partition the log start (EARLIEST), the durable end (LATEST), or the first record
    with that time in microseconds, or a later one. The first error of any partition is raised."""
    return await cluster.retry(lambda: _find_once(cluster, wanted))


async def find_positions(
    cluster: Cluster, wanted: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """As `find_offsets`, but the durable end where no record is that late."""
    found = await find_offsets(cluster, wanted)
    late = {name: LATEST for name, each in found.items() if each.offset < 0}
    ends = await find_offsets(cluster, late) if late else {}
    return {name: ends.get(name, each).offset for name, each in found.items()}


async def find_start(
    cluster: Cluster, names: Iterable[TopicPartition], start: Start
) -> dict[TopicPartition, int]:
    """Where to begin to read each partition. UnknownTopic or UnknownPartition where one is not."""
    names = list(names)
    for name in names:
        await cluster.leader(*name)
    if isinstance(start, int):
        return dict.fromkeys(names, start)
    if isinstance(start, Mapping):
        missing = [name for name in names if name not in start]
        found = await find_positions(cluster, dict.fromkeys(missing, EARLIEST))
        return {name: start[name] if name in start else found[name] for name in names}
    if isinstance(start, datetime):
        time_us = to_time_sought(start)
    else:
        time_us = EARLIEST if start == "earliest" else LATEST
    return await find_positions(cluster, dict.fromkeys(names, time_us))


async def _find_once(
    cluster: Cluster, wanted: Mapping[TopicPartition, int]
) -> dict[TopicPartition, FoundOffset]:
    found: dict[TopicPartition, FoundOffset] = {}
    for broker_id, names in (await cluster.by_leader(wanted)).items():
        for start in range(0, len(names), MAX_ARRAY_LENGTH):
            asked = names[start : start + MAX_ARRAY_LENGTH]
            request = ListOffsetsRequest([ListOffsetsPartition(*n, wanted[n]) for n in asked])
            connection = await cluster.connection(broker_id)
            response: ListOffsetsResponse = await connection.request(api.LIST_OFFSETS, request)
            for name, result in zip(asked, response.results, strict=True):
                if result.error is not None:
                    raise result.error.to_exception()
                found[name] = FoundOffset(result.offset, result.timestamp_us)
    return {name: found[name] for name in wanted}
