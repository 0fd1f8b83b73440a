"""Which partition a record goes to.

    partition given        that one
    a key                  by the key: the same key, the same partition, while their number stays
    neither                sticky: one partition until its batch is full, then the next in turn

A partitioner is any function of a key and the number of partitions. `crc32` is what librdkafka
calls `consistent`; so C, Go, Python and PHP clients of Kafka that use it agree with this one.
"""

from __future__ import annotations

import hashlib
import random
import zlib
from collections.abc import Callable
from typing import Final, Literal

from ..protocol.errors import BadConfig

#: From a key and the number of partitions to a partition.
Partitioner = Callable[[bytes, int], int]
PartitionerName = Literal["crc32", "md5"]


def crc32(key: bytes, partition_count: int) -> int:
    """The default: `zlib.crc32(key) % partition_count`."""
    return zlib.crc32(key) % partition_count


def md5(key: bytes, partition_count: int) -> int:
    """The whole digest as a big-endian number, modulo the number of partitions."""
    digest = hashlib.md5(key, usedforsecurity=False).digest()
    return int.from_bytes(digest, "big") % partition_count


PARTITIONERS: Final[dict[str, Partitioner]] = {"crc32": crc32, "md5": md5}


def find_partitioner(which: PartitionerName | Partitioner) -> Partitioner:
    """By name, or a function of your own: `lambda key, count: int(key) % count`."""
    if callable(which):
        return which
    try:
        return PARTITIONERS[which]
    except KeyError:
        raise BadConfig(
            f"partitioner {which!r}: there are {', '.join(PARTITIONERS)}, or give a function"
        ) from None


class StickyTurn:
    """Whose turn it is to get records without a key; begins anywhere, so that clients spread."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = random.randrange(1 << 16)

    def next(self, partition_count: int) -> int:
        self._last = (self._last + 1) % partition_count
        return self._last
