"""Finding the next sound batch behind a damaged stretch of a segment."""

from __future__ import annotations

import re

from ...protocol.errors import SeglogError
from ...protocol.header import check_stored

# Fixed places in a header: an offset below 2^48, then format 1, a known codec, known flags.
_LIKELY_HEADER = re.compile(rb"(?=.{6}\x00\x00.{24}\x01[\x00-\x02][\x00\x01]\x00)", re.DOTALL)


def find_next_batch(view: memoryview, position: int, least_offset: int) -> int | None:
    """The first position from `position` on with a sound batch of `least_offset` or later."""
    for candidate in _LIKELY_HEADER.finditer(view, position):
        start = candidate.start()
        try:
            if check_stored(view, start).base_offset >= least_offset:
                return start
        except SeglogError:
            continue
    return None
