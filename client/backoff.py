"""How long to wait before trying again: longer each time, and never all clients at once."""

from __future__ import annotations

import random
from typing import Final

FIRST_DELAY_S: Final = 0.05
LONGEST_DELAY_S: Final = 2.0


def backoff_s(attempt: int) -> float:
    """The delay before retry number `attempt`, counted from 0: doubling, cut, with jitter."""
    longest: float = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** min(attempt, 16))
    return longest * random.uniform(0.5, 1.0)
