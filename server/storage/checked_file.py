"""Small state in one checksummed file: a producer snapshot, a log's state.

    0  4s   magic: what the file is
    4  u32  version
    8  u32  crc32c of the rest
    12 …    msgpack

Written with `FileSystem.replace_file`, so it is there as it was or as it is, never in between.
"""

from __future__ import annotations

import struct
from typing import Any

import msgpack
from crc32c import crc32c

from ...protocol.errors import DamagedLog, UnsupportedVersion
from .filesystem import FileSystem

_HEAD = struct.Struct("<4sII")
VERSION = 1


def write_checked(
    fs: FileSystem, path: str, magic: bytes, content: Any, *, sync_folder: bool = True
) -> None:
    """Put `content` (anything msgpack takes) under `path`, durably and in one step."""
    body = msgpack.packb(content)
    data = _HEAD.pack(magic, VERSION, crc32c(body)) + body
    fs.replace_file(path, data, sync_folder=sync_folder)


def read_checked(fs: FileSystem, path: str, magic: bytes) -> Any:
    """What `write_checked` wrote; DamagedLog where the bytes are not those."""
    data = fs.read_file(path)
    if len(data) < _HEAD.size:
        raise DamagedLog(f"{path} is cut short")
    found, version, checksum = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    if found != magic or crc32c(body) != checksum:
        raise DamagedLog(f"{path} fails its checksum")
    if version != VERSION:
        raise UnsupportedVersion(f"{path} has version {version}, this side knows {VERSION}")
    return msgpack.unpackb(body)
