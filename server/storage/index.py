"""The two sparse indexes of a segment, and its summary, which is also its recovery point.

    NNNNNNNN.index      header, then u64 entries: relative offset << 32 | position
    NNNNNNNN.timeindex  header, then i64 entries: the largest timestamp before that entry's position

    header, 64 bytes, little-endian, the same in both files but for the magic:
     0  4s   magic, SGIX or SGTX       32  i64  max_timestamp_us of the covered records
     4  u32  version                   40  i64  last_append_time_us
     8  u64  entry_count               48  u32  log_epoch of the last batch
    16  u64  covered_bytes of the log  52  u32  crc32c of the entries
    24  u64  next_offset               56  u32  zero
                                       60  u32  crc32c of bytes 0–59

Both arrays run in parallel: entry i of one belongs to entry i of the other. They are written only
after the log bytes they cover were synced, so a sound index also tells how far the log needs no
scanning. A lost or damaged index is rebuilt from the log, and reads are then the same.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from crc32c import crc32c

from ...protocol.errors import DamagedLog
from ...protocol.header import BatchHeader

POSITION_MASK: Final = 0xFFFF_FFFF
NO_TIMESTAMP: Final = -(1 << 63)
HEADER_BYTES: Final = 64
VERSION: Final = 1

_HEADER = struct.Struct("<4sIQQQqqIIII")
_OFFSET_MAGIC: Final = b"SGIX"
_TIME_MAGIC: Final = b"SGTX"

assert _HEADER.size == HEADER_BYTES


def _position(entry: int) -> int:
    return entry & POSITION_MASK


class SegmentIndex:
    """Where offsets and times lie in one segment.

    One thread adds, others look up meanwhile: the summary fields and arrays only ever grow, and an
    entry is complete before anything can find it.
    """

    __slots__ = (
        "base_offset",
        "covered_bytes",
        "entries",
        "interval_bytes",
        "last_append_time_us",
        "log_epoch",
        "max_timestamp_us",
        "next_offset",
        "times",
    )

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.interval_bytes = interval_bytes
        self.entries = array("Q")
        self.times = array("q")
        self.covered_bytes = 0
        self.next_offset = base_offset
        self.max_timestamp_us = NO_TIMESTAMP
        self.last_append_time_us = 0
        self.log_epoch = 0

    def add(
        self,
        base_offset: int,
        next_offset: int,
        length: int,
        max_timestamp_us: int,
        append_time_us: int,
        log_epoch: int,
    ) -> None:
        """Cover the batch that follows what is covered so far."""
        position = self.covered_bytes
        entries = self.entries
        if not entries or position - (entries[-1] & POSITION_MASK) >= self.interval_bytes:
            self.mark(base_offset, position)
        self.max_timestamp_us = max(self.max_timestamp_us, max_timestamp_us)
        self.last_append_time_us = append_time_us
        self.log_epoch = log_epoch
        self.next_offset = next_offset
        self.covered_bytes = position + length

    def add_stored(self, header: BatchHeader) -> None:
        """Cover a batch that was read back from the log."""
        self.add(
            header.base_offset,
            header.next_offset,
            header.length,
            header.max_timestamp_us,
            header.append_time_us,
            header.log_epoch,
        )

    def mark(self, base_offset: int, position: int) -> None:
        """Make an entry for the batch at `position`, behind everything covered so far."""
        self.entries.append((base_offset - self.base_offset) << 32 | position)
        self.times.append(self.max_timestamp_us)  # after the entry: a time finds a whole pair

    def position_of_offset(self, offset: int) -> int:
        """A batch boundary at or before the batch that holds `offset`."""
        key = (offset - self.base_offset) << 32 | POSITION_MASK
        found = bisect_right(self.entries, key)
        return self.entries[found - 1] & POSITION_MASK if found else 0

    def position_at_or_before(self, position: int) -> int:
        """The last indexed batch boundary that does not lie after `position`."""
        found = bisect_right(self.entries, position, key=_position)
        return self.entries[found - 1] & POSITION_MASK if found else 0

    def position_after(self, position: int) -> int | None:
        """The first indexed batch boundary after `position`: where to go on behind damage."""
        found = bisect_right(self.entries, position, key=_position)
        return self.entries[found] & POSITION_MASK if found < len(self.entries) else None

    def position_of_time(self, timestamp_us: int) -> int:
        """A batch boundary with no record of `timestamp_us` or later before it."""
        found = bisect_left(self.times, timestamp_us)
        return self.entries[found - 1] & POSITION_MASK if found else 0

    def pack(self) -> tuple[bytes, bytes]:
        """The bytes of the two files."""
        return self._pack(_OFFSET_MAGIC, self.entries), self._pack(_TIME_MAGIC, self.times)

    def _pack(self, magic: bytes, values: array[int]) -> bytes:
        body = values.tobytes()
        head = _HEADER.pack(
            magic,
            VERSION,
            len(values),
            self.covered_bytes,
            self.next_offset,
            self.max_timestamp_us,
            self.last_append_time_us,
            self.log_epoch,
            crc32c(body),
            0,
            0,
        )[:-4]
        return head + struct.pack("<I", crc32c(head)) + body

    @classmethod
    def unpack(
        cls, base_offset: int, interval_bytes: int, offset_file: bytes, time_file: bytes
    ) -> SegmentIndex:
        """The index from its two files, or DamagedLog: the caller rebuilds it then."""
        index = cls(base_offset, interval_bytes)
        summary, body = _unpack(offset_file, _OFFSET_MAGIC)
        time_summary, time_body = _unpack(time_file, _TIME_MAGIC)
        if summary != time_summary:
            raise DamagedLog("the offset index and the time index do not belong together")
        index.entries.frombytes(body)
        index.times.frombytes(time_body)
        (
            _,
            index.covered_bytes,
            index.next_offset,
            index.max_timestamp_us,
            index.last_append_time_us,
            index.log_epoch,
        ) = summary
        return index


def _unpack(data: bytes, magic: bytes) -> tuple[tuple[int, ...], bytes]:
    if len(data) < HEADER_BYTES:
        raise DamagedLog("an index file is cut short")
    found, version, count, *summary, body_checksum, _, checksum = _HEADER.unpack_from(data)
    body = data[HEADER_BYTES:]
    if (
        found != magic
        or version != VERSION
        or crc32c(data[: HEADER_BYTES - 4]) != checksum
        or len(body) != 8 * count
        or crc32c(body) != body_checksum
    ):
        raise DamagedLog("an index file fails its checksum")
    return (count, *summary), body
