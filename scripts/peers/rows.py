"""What is measured, group by group; each group appends its rows to the bench.

produce    records/s, 100 B and 1 KiB, one client process and four (each with a log of its own),
           handed over record by record and all acknowledged
bulk       100 B, one client process, through the library's way for many records at once
awaited    records/s of one client that awaits each record before it sends the next
read       records/s of one client, through the plain iterator and in batches
latency    end to end at half of what the slower of Seglog and the peer can do: open loop, from
           the time that a record was meant to be sent to its arrival in another process
footprint  start to first acknowledged record, memory, bytes on disk
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from scripts.loading.histogram import Latencies
from scripts.peers import jobs
from scripts.peers.campaign import CLIENTS, Bench, note_failure
from scripts.peers.jobs import Followed, ProduceKind, ReadKind, ShortOfRecords, Span
from scripts.peers.results import SEGLOG, Row
from scripts.peers.systems import System
from scripts.peers.workers import Job, JobFailed

SIZES: Final = {100: "100 B", 1024: "1 KiB"}
PERCENTILES: Final = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9}
#: Latencies of the first part of a run are not counted: connections, caches, compilers.
SKIPPED_SHARE: Final = 0.2
MAX_PACED_RECORDS: Final = 1_000_000
LEAST_PACED_RECORDS: Final = 200
FILL_SECONDS: Final = 3.0
FOOTPRINT_SECONDS: Final = 20.0
PROBE_SHARE: Final = 0.5


class Group(NamedTuple):
    measure: Callable[[Bench], None]
    #: How many cells it has, from the count of systems and of rounds.
    cells: Callable[[int, int], int]
    #: Whether the phase's brokers must be running.
    needs_servers: bool = True
    #: Whether it is the same for every strength, and is measured in one only.
    is_once: bool = False


# --- producing ---


def produce_rows(bench: Bench) -> None:
    for size, label in SIZES.items():
        for clients in (1, CLIENTS):
            who = "one client process" if clients == 1 else f"{clients} client processes"
            row = bench.add_row(
                f"produce-{size}-{clients}", f"produce {label}, {who}", "records/s",
                more_is_better=True,
            )  # fmt: skip
            bench.alternate(row, partial(produced, bench, size, clients, "records"))
    loaded_row(bench)


def bulk_row(bench: Bench) -> None:
    row = bench.add_row("bulk", "produce 100 B in bulk", "records/s", more_is_better=True)
    bench.alternate(row, partial(produced, bench, 100, 1, "bulk"))


def awaited_row(bench: Bench) -> None:
    row = bench.add_row(
        "awaited", "send 100 B and await, one after the other", "records/s", more_is_better=True
    )
    bench.alternate(row, partial(produced, bench, 100, 1, "awaited"))


def produced(
    bench: Bench, size: int, clients: int, kind: ProduceKind, system: System, share: float = 1
) -> float:
    """Records a second of all clients together; every one of them is in the broker's log."""
    target, seconds = bench.target(system), bench.scale.seconds * share
    with bench.topics(system, clients) as topics:
        work = [Job(jobs.produce, (target, topic, size, kind, seconds)) for topic in topics]
        with bench.watching_memory(system):
            spans: list[Span] = bench.together(work, seconds)
        acknowledged = sum(span.records for span in spans) + clients  # and each one's first
        found = bench.one(jobs.length, target, topics)
        if found != acknowledged:
            raise JobFailed(f"{acknowledged} records were acknowledged, the log has {found}")
    return rate_of(spans)


def rate_of(spans: list[Span]) -> float:
    took = max(span.ended for span in spans) - min(span.started for span in spans)
    return sum(span.records for span in spans) / took


# --- reading ---


def read_rows(bench: Bench) -> None:
    """Does not depend on durability: measured once, with the strength that fills fastest."""
    size = 100
    filled: dict[str, tuple[str, int]] = {}
    for system in bench.systems:
        topic = bench.new_topic()
        target = bench.target(system)
        bench.one(jobs.create, target, [topic], bench.is_durable)
        count = bench.one(
            jobs.fill, target, topic, size, bench.scale.fill_records, FILL_SECONDS,
            seconds=FILL_SECONDS,
        )  # fmt: skip
        filled[system.name] = topic, count

    def read(kind: ReadKind, system: System) -> float:
        topic, count = filled[system.name]
        work = Job(jobs.read, (bench.target(system), topic, size, kind, count))
        return rate_of(bench.together([work], 0))

    titles: dict[ReadKind, str] = {
        "records": "read 100 B, plain iterator",
        "batches": "read 100 B, in batches",
    }
    for kind, title in titles.items():
        row = bench.add_row(f"read-{kind}", title, "records/s", more_is_better=True)
        bench.alternate(row, partial(read, kind))
    for system in bench.systems:
        bench.one(jobs.delete, bench.target(system), [filled[system.name][0]])


# --- end to end ---


def latency_rows(bench: Bench) -> None:
    rows = {
        name: bench.add_row(f"latency-{name}", f"end to end, {name}", "ms", more_is_better=False)
        for name in PERCENTILES
    }
    peaks: dict[str, float] = {}
    for system in bench.systems:
        try:
            peaks[system.name] = peak_of(bench, system)
        except (JobFailed, ShortOfRecords) as error:
            for row in rows.values():
                note_failure(row, system.name, error)
    seglog = next((each for each in bench.systems if each.name == SEGLOG), None)
    for peer in bench.systems:
        if peer is seglog or seglog is None or not {SEGLOG, peer.name} <= peaks.keys():
            continue
        rate = min(peaks[SEGLOG], peaks[peer.name]) / 2
        compare_latency(bench, rows, seglog, peer, rate)


def peak_of(bench: Bench, system: System) -> float:
    """Records a second that go in at one end and come out at the other, as fast as they can."""
    probed = produced(bench, 100, 1, "records", system, share=PROBE_SHARE)
    count = int(probed * bench.scale.seconds)
    count = max(LEAST_PACED_RECORDS, min(count, MAX_PACED_RECORDS))
    return rate_of([through(bench, system, count, None).span])


def compare_latency(
    bench: Bench, rows: dict[str, Row], seglog: System, peer: System, rate: float
) -> None:
    count = int(rate * bench.scale.seconds)
    count = max(LEAST_PACED_RECORDS, min(count, MAX_PACED_RECORDS))
    middle = rows["p50"]
    for number in range(bench.scale.rounds):
        pair = [seglog, peer] if number % 2 == 0 else [peer, seglog]
        found: dict[str, Followed] = {}
        for system in pair:
            with bench.cell(middle, peer, number):
                found[system.name] = through(bench, system, count, rate)
        if len(found) < len(pair):
            for row in rows.values():  # the cell has noted it in one of them
                row.notes[peer.name] = middle.notes[peer.name]
                row.rounds.pop(peer.name, None)
                row.beside.pop(peer.name, None)
            return
        for name, percentile in PERCENTILES.items():
            ours, theirs = (
                Latencies.decode(found[each.name].latencies).percentile_us(percentile) / 1000
                for each in (seglog, peer)
            )
            rows[name].beside.setdefault(peer.name, []).append(ours)
            rows[name].rounds.setdefault(peer.name, []).append(theirs)
    for row in rows.values():
        row.notes[peer.name] = f"at {rate:,.0f} records/s"


def through(bench: Bench, system: System, count: int, rate: float | None) -> Followed:
    """Records from one client process through the broker into another."""
    target = bench.target(system)
    seconds = bench.scale.seconds
    with bench.topics(system, 1) as (topic,):
        sending = Job(jobs.pace, (target, topic, 100, count, rate))
        following = Job(jobs.follow, (target, topic, count, rate, seconds * SKIPPED_SHARE))
        _, followed = bench.together([sending, following], seconds)
    assert isinstance(followed, Followed)
    return followed


# --- start, memory, disk ---


def footprint_rows(bench: Bench) -> None:
    """Each cell starts a broker of its own in an empty folder; no other runs."""
    start = bench.add_row("start", "start to first ack", "s", more_is_better=False)
    idle = bench.add_row("memory-idle", "memory after the first ack", "MB", more_is_better=False)
    disk = bench.add_row("disk", "on disk for a record of 100 B", "bytes", more_is_better=False)

    def measure(system: System) -> float:
        found = footprint(bench, system)
        idle.rounds.setdefault(system.name, []).append(found.memory_bytes / 1e6)
        disk.rounds.setdefault(system.name, []).append(found.record_bytes)
        return found.start_s

    bench.alternate(start, measure)
    for row in (idle, disk):
        for name, note in start.notes.items():
            row.notes[name] = note
            row.rounds.pop(name, None)


class Footprint(NamedTuple):
    start_s: float
    memory_bytes: int
    record_bytes: float


def footprint(bench: Bench, system: System) -> Footprint:
    """The size on disk is that of a broker which was stopped in order."""
    server = bench.new_server(system)
    try:
        began = server.start()
        start_s = bench.wait_for_first_ack(system, server) - began
        memory_bytes = server.memory_bytes()
        target = jobs.Target(system.name, server.address)
        topic, wanted = bench.new_topic(), bench.scale.footprint_records
        bench.one(jobs.create, target, [topic], bench.is_durable)
        count = bench.one(
            jobs.fill, target, topic, 100, wanted, FOOTPRINT_SECONDS, seconds=FOOTPRINT_SECONDS
        )
    finally:
        server.stop()
    return Footprint(start_s, memory_bytes, server.disk_bytes() / count)


def loaded_row(bench: Bench) -> None:
    """What the produce cells of this strength took at most."""
    row = bench.add_row("memory-loaded", "memory at most, producing", "MB", more_is_better=False)
    for system in bench.systems:
        peak = bench.peak_memory.get((bench.strength, system.name))
        if peak is not None:
            row.rounds[system.name] = [peak / 1e6]


#: In the order in which they run.
GROUPS: Final = {
    "footprint": Group(
        footprint_rows,
        lambda systems, rounds: systems * rounds,
        needs_servers=False,
        is_once=True,
    ),
    "produce": Group(produce_rows, lambda systems, rounds: len(SIZES) * 2 * systems * rounds),
    "bulk": Group(bulk_row, lambda systems, rounds: systems * rounds),
    "awaited": Group(awaited_row, lambda systems, rounds: systems * rounds),
    "read": Group(read_rows, lambda systems, rounds: 2 * systems * rounds, is_once=True),
    "latency": Group(latency_rows, lambda systems, rounds: 2 * (systems - 1) * rounds),
}
#: The strength that every peer has, in which what does not depend on it is measured.
ONCE_IN: Final = "written"


def warm_up(bench: Bench, system: System) -> None:
    """Once through the broker and its client, not counted: the JVM compiles what it finds hot."""
    produced(bench, 100, 1, "records", system, share=PROBE_SHARE)
