"""The verdict of a checked run, asked of those who sent and those who read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scripts.loading import messages as m
from scripts.loading.checker import (
    PackedSightings,
    SentRecords,
    Sightings,
    Verdict,
    find_missing,
    judge,
)
from scripts.loading.processes import WorkerProcess

ANSWER_S: Final = 60.0


async def find_verdict(
    producers: Sequence[WorkerProcess],
    sent: Sequence[SentRecords],
    seen: Sequence[PackedSightings],
    *,
    each_reads_all: bool,
) -> Verdict:
    """Of all readers together; where each reads all, of the one with the most faults."""
    readers = [[each] for each in seen] if each_reads_all else [list(seen)]
    verdicts = []
    for reader in readers:
        sightings = Sightings()
        for packed in reader:
            sightings.add(packed)
        missing = find_missing(sent, sightings)
        places = []
        for worker in producers if missing.first else ():
            worker.tell(m.Where(missing.first))
            places += (await worker.answer(m.Places, ANSWER_S)).findings
        verdicts.append(judge(sent, sightings, missing, places))
    return max(verdicts, key=lambda v: v.lost + v.doubled + v.reordered + v.damaged)
