"""Where logs begin and end, of many partitions in one request, and waiting until one goes on.

Both are fetches: one that asks for no bytes, and one that waits for the first byte. A partition
that is not there (any more) is left out of the answer; what else may pass is tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..protocol import api
from ..protocol.constants import MAX_ARRAY_LENGTH
from ..protocol.errors import OffsetOutOfRange, UnknownPartition, UnknownTopic
from ..protocol.messages import FetchPartition, FetchRequest, FetchResponse
from .cluster import Cluster
from .metadata import TopicPartition


class LogEnds(NamedTuple):
    """The offsets log_start up to durable_end can be read."""

    log_start: int
    durable_end: int


async def find_ends(
    cluster: Cluster, names: Iterable[TopicPartition]
) -> dict[TopicPartition, LogEnds]:
    """Of all partitions that there are, in the order asked; once: errors are the caller's."""
    return await _fetch(cluster, dict.fromkeys(names, 0), max_wait_ms=0, max_bytes=0)


async def wait_for_data(
    cluster: Cluster, positions: Mapping[TopicPartition, int], max_wait_ms: int
) -> dict[TopicPartition, LogEnds]:
    """As `find_ends`, once a record is behind one of the positions, or after `max_wait_ms`.

    With more than one broker it is the first one's partitions that are waited for.
    """
    return await _fetch(cluster, positions, max_wait_ms=max_wait_ms, max_bytes=1)


async def _fetch(
    cluster: Cluster, positions: Mapping[TopicPartition, int], *, max_wait_ms: int, max_bytes: int
) -> dict[TopicPartition, LogEnds]:
    found: dict[TopicPartition, LogEnds] = {}
    by_leader = await cluster.by_leader(positions, skips_missing=True)
    for broker_id, names in by_leader.items():
        for start in range(0, len(names), MAX_ARRAY_LENGTH):
            asked = names[start : start + MAX_ARRAY_LENGTH]
            # One byte brings one whole batch at the most, and only where there is news.
            request = FetchRequest(
                max_wait_ms,
                1,
                max_bytes,
                [FetchPartition(*name, positions[name], max_bytes) for name in asked],
            )
            connection = await cluster.connection(broker_id)
            response: FetchResponse = await connection.request(
                api.FETCH, request, extra_s=max_wait_ms / 1000
            )
            for name, result in zip(asked, response.results, strict=True):
                error = None if result.error is None else result.error.to_exception()
                if error is None:
                    found[name] = LogEnds(result.log_start, result.durable_end)
                elif isinstance(error, OffsetOutOfRange):
                    found[name] = LogEnds(error.log_start, error.durable_end)
                elif not isinstance(error, UnknownTopic | UnknownPartition):
                    raise error
            max_wait_ms = 0  # waited once
    return {name: found[name] for name in positions if name in found}
