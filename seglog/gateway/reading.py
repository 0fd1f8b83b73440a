"""One read: records of one partition from a place on, waiting for the first if asked to.

What is in the log when the read begins is given whatever `wait_ms` says; only at the end of the log
does it count. An answer holds whole records: at least one, even if it is larger than asked for.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from ..client.consumer import Consumer
from ..places import Place
from ..protocol.constants import KIB
from ..protocol.errors import RequestTimeout
from ..protocol.records import Record
from .backend import Backend, unless_stopped
from .places import find_log_ends, find_offsets
from .records import Encoding, size_of, to_json
from .settings import GatewaySettings

#: A compacted log may end in offsets that have no record: the position passes them by itself.
_LOOK_AGAIN_S: Final = 0.2
_LEAST_BUFFER_BYTES: Final = 64 * KIB


class Wanted(NamedTuple):
    """What one request asks for, within the settings' limits."""

    max_records: int
    max_bytes: int
    wait_s: float
    encoding: Encoding


async def read(
    backend: Backend,
    settings: GatewaySettings,
    name: tuple[str, int],
    place: Place,
    wanted: Wanted,
) -> dict[str, Any]:
    """The body of the answer."""
    topic, partition = name
    admin = await backend.admin()
    log_ends = await find_log_ends(admin, topic, [partition])
    start = (await find_offsets(admin, topic, place, log_ends))[partition]
    log_start, durable_end = log_ends[partition]
    records: list[Record] = []
    next_offset = start
    if start < durable_end or wanted.wait_s > 0:
        consumer = backend.consumer(
            [name],
            {name: start},
            buffer_bytes=max(_LEAST_BUFFER_BYTES, min(wanted.max_bytes, settings.max_answer_bytes)),
        )
        async with consumer:
            records = await _take(consumer, backend, settings, name, durable_end, wanted)
            records, cut = _within(records, wanted.max_bytes)
            next_offset = cut if cut is not None else consumer.position(*name)
    return {
        "topic": topic,
        "partition": partition,
        "records": [to_json(record, wanted.encoding) for record in records],
        "next_offset": next_offset,
        "log_start": log_start,
        "durable_end": durable_end,
    }


async def _take(
    consumer: Consumer,
    backend: Backend,
    settings: GatewaySettings,
    name: tuple[str, int],
    durable_end: int,
    wanted: Wanted,
) -> list[Record]:
    """The first records that come, and what is there with them."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    wait_until = begun + wanted.wait_s
    give_up_at = begun + max(wanted.wait_s, settings.broker_timeout_ms / 1000)
    while not backend.stopping.is_set():
        at_end = consumer.position(*name) >= durable_end
        rest_s = (wait_until if at_end else give_up_at) - loop.time()
        if rest_s <= 0:
            if at_end:
                break
            raise RequestTimeout(f"{name[0]}/{name[1]} has records, but they did not come")
        if not at_end:
            rest_s = min(rest_s, _LOOK_AGAIN_S)
        found = await unless_stopped(
            backend.stopping, consumer.getmany(wanted.max_records, rest_s), None
        )
        if found:
            return list(found)
    return []


def _within(records: list[Record], max_bytes: int) -> tuple[list[Record], int | None]:
    """As many as fit, at least one; and the offset of the first that does not."""
    total = 0
    for index, record in enumerate(records):
        total += size_of(record)
        if total > max_bytes and index:
            return records[:index], record.offset
    return records, None
