"""Names on disk, made and read in one place: no name from outside can leave the data folder.

topic-NAME/partition-N/00000000.log        batches, back to back
                       00000000.index      offset -> position
                       00000000.timeindex  time -> index entry
                       00000123.producers  producers as they stood before offset 123
                       log-state           log start, epochs, compaction marks
                       00000000-00002000.cleaned, .swap   compaction under way
"""

from __future__ import annotations

import os
import re

from ...protocol.constants import (
    MAX_PARTITIONS_PER_TOPIC,
    MAX_TOPIC_NAME_LENGTH,
    TOPIC_NAME_PATTERN,
)
from ...protocol.errors import BadTopicName, UnknownPartition

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
PRODUCERS = ".producers"
CLEANED = ".cleaned"
SWAP = ".swap"
LOG_STATE = "log-state"
LOCK = "seglog.lock"
TOPIC_FILE = "topic.json"

TOPIC_PREFIX = "topic-"
PARTITION_PREFIX = "partition-"
DELETED_PREFIX = "deleted-"
CREATING_PREFIX = "creating-"

_BASE = re.compile(r"(\d{8,20})(\.log|\.index|\.timeindex|\.producers)", re.ASCII)
_RANGE = re.compile(r"(\d{8,20})-(\d{8,20})(\.cleaned|\.swap)", re.ASCII)
_PARTITION = re.compile(r"partition-(\d{1,9})", re.ASCII)


def check_topic_name(name: str) -> str:
    """The name itself, or BadTopicName. What passes here is safe as a part of a folder's name."""
    if len(name) > MAX_TOPIC_NAME_LENGTH or not TOPIC_NAME_PATTERN.fullmatch(name):
        shown = name if len(name) <= 64 else name[:64] + "…"
        raise BadTopicName(f"{shown!r} cannot name a topic")
    return name


def topic_folder(data: str, topic: str) -> str:
    return os.path.join(data, TOPIC_PREFIX + check_topic_name(topic))


def partition_folder(data: str, topic: str, partition: int) -> str:
    if not 0 <= partition < MAX_PARTITIONS_PER_TOPIC:
        raise UnknownPartition(f"partition {partition} of {topic}")
    return os.path.join(topic_folder(data, topic), f"{PARTITION_PREFIX}{partition}")


def partition_number(name: str) -> int | None:
    match = _PARTITION.fullmatch(name)
    return int(match[1]) if match else None


def file_name(offset: int, suffix: str) -> str:
    """`00001000.log`: at least 8 digits, more where the offset has them."""
    return f"{offset:08d}{suffix}"


def parse_file_name(name: str) -> tuple[int, str] | None:
    match = _BASE.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def range_name(start: int, end: int, suffix: str) -> str:
    """A compacted replacement for the segments from `start` up to `end`."""
    return f"{start:08d}-{end:08d}{suffix}"


def parse_range_name(name: str) -> tuple[int, int, str] | None:
    match = _RANGE.fullmatch(name)
    return (int(match[1]), int(match[2]), match[3]) if match else None
