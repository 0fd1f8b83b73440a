"""From what was counted to a Result, with warnings where the figures deserve doubt."""

from __future__ import annotations

from typing import Final

from scripts.loading.broker import BrokerWatch
from scripts.loading.checker import Verdict
from scripts.loading.processes import WorkerProcess
from scripts.loading.result import Broker, EndedBy, Result, this_machine
from scripts.loading.tally import SideTally, timeline
from scripts.loading.workload import Workload

#: A process that uses more of a core may be what limits the load.
BUSY_PERCENT: Final = 90.0
LATE_US: Final = 5_000

Counted = tuple[SideTally, list[WorkerProcess]]


def make_result(
    *,
    name: str,
    started_at: str,
    ended_by: EndedBy,
    workload: Workload,
    record_bytes: float,
    produce: Counted | None,
    consume: Counted | None,
    watch: BrokerWatch | None,
    kills: int,
    check: Verdict | None,
    warnings: list[str],
) -> Result:
    sides = [side for side in (produce, consume) if side is not None]
    lasted_s = max(tally.lasted_s for tally, _ in sides)
    made, read = (
        None if side is None else side[0].side(record_bytes, cpu_percents(side[1], lasted_s))
        for side in (produce, consume)
    )
    doubts = [doubt for _, workers in sides for doubt in busy(workers, lasted_s)]
    if produce is not None:
        doubts += late(produce[0], workload)
    return Result(
        name=name,
        started_at=started_at,
        ended_by=ended_by,
        seconds=round(lasted_s, 6),
        record_bytes=round(record_bytes, 2),
        machine=this_machine(),
        workload=workload,
        produce=made,
        consume=read,
        timeline=timeline(produce and produce[0], consume and consume[0]),
        broker=None if watch is None else broker_result(watch, kills, lasted_s),
        check=check,
        warnings=[*warnings, *doubts],
    )


def cpu_percents(workers: list[WorkerProcess], lasted_s: float) -> list[float]:
    return [
        round(100 * (worker.cpu_s - worker.cpu_s_at_begin) / max(lasted_s, 0.001), 1)
        for worker in workers
    ]


def busy(workers: list[WorkerProcess], lasted_s: float) -> list[str]:
    """Whose process may be the limit, in place of the broker."""
    return [
        f"{worker.name} used {percent:.0f} % of a core: it may be the limit, and not the broker. "
        f"Try more --{worker.name.split()[0]}-processes"
        for worker, percent in zip(workers, cpu_percents(workers, lasted_s), strict=True)
        if percent > BUSY_PERCENT
    ]


def late(tally: SideTally, workload: Workload) -> list[str]:
    """Whether the load was what it should have been."""
    doubts = []
    p99_us = tally.lateness.percentile_us(99)
    if workload.rate and p99_us > LATE_US:
        doubts.append(
            f"one record in a hundred was sent {p99_us / 1000:,.0f} ms late or more, and latencies "
            "count that: the machine was busy, or the producers could not keep up with --rate"
        )
    if tally.failed:
        failed = ", ".join(f"{name} {count:,}" for name, count in tally.failed.items())
        doubts.append(f"records that were not delivered: {failed}")
    return doubts


def broker_result(watch: BrokerWatch, kills: int, lasted_s: float) -> Broker | None:
    samples = watch.samples
    if not samples:
        return None
    return Broker(
        cpu_seconds=round(watch.cpu_seconds, 3),
        cpu_percent=round(100 * watch.cpu_seconds / max(lasted_s, 0.001), 1),
        memory_peak_bytes=max(sample.memory_bytes for sample in samples),
        written_bytes=samples[-1].written_bytes,
        disk_bytes=samples[-1].disk_bytes,
        kills=kills,
        samples=samples,
    )
