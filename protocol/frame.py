"""Frames: a u32 big-endian length, then that many bytes of msgpack. Bytes in, whole frames out.

`FrameReceiver` is made for `asyncio.BufferedProtocol`, but knows nothing of it: it says where the
next bytes should go, and what became whole. Small frames come in through a buffer that all
connections share, so that an idle connection holds none; a large one is received in place, with no
copy. Memory follows what has arrived, not what a length prefix claims.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from .constants import FRAME_PREFIX_BYTES, KIB, MAX_FRAME_BYTES
from .errors import BadRequest, LimitExceeded

Buffer = bytes | bytearray | memoryview

SHARED_BUFFER_BYTES: Final = 256 * KIB
_FIRST_BYTES: Final = 64 * KIB  # a larger frame's buffer grows from here as it fills

_PREFIX = struct.Struct(">I")
_HTTP: Final = int.from_bytes(b"HTTP", "big")  # how any answer of a web server begins


def frame_prefix(length: int) -> bytes:
    return _PREFIX.pack(length)


def pack_frame(parts: Sequence[Buffer]) -> list[Buffer]:
    """A frame of these parts, ready to be written; nothing is copied."""
    return [_PREFIX.pack(sum(map(len, parts))), *parts]


class FrameReceiver:
    """One connection's incoming bytes: fill `get_buffer`, then `received` gives whole frames."""

    __slots__ = (
        "_begun",
        "_filled",
        "_first_bytes",
        "_frame",
        "_length",
        "_shared",
        "max_frame_bytes",
    )

    def __init__(
        self,
        shared: memoryview,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        *,
        trusts_lengths: bool = False,
    ) -> None:
        """`trusts_lengths`: room for a whole frame at once, from a peer that we chose to ask."""
        self._shared = shared
        self.max_frame_bytes = max_frame_bytes
        self._first_bytes = max_frame_bytes if trusts_lengths else _FIRST_BYTES
        self._begun = b""  # of a prefix that is not whole yet
        self._frame: bytearray | None = None  # of a frame that is not whole yet
        self._length = 0
        self._filled = 0

    @property
    def is_between_frames(self) -> bool:
        return self._frame is None and not self._begun

    def get_buffer(self) -> memoryview:
        """Where the next bytes should be put; used up by the next `received`."""
        if self._frame is None:
            return self._shared
        if self._filled == len(self._frame):
            self._frame.extend(bytes(min(self._filled, self._length - self._filled)))
        return memoryview(self._frame)[self._filled :]

    def received(self, count: int) -> list[bytes | bytearray]:
        """Take note of `count` bytes in the last buffer; returns the frames that are whole now.

        A frame beyond the limit raises LimitExceeded: what follows it cannot be read any more, and
        frames that became whole with the same bytes are lost with it.
        """
        if self._frame is None:
            return self._split(self._shared[:count])
        self._filled += count
        if self._filled < self._length:
            return []
        frame, self._frame = self._frame, None
        return [frame]

    def _split(self, data: memoryview) -> list[bytes | bytearray]:
        if self._begun:
            data = memoryview(self._begun + bytes(data))
            self._begun = b""
        frames: list[bytes | bytearray] = []
        position, end = 0, len(data)
        while end - position >= FRAME_PREFIX_BYTES:
            (length,) = _PREFIX.unpack_from(data, position)
            self._check(length)
            position += FRAME_PREFIX_BYTES
            if end - position < length:
                self._begin(length, data[position:])
                return frames
            frames.append(bytes(data[position : position + length]))
            position += length
        self._begun = bytes(data[position:])
        return frames

    def _check(self, length: int) -> None:
        if length > self.max_frame_bytes:
            if length == _HTTP:
                raise LimitExceeded("it speaks HTTP, which is not the protocol of a broker's port")
            raise LimitExceeded(
                f"a frame of {length} bytes, max.frame.bytes allows {self.max_frame_bytes}"
            )
        if length == 0:
            raise BadRequest("an empty frame")

    def _begin(self, length: int, data: memoryview) -> None:
        self._length = length
        self._filled = len(data)
        self._frame = bytearray(min(length, max(self._first_bytes, 2 * self._filled)))
        self._frame[: self._filled] = data
