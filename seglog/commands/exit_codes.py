"""What a command's exit code says to a script, and which error has which.

    0    done; also where whoever reads the output has seen enough
    1    it could not be done, or was not wanted when asked
    2    an argument or a setting cannot be
    3    no such topic, partition, group or offset
    4    no broker answers, or the connection to it was lost
    5    it is there already, or in use: a topic, a group with members, a data folder
    6    damage was found
    130  Ctrl-C (128 + SIGINT), 143 SIGTERM, as shells have it

The numbers are part of what scripts rely on: none changes its meaning.
"""

from __future__ import annotations

from typing import Final

from ..protocol.errors import (
    BadConfig,
    BadGroupName,
    BadTopicName,
    BatchTooLarge,
    ConnectionLost,
    DamagedBatch,
    DamagedLog,
    DeliveryTimeout,
    FolderLocked,
    GroupNotEmpty,
    NoBroker,
    OffsetOutOfRange,
    RequestTimeout,
    SeglogError,
    TopicExists,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
)

EXIT_OK: Final = 0
EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_FOUND: Final = 3
EXIT_NO_BROKER: Final = 4
EXIT_CONFLICT: Final = 5
EXIT_DAMAGE: Final = 6
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143

_CODES: Final[dict[type[SeglogError], int]] = {
    BadConfig: EXIT_USAGE,
    BadTopicName: EXIT_USAGE,
    BadGroupName: EXIT_USAGE,
    UnknownTopic: EXIT_NOT_FOUND,
    UnknownPartition: EXIT_NOT_FOUND,
    UnknownGroup: EXIT_NOT_FOUND,
    OffsetOutOfRange: EXIT_NOT_FOUND,
    NoBroker: EXIT_NO_BROKER,
    ConnectionLost: EXIT_NO_BROKER,
    RequestTimeout: EXIT_NO_BROKER,
    DeliveryTimeout: EXIT_NO_BROKER,
    TopicExists: EXIT_CONFLICT,
    GroupNotEmpty: EXIT_CONFLICT,
    FolderLocked: EXIT_CONFLICT,
    DamagedBatch: EXIT_DAMAGE,
    DamagedLog: EXIT_DAMAGE,
}

#: What to do next, in the words of the command line; an error's own advice is for a program.
_ADVICE: Final[dict[type[SeglogError], str]] = {
    UnknownTopic: "Check the spelling (seglog topics list), or create it (seglog topics create)",
    UnknownPartition: "Partitions count from 0: seglog topics describe shows them",
    UnknownGroup: "Check the spelling: seglog groups list shows what is there",
    TopicExists: "Choose another name, or delete the old topic first (seglog topics delete)",
    OffsetOutOfRange: "seglog topics describe shows what is there",
    BatchTooLarge: "Send less together (--batch-bytes); a record that is too large by itself needs "
    "a higher limit (seglog topics alter TOPIC --config max.batch.bytes=N)",
    ConnectionLost: "Check that the broker runs, and whether it was done, before you try again",
    RequestTimeout: "Look at the broker's load, and whether it was done, before you try again",
}


def exit_code(error: SeglogError) -> int:
    kinds = (code for kind, code in _CODES.items() if isinstance(error, kind))
    return next(kinds, EXIT_FAILURE)


def advised(error: SeglogError) -> str:
    """The error in one line: what happened, and what to do next."""
    advice = next((text for kind, text in _ADVICE.items() if isinstance(error, kind)), None)
    return f"{error.what}. {advice}" if advice else str(error)
