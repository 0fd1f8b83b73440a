"""Reading everything that a checked run wrote, from the begin to the durable end, once."""

from __future__ import annotations

import asyncio
from typing import Final

from scripts.loading.checker import Sightings
from scripts.loading.consuming import see
from seglog import Consumer

#: With nothing new for so long, what is missing will not come.
STALLED_S: Final = 30.0


async def read_back(bootstrap: str, topics: list[str]) -> Sightings:
    sightings = Sightings()
    async with Consumer(topics, bootstrap=bootstrap, start="earliest") as consumer:
        ends = await consumer.end_offsets()
        batches = consumer.batches()
        while any(consumer.position(*place) < end for place, end in ends.items()):
            try:
                async with asyncio.timeout(STALLED_S):
                    batch = await anext(batches)
            except TimeoutError:
                break  # what was not read will count as lost
            see(sightings, batch)
    return sightings
