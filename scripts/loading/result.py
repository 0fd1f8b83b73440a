"""The result of a run: one JSON file, whose form is versioned and told in docs/loadgen.md.

A reader of version 1 may rely on every field that is named here. Fields may be added; a change of
meaning, or a field that goes, is a new version.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from scripts.loading.broker import BrokerSample
from scripts.loading.checker import Verdict
from scripts.loading.histogram import LatencySummary
from scripts.loading.workload import Workload
from seglog import __version__

FORMAT: Final = "seglog-loadgen"
VERSION: Final = 1

EndedBy = Literal["time", "count", "stop"]


class BadResult(ValueError):
    """A file that is no result of this program, or of a version it does not know."""


class Machine(Struct, frozen=True, kw_only=True):
    """Where it ran: figures of another machine tell nothing."""

    system: str
    processor: str
    cores: int
    python: str
    seglog: str


class Side(Struct, frozen=True, kw_only=True):
    """What producers, or consumers, did."""

    records: Annotated[int, Meta(description="acknowledged, or read")]
    seconds: Annotated[float, Meta(description="from the begin to the last of them")]
    records_per_second: float
    bytes_per_second: Annotated[
        float, Meta(description="of keys and values, before compression, by their mean size")
    ]
    failed: Annotated[dict[str, int], Meta(description="records not delivered, by error")]
    latency: Annotated[
        LatencySummary | None,
        Meta(description="from when a record was due to its acknowledgement, or to its reader"),
    ]
    lateness: Annotated[
        LatencySummary | None,
        Meta(description="of an open loop: from when records were due to when they were sent"),
    ] = None
    processes_cpu_percent: Annotated[
        list[float], Meta(description="of one core, of each process of the load")
    ] = []


class Second(Struct, frozen=True, kw_only=True):
    """One second of the run; latencies are of what ended in it, microseconds."""

    second: Annotated[int, Meta(description="0 is the first")]
    produced: int = 0
    consumed: int = 0
    produce_p50_us: float = 0.0
    produce_p99_us: float = 0.0
    produce_max_us: float = 0.0
    end_to_end_p50_us: float = 0.0
    end_to_end_p99_us: float = 0.0
    end_to_end_max_us: float = 0.0


class Broker(Struct, frozen=True, kw_only=True):
    """The broker's process while the load ran."""

    cpu_seconds: float
    cpu_percent: Annotated[float, Meta(description="of one core, in the mean")]
    memory_peak_bytes: int
    written_bytes: int
    disk_bytes: Annotated[int, Meta(description="at the end; -1 where it is not known")]
    kills: Annotated[int, Meta(description="how often it was killed and started again")]
    samples: list[BrokerSample]


class Result(Struct, frozen=True, kw_only=True):
    """All of a run."""

    format: Literal["seglog-loadgen"] = "seglog-loadgen"
    version: Annotated[Literal[1], Meta(description="of this form")] = 1
    name: Annotated[str, Meta(description="as given with --name, or what was done")]
    started_at: Annotated[str, Meta(description="ISO 8601, UTC")]
    ended_by: Annotated[EndedBy, Meta(description="stop: Ctrl-C; the result so far")]
    seconds: Annotated[float, Meta(description="that the load lasted")]
    record_bytes: Annotated[float, Meta(description="key and value, in the mean")]
    machine: Machine
    workload: Workload
    produce: Side | None = None
    consume: Side | None = None
    timeline: Annotated[list[Second], Meta(description="the run second by second")] = []
    broker: Annotated[Broker | None, Meta(description="null where it is not on this machine")] = (
        None
    )
    check: Annotated[Verdict | None, Meta(description="of a checked run")] = None
    warnings: Annotated[list[str], Meta(description="what makes the figures doubtful")] = []


def this_machine() -> Machine:
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        cores=os.cpu_count() or 0,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        seglog=__version__,
    )


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def save_result(result: Result, path: Path) -> None:
    content = msgspec.json.format(msgspec.json.encode(result), indent=1)
    path.write_bytes(content + b"\n")


def load_result(path: Path) -> Result:
    """BadResult, with what to do, where it cannot be read."""
    try:
        content = path.read_bytes()
        head = msgspec.json.decode(content)
    except OSError as error:
        raise BadResult(f"{path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise BadResult(f"{path} is not JSON: {error}") from None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise BadResult(f"{path} is not a result of loadgen: make one with `run --json FILE`")
    if head.get("version") != VERSION:
        raise BadResult(f"{path} has version {head.get('version')}, this program reads {VERSION}")
    try:
        return msgspec.json.decode(content, type=Result)
    except msgspec.ValidationError as error:
        raise BadResult(f"{path} is damaged: {error}") from None
