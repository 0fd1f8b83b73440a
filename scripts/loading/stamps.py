"""Records that can be told apart, while they stay JSON: a stamp is an event's first fields.

    timed     {"sent_ns":1790000000000000000,"type":"click",…}
    checked   {"check":"89abcdef-00003-000000012345","sent_ns":1790000000000000000,"type":…}
                        CRC-32C  producer sequence

The checksum is over the key and everything behind it in the value. Times are nanoseconds of the
machine's monotonic clock, moved by a constant so that they look like the time of day: processes of
one machine agree on them, and nothing moves them while a run lasts.
"""

from __future__ import annotations

import re
import time
from typing import Final, NamedTuple

from crc32c import crc32c

_TIMED: Final = b'{"sent_ns":%d,'
_CHECKED: Final = b'-%05d-%012d","sent_ns":%d,'
_CHECK_BEGIN: Final = b'{"check":"'
_CRC_AT: Final = len(_CHECK_BEGIN)
_REST_AT: Final = _CRC_AT + 8
_A_TIME: Final = 1_790_000_000_000_000_000  # nineteen digits, as all times from 2001 to 2286

TIMED_BYTES: Final = len(_TIMED % _A_TIME)
CHECKED_BYTES: Final = _REST_AT + len(_CHECKED % (0, 0, _A_TIME))
TIMED_SLICE: Final = slice(TIMED_BYTES - 20, TIMED_BYTES - 1)
CHECKED_SLICE: Final = slice(CHECKED_BYTES - 20, CHECKED_BYTES - 1)

MAX_PRODUCER: Final = 99_999
MAX_SEQUENCE: Final = 999_999_999_999
_STAMP: Final = re.compile(rb'\{"check":"([0-9a-f]{8})-(\d{5})-(\d{12})","sent_ns":\d{19},')


class Stamp(NamedTuple):
    """Who sent a record, and the how manyth of the sender's it was."""

    producer: int
    sequence: int


def clock_offset_ns() -> int:
    """What to add to the monotonic clock; taken once in a run, and given to all processes."""
    return time.time_ns() - time.monotonic_ns()


def timed_prefix(sent_ns: int) -> bytes:
    """For all records that are due at one time."""
    return _TIMED % sent_ns


def checked_value(
    stamp: Stamp, sent_ns: int, fields: bytes, key: bytes | None, begin: bytes = _CHECK_BEGIN
) -> bytes:
    """A whole record value."""
    rest = _CHECKED % (stamp.producer, stamp.sequence, sent_ns) + fields
    return b"%b%08x%b" % (begin, crc32c(rest, crc32c(key or b"")), rest)


def read_stamp(value: bytes | None, key: bytes | None) -> Stamp | None:
    """The stamp, or None where a bit of the record is not as it was sent."""
    if value is None or (found := _STAMP.match(value)) is None:
        return None
    if crc32c(memoryview(value)[_REST_AT:], crc32c(key or b"")) != int(found[1], 16):
        return None
    return Stamp(int(found[2]), int(found[3]))
