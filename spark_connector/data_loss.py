"""Records that were deleted before the query read them: told, one way or the other."""

from __future__ import annotations

import logging

from .offsets import Span

logger = logging.getLogger(__name__)


class DataLost(Exception):
    """Part of what the query should read is not there any more."""


def report_loss(lost: Span, why: str, *, fails: bool) -> None:
    """Raise, or log and go on, as `failOnDataLoss` says."""
    what = (
        f"{lost.name.topic}/{lost.name.partition}: offsets {lost.first_offset} to"
        f" {lost.end_offset - 1} are lost: {why}"
    )
    if fails:
        raise DataLost(
            f"{what}. To go on with what is left, set failOnDataLoss=false; to keep more, raise the"
            " topic's retention"
        )
    logger.warning("%s; failOnDataLoss=false: the query goes on without them", what)
