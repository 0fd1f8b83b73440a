"""Why Seglog loses where it does: shell patterns of row and peer, the first that fits counts.

A reason says what was measured; one that was only thought of says so.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from scripts.peers.results import Ratio


class Reason(NamedTuple):
    rows: str
    peers: str
    text: str


_INTERPRETER: Final = (
    "the broker is a Python program: its interpreter and modules take 25 MB before the first "
    "record, and a few tenths of a second to load, where a native binary has next to nothing to do"
)

REASONS: Final[tuple[Reason, ...]] = (
    Reason("any/start", "*", _INTERPRETER),
    Reason("any/memory-idle", "*", _INTERPRETER),
    Reason("*/memory-loaded", "redis", _INTERPRETER + ". Redis's grows with what it stores"),
    Reason("*/memory-loaded", "*", _INTERPRETER),
    Reason(
        "written/awaited",
        "*",
        "one record in flight is all round trip, and nothing shares it: of about 160 µs, half is "
        "CPU time of the client, half of the broker, and in both most of it Python. A bare round "
        "trip between two such processes takes 45 µs",
    ),
    Reason(
        "durable/awaited",
        "*",
        "one record in flight shares its sync with nobody. Every broker here syncs once for each "
        "such record; what Seglog adds to it is the Python of both sides, as in the row for "
        "written records, and the hand-over to its writer thread and back",
    ),
    Reason(
        "*/latency-*",
        "nats",
        "not profiled. To be expected: NATS pushes records to its reader, a Seglog reader fetches, "
        "and at so low a rate each record is a round trip of its own, as in the awaited row",
    ),
    Reason(
        "*/latency-*",
        "redis",
        "not profiled. To be expected: at so low a rate each record is a round trip of its own, "
        "as in the awaited row",
    ),
)


def reason_for(row: str, peer: str, ratio: Ratio) -> str | None:
    """None: nobody has looked yet."""
    if ratio.is_even:
        return (
            f"within the noise: the rounds' own ratios go from {ratio.lowest:.2f} to "
            f"{ratio.highest:.2f}"
        )
    for reason in REASONS:
        if fnmatchcase(row, reason.rows) and fnmatchcase(peer, reason.peers):
            return reason.text
    return None
