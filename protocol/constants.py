"""Every number that both sides of the wire, and the disk, agree on.

A limit here is the format's own, or the default of a setting of the same name.
"""

from __future__ import annotations

import re
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# --- the batch (docs/storage.md) -----------------------------------------------------------------
BATCH_FORMAT: Final = 1
HEADER_BYTES: Final = 80
PREFIX_BYTES: Final = 28  # the part of the header that the broker writes at append

CODEC_NONE: Final = 0
CODEC_ZSTD: Final = 1
CODEC_LZ4: Final = 2
CODECS: Final = {"none": CODEC_NONE, "zstd": CODEC_ZSTD, "lz4": CODEC_LZ4}

FLAG_COMPACTED: Final = 0x0001  # the offsets column is present; offset_span may pass record_count
KNOWN_FLAGS: Final = FLAG_COMPACTED

NO_PRODUCER_ID: Final = -1
SEQUENCE_MODULUS: Final = 1 << 32  # base_sequence is a u32 and wraps

MAX_BATCH_BYTES: Final = 16 * MIB  # as stored, header included
MAX_UNCOMPRESSED_BYTES: Final = 64 * MIB  # of the columns: what a reader is willing to unpack
MAX_BATCH_RECORDS: Final = 1_000_000
MAX_RELATIVE_OFFSET: Final = (1 << 32) - 1  # an index entry keeps 32 bits of offset
MAX_OFFSET: Final = (1 << 63) - 1  # Arrow's and Spark's offsets are signed

# --- names ---------------------------------------------------------------------------------------
MAX_TOPIC_NAME_LENGTH: Final = 200  # with "topic-" in front it must fit a file name of 255 bytes
TOPIC_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
INTERNAL_TOPIC_PREFIX: Final = "__"
MAX_GROUP_NAME_LENGTH: Final = 200
GROUP_NAME_PATTERN: Final = TOPIC_NAME_PATTERN
MAX_MEMBER_ID_LENGTH: Final = 100  # of member ids and instance ids
MAX_PARTITIONS_PER_TOPIC: Final = 10_000

# --- the wire (docs/protocol.md) -----------------------------------------------------------------
DEFAULT_PORT: Final = 7400
PROTOCOL_VERSION: Final = 1
FRAME_PREFIX_BYTES: Final = 4  # u32, big-endian: how many bytes follow
MAX_FRAME_BYTES: Final = 32 * MIB
MAX_FETCH_BYTES: Final = 16 * MIB  # a response also carries what is around the batches
MAX_FETCH_WAIT_MS: Final = 60_000
MAX_ARRAY_LENGTH: Final = 10_000  # of any array in a request
MAX_CLIENT_NAME_LENGTH: Final = 200

EARLIEST: Final = -2  # in place of a timestamp: the log start
LATEST: Final = -1  # the durable end
UNKNOWN_EPOCH: Final = -1  # a reader that has not read yet

MAX_TRANSACTION_NAME_LENGTH: Final = 200
MAX_STAGED_BATCHES: Final = 100_000  # of one step of a transaction

# --- consumer groups -----------------------------------------------------------------------------
ASSIGNOR_STICKY: Final = "sticky"
ASSIGNOR_RANGE: Final = "range"
ASSIGNOR_ROUNDROBIN: Final = "roundrobin"
ASSIGNOR_EXCLUSIVE: Final = "exclusive"  # everything to one member, and no second one let in
JOIN_EPOCH: Final = 0  # the member epoch of who is not a member yet
NO_MEMBER: Final = ""  # the member id of a commit without membership
NO_OFFSET: Final = -1  # nothing was committed
MAX_ASSIGNORS: Final = 10  # that one member may offer
MAX_COMMIT_METADATA_LENGTH: Final = 4096
MAX_HEARTBEAT_WAIT_MS: Final = 10 * 60 * 1000
