"""What the processes of a run tell each other: JSON lines over the workers' stdin and stdout.

to a worker      Plan, then Go; Drain asks consumers where they are; Where asks producers where
                 records were acknowledged; Stop ends the load; the end of stdin ends the worker
from a worker    Ready, then a Report every second, Done at the end; Positions and Places answer;
                 Failed in place of any of these
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from scripts.loading.checker import Finding, PackedSightings, SentRecords
from scripts.loading.workload import Workload


class Plan(Struct, frozen=True, tag="plan", kw_only=True):
    """What a worker is to do. `numbers` are those of its tasks, out of all producers or
    consumers."""

    workload: Workload
    is_producer: bool
    numbers: list[int]
    bootstrap: str
    topics: list[str]
    group: str
    clock_offset_ns: int


class Go(Struct, frozen=True, tag="go"):
    """Begin at this time of the monotonic clock."""

    start_ns: int


class Drain(Struct, frozen=True, tag="drain"):
    """Tell positions from now on, several times a second."""


class Stop(Struct, frozen=True, tag="stop"):
    """End the load; what was sent is still delivered."""


class Where(Struct, frozen=True, tag="where"):
    """Where were these (producer, sequence) acknowledged?"""

    records: list[tuple[int, int]]


class Ready(Struct, frozen=True, tag="ready"):
    """Connected, and the pool made."""

    mean_bytes: float
    cpu_s: float  # of the process, so far


class Report(Struct, frozen=True, tag="report", kw_only=True):
    """What happened since the last report. Histograms are encoded, or empty."""

    at_ns: int
    records: int
    last_ns: int  # when the last of them was acknowledged or read
    failed: dict[str, int]
    latency: str
    lateness: str
    cpu_s: float  # of the process, since it began


class Positions(Struct, frozen=True, tag="positions"):
    """For each consumer of the process: (topic, partition, offset of the next record)."""

    consumers: list[list[tuple[str, int, int]]]


class Done(Struct, frozen=True, tag="done", kw_only=True):
    """The load has ended; `ended_by` is time, count or stop."""

    ended_by: str
    sent: list[SentRecords]
    sightings: list[PackedSightings]


class Places(Struct, frozen=True, tag="places"):
    findings: list[Finding]


class Failed(Struct, frozen=True, tag="failed"):
    """The worker cannot go on."""

    reason: str


ToWorker = Plan | Go | Drain | Stop | Where
FromWorker = Ready | Report | Positions | Done | Places | Failed

_encoder = msgspec.json.Encoder()
to_worker = msgspec.json.Decoder(ToWorker)
from_worker = msgspec.json.Decoder(FromWorker)


def encode_line(message: ToWorker | FromWorker) -> bytes:
    return _encoder.encode(message) + b"\n"
