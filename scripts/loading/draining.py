"""Until consumers have read all that was appended: after the producers have ended, or where a group
reads a backlog.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from scripts.loading import messages as m
from scripts.loading.processes import WorkerProcess
from scripts.loading.workload import Workload
from seglog import Admin

#: Consumers that read nothing new for so long will not read the rest.
STALLED_S: Final = 15.0
LOOK_S: Final = 0.05

Ends = dict[tuple[str, int], int]


async def drain(
    consumers: list[WorkerProcess],
    bootstrap: str,
    topics: list[str],
    workload: Workload,
    interrupted: asyncio.Event,
) -> int:
    """Tell them to stop when all is read, or nothing more is; how many records are left.

    A backlog has only the time of the run, and ends when it is interrupted; what was sent in a run
    is read also after that, so that nothing seems lost.
    """
    async with Admin(bootstrap) as admin:
        ends = {
            (topic, partition): found.offset
            for topic in topics
            for partition, found in (await admin.list_offsets(topic, "latest")).items()
        }
    for worker in consumers:
        worker.tell(m.Drain())
    left = least = sum(ends.values()) * workload.consumers + 1
    since = time.monotonic()
    is_backlog = workload.kind == "consume"
    limit = since + workload.seconds + (0.0 if is_backlog else 4 * STALLED_S)
    while time.monotonic() < limit and not (is_backlog and interrupted.is_set()):
        left = unread(consumers, ends, is_shared=workload.sharing != "all")
        if left < least:
            least, since = left, time.monotonic()
        if not left or time.monotonic() - since > STALLED_S:
            break
        await asyncio.sleep(LOOK_S)
    for worker in consumers:
        worker.tell(m.Stop())
    return left


def unread(consumers: list[WorkerProcess], ends: Ends, *, is_shared: bool) -> int:
    """Records that they have yet to read: each of them, or where they share, all together."""
    told = [worker.positions.consumers for worker in consumers if worker.positions is not None]
    if len(told) < len(consumers):
        return sum(ends.values()) * len(consumers) + 1  # not all have told yet
    each_reader = [places for process in told for places in process]
    if is_shared:
        each_reader = [[place for reader in each_reader for place in reader]]
    left = 0
    for reader in each_reader:
        at: Ends = {}
        for topic, partition, offset in reader:
            at[topic, partition] = max(offset, at.get((topic, partition), 0))
        left += sum(max(0, end - at.get(place, 0)) for place, end in ends.items())
    return left
