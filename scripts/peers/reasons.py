"""Why Seglog loses where it does: shell patterns of row and peer, the first that fits counts.

Each reason was found by a profile of both sides, and says whether the design could win there.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from scripts.peers.results import Ratio


class Reason(NamedTuple):
    rows: str
    peers: str
    text: str


REASONS: Final[tuple[Reason, ...]] = ()


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
