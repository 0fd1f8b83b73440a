"""Why a request is refused, in the error codes of the Maelstrom workbench.

A *definite* error says that nothing was done, nor will be; after an indefinite one the message may
or may not be in the log.
"""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import Final

from ...protocol.errors import (
    BadBatch,
    BadConfig,
    BadTopicName,
    DamagedBatch,
    LimitExceeded,
    OffsetOutOfRange,
    PartitionOffline,
    SeglogError,
    StorageFull,
    UnknownPartition,
    UnknownTopic,
)

logger = logging.getLogger(__name__)


class Code(IntEnum):
    """Those that this node uses; all but CRASH are definite."""

    NOT_SUPPORTED = 10
    TEMPORARILY_UNAVAILABLE = 11
    MALFORMED_REQUEST = 12
    CRASH = 13
    ABORT = 14
    KEY_DOES_NOT_EXIST = 20


class Refusal(Exception):
    """Becomes an error reply."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


#: The first that fits; what is not here is a CRASH.
_CODES: Final[tuple[tuple[type[SeglogError], Code], ...]] = (
    (UnknownTopic, Code.KEY_DOES_NOT_EXIST),
    (UnknownPartition, Code.KEY_DOES_NOT_EXIST),
    (OffsetOutOfRange, Code.KEY_DOES_NOT_EXIST),
    (StorageFull, Code.TEMPORARILY_UNAVAILABLE),
    (PartitionOffline, Code.TEMPORARILY_UNAVAILABLE),
    (LimitExceeded, Code.ABORT),
    (DamagedBatch, Code.CRASH),
    (BadBatch, Code.MALFORMED_REQUEST),
    (BadTopicName, Code.MALFORMED_REQUEST),
    (BadConfig, Code.MALFORMED_REQUEST),
)


def refusal_of(error: Exception) -> Refusal:
    """Any error as a refusal; one that nobody foresaw is logged."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, SeglogError):
        code = next((code for kind, code in _CODES if isinstance(error, kind)), Code.CRASH)
        return Refusal(code, error.what)
    if isinstance(error, OSError):
        return Refusal(Code.CRASH, f"the system refused: {error.strerror or error}")
    logger.error("a request failed", exc_info=error)
    return Refusal(Code.CRASH, "the node met a fault of its own; its log has the details")
