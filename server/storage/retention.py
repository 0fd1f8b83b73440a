"""Retention: the oldest sealed segments go, by size and by age. The active segment always stays."""

from __future__ import annotations

from itertools import pairwise

from .config import UNLIMITED
from .log import Log
from .segment import SealedSegment
from .staged import SegmentInfo


def apply_retention(log: Log, now_us: int) -> list[SegmentInfo]:
    """Delete the segments that are due; returns them. Called by the writer."""
    start = retention_start(log, now_us)
    return log.raise_log_start(start) if start > log.log_start else []


def retention_start(log: Log, now_us: int) -> int:
    """The log start that retention asks for.

    By size a segment goes as long as what stays is no less than `retention.bytes`; by age, once its
    last batch was appended more than `retention.ms` ago.
    """
    config = log.config
    start = log.log_start
    if not config.deletes_segments:
        return start
    remaining = log.size_bytes
    oldest_us = now_us - config.retention_ms * 1000
    segments = log.segments
    for segment, following in pairwise(segments):
        if not isinstance(segment, SealedSegment) or following.base_offset > log.durable_end:
            break
        remaining -= segment.file_bytes
        too_large = config.retention_bytes != UNLIMITED and remaining >= config.retention_bytes
        too_old = (
            config.retention_ms != UNLIMITED and segment.summary().last_append_time_us < oldest_us
        )
        if not (too_large or too_old):
            break
        start = max(start, following.base_offset)
    return start
