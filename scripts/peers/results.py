"""What a run found: every round of every cell, with all that a reader needs to judge it.

A result is one JSON file. Ratios are always "times better": above 1 Seglog is the better one,
whether more or less is better; each round gives a ratio, and the median counts.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Final, Literal

import msgspec

SEGLOG: Final = "seglog"

Strength = Literal["durable", "written", "any"]


class Ratio(msgspec.Struct, frozen=True):
    """The median of the rounds, and their range."""

    middle: float
    lowest: float
    highest: float

    @property
    def is_loss(self) -> bool:
        return self.middle < 1

    @property
    def is_even(self) -> bool:
        """The rounds do not agree on who is better."""
        return self.lowest < 1 < self.highest


class Row(msgspec.Struct):
    """One thing measured on all systems."""

    key: str
    strength: Strength
    title: str
    unit: str
    more_is_better: bool
    #: System to its rounds.
    rounds: dict[str, list[float]] = {}
    #: Where Seglog was measured once for each peer (at that peer's rate): peer to Seglog's rounds.
    beside: dict[str, list[float]] = {}
    #: System to what the reader must know of its figure: a rate, or why there is none.
    notes: dict[str, str] = {}

    def value(self, system: str) -> float | None:
        rounds = self.rounds.get(system)
        return median(rounds) if rounds else None

    def ratio(self, peer: str) -> Ratio | None:
        theirs = self.rounds.get(peer, [])
        ours = self.beside.get(peer) or self.rounds.get(SEGLOG, [])
        pairs = list(zip(ours, theirs, strict=False))
        if peer == SEGLOG or not pairs:
            return None
        ratios = [our / their if self.more_is_better else their / our for our, their in pairs]
        return Ratio(median(ratios), min(ratios), max(ratios))


class Machine(msgspec.Struct):
    cpu: str
    cores: int
    memory_gb: float
    kernel: str
    disk: str
    fdatasync_ms: float
    python: str
    #: What else it did, before the run began; None: not asked.
    load_average: float | None = None


class Described(msgspec.Struct):
    """A system as it was run."""

    title: str
    server_version: str
    client_version: str
    settings: dict[str, list[str]]


class Absent(msgspec.Struct):
    """A system that could not be measured; `install` is the command that would change it."""

    title: str
    strength: Strength
    reason: str
    install: str


class Result(msgspec.Struct):
    command: str
    began: str
    took_s: float
    is_quick: bool
    rounds: int
    seconds: float
    machine: Machine
    systems: dict[str, Described]
    absent: list[Absent]
    rows: list[Row]

    @property
    def peers(self) -> list[str]:
        return [name for name in self.systems if name != SEGLOG]

    def losses(self) -> list[tuple[Row, str, Ratio]]:
        """Where the peer is the better one."""
        return [
            (row, peer, ratio)
            for row in self.rows
            for peer in self.peers
            if (ratio := row.ratio(peer)) is not None and ratio.is_loss
        ]

    def failures(self) -> list[str]:
        """Cells that were tried and gave no figure."""
        return [
            f"{row.title} ({row.strength}), {name}: {note}"
            for row in self.rows
            for name, note in row.notes.items()
            if note.startswith("failed")
        ]


def save(result: Result, path: Path) -> None:
    text = msgspec.json.format(msgspec.json.encode(result), indent=1)
    path.write_bytes(text + b"\n")


def load(path: Path) -> Result:
    return msgspec.json.decode(path.read_bytes(), type=Result)
