"""The options of the sink, streaming and batch; and which of them go together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..client.partitioner import PARTITIONERS
from ..protocol.constants import CODECS, MAX_BATCH_BYTES, MAX_TRANSACTION_NAME_LENGTH
from .options import (
    SERVERS,
    InvalidOption,
    Option,
    Options,
    byte_size,
    duration_ms,
    text,
    whole,
)

_MAX_STEP: Final = (1 << 32) - 1


def _codec(value: str) -> int:
    found = CODECS.get(value.strip().lower())
    if found is None:
        raise ValueError(f"must be one of {', '.join(CODECS)}")
    return found


def _partitioner(value: str) -> str:
    name = value.strip().lower()
    if name not in PARTITIONERS:
        raise ValueError(f"must be one of {', '.join(PARTITIONERS)}")
    return name


def _batch_bytes(value: str) -> int:
    found = byte_size(value)
    if found > MAX_BATCH_BYTES:
        raise ValueError(f"must be at most {MAX_BATCH_BYTES}")
    return found


def _application(value: str) -> str:
    name = text(value)
    if len(name) > MAX_TRANSACTION_NAME_LENGTH - len("app-"):
        raise ValueError("is too long")
    return name


def _version(value: str) -> int:
    found = whole(value)
    if found > _MAX_STEP:
        raise ValueError(f"must be at most {_MAX_STEP}")
    return found


TOPIC: Final = Option(
    "topic",
    None,
    "the topic of every row; without it, the column `topic` says it",
    text,
)
COMPRESSION: Final = Option(
    "compression", "none", "`none`, `zstd` or `lz4`", _codec, ("kafka.compression.type",)
)
PARTITIONER: Final = Option(
    "partitioner",
    "crc32",
    "how a key chooses its partition: `crc32` (as the clients do) or `md5`",
    _partitioner,
)
BATCH_BYTES: Final = Option(
    "batchBytes",
    "1m",
    "rows for one partition are sent when they are this much; a topic takes `max.batch.bytes`",
    _batch_bytes,
)
BUFFER_BYTES: Final = Option(
    "bufferBytes",
    "32m",
    "what a task gathers at most before it sends, of all partitions together",
    byte_size,
)
RETRY_TIMEOUT: Final = Option(
    "retryTimeout",
    "2m",
    "how long a broker that is away is waited for, in a task and in the commit",
    duration_ms,
)
COMMIT_TIMEOUT: Final = Option(
    "commitTimeout",
    "10m",
    "how long a broker that is there may take to publish a batch",
    duration_ms,
)
TXN_APP_ID: Final = Option(
    "txnAppId",
    None,
    "batch writes only: with `txnVersion`, a write is done once under this name and number, however"
    " often it is tried; for `foreachBatch`",
    _application,
)
TXN_VERSION: Final = Option(
    "txnVersion", None, "batch writes only: the number of this write, which must rise", _version
)

WRITE_OPTIONS: Final[tuple[Option[Any], ...]] = (
    SERVERS,
    TOPIC,
    COMPRESSION,
    PARTITIONER,
    BATCH_BYTES,
    BUFFER_BYTES,
    RETRY_TIMEOUT,
    COMMIT_TIMEOUT,
    TXN_APP_ID,
    TXN_VERSION,
)


def write_options(given: Mapping[str, str]) -> Options:
    """Checked, each by itself and together."""
    options = Options(given, WRITE_OPTIONS, "writing")
    _ = options[SERVERS]
    if options.has(TXN_APP_ID) != options.has(TXN_VERSION):
        raise InvalidOption("txnAppId and txnVersion go together: give both, or none")
    return options
