"""A whole run, from what was asked for to its result."""

from __future__ import annotations

import datetime
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console

from scripts.peers.campaign import CLIENTS, Bench, Scale
from scripts.peers.machine import look_at
from scripts.peers.results import SEGLOG, Absent, Described, Result, Strength
from scripts.peers.rows import GROUPS, ONCE_IN, warm_up
from scripts.peers.systems import SYSTEMS, System
from scripts.peers.workers import Workers

STRENGTHS: Final[tuple[Strength, ...]] = ("durable", "written")
FULL: Final = Scale(rounds=3, seconds=2.5, fill_records=1_000_000, footprint_records=50_000)
QUICK: Final = Scale(rounds=1, seconds=1.0, fill_records=100_000, footprint_records=10_000)


class Options(NamedTuple):
    peers: Sequence[str]
    groups: Sequence[str]
    scale: Scale
    is_quick: bool
    command: str
    folder: Path | None = None


def find_absent(names: Sequence[str]) -> list[Absent]:
    """What of these cannot be measured here, strength by strength."""
    absent = []
    for name in names:
        for strength in STRENGTHS:
            system = SYSTEMS[name]
            missing = system.server.missing(is_durable=strength == "durable")
            if missing is not None:
                absent.append(Absent(system.title, strength, missing.reason, missing.install))
    return absent


def conduct(options: Options, console: Console) -> Result:
    """Measure; whatever ends this, no process and no file is left."""
    began, started = datetime.datetime.now(datetime.UTC), time.monotonic()
    names = [SEGLOG, *(name for name in SYSTEMS if name in options.peers and name != SEGLOG)]
    absent = find_absent(names)
    with tempfile.TemporaryDirectory(prefix="seglog-peers-", dir=options.folder) as temporary:
        folder = Path(temporary)
        machine = look_at(folder)
        with Workers(CLIENTS) as workers:
            bench = Bench(options.scale, workers, folder, console, _count_cells(options, names))
            with bench.showing():
                for strength in STRENGTHS:
                    bench.strength = strength
                    bench.systems = _present(names, strength)
                    _run_phase(bench, options.groups)
    measured = {name for strength in STRENGTHS for name in _names(_present(names, strength))}
    return Result(
        command=options.command,
        began=began.isoformat(timespec="seconds"),
        took_s=round(time.monotonic() - started, 1),
        is_quick=options.is_quick,
        rounds=options.scale.rounds,
        seconds=options.scale.seconds,
        machine=machine,
        systems={name: _describe(SYSTEMS[name]) for name in names if name in measured},
        absent=absent + bench.dropped,
        rows=bench.rows,
    )


def _run_phase(bench: Bench, groups: Sequence[str]) -> None:
    chosen = [
        group
        for name, group in GROUPS.items()
        if name in groups and (not group.is_once or bench.strength == ONCE_IN)
    ]
    for group in chosen:
        if not group.needs_servers:
            bench.is_any_strength = group.is_once
            group.measure(bench)
    with_servers = [group for group in chosen if group.needs_servers]
    if with_servers:
        with bench.running():
            for system in list(bench.systems):
                with bench.dropping(system):
                    warm_up(bench, system)
            for group in with_servers:
                bench.is_any_strength = group.is_once
                group.measure(bench)


def _present(names: Sequence[str], strength: Strength) -> list[System]:
    is_durable = strength == "durable"
    return [
        SYSTEMS[name]
        for name in names
        if SYSTEMS[name].server.missing(is_durable=is_durable) is None
    ]


def _names(systems: Sequence[System]) -> list[str]:
    return [system.name for system in systems]


def _count_cells(options: Options, names: Sequence[str]) -> int:
    return sum(
        group.cells(len(_present(names, strength)), options.scale.rounds)
        for strength in STRENGTHS
        for name, group in GROUPS.items()
        if name in options.groups and (not group.is_once or strength == ONCE_IN)
    )


def _describe(system: System) -> Described:
    settings: dict[str, list[str]] = {
        strength: system.server.settings(is_durable=strength == "durable")
        for strength in STRENGTHS
        if system.server.missing(is_durable=strength == "durable") is None
    }
    settings["client"] = list(system.client.settings)
    return Described(system.title, system.server.version(), system.client.version(), settings)
