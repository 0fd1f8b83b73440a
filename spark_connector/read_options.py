"""The options of the source, streaming and batch; and which of them go together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from ..client.metadata import TopicPartition
from .options import (
    SERVERS,
    InvalidOption,
    Option,
    Options,
    boolean,
    byte_size,
    duration_ms,
    positive,
    text,
)


def _names(value: str) -> list[str]:
    names = [name.strip() for name in value.split(",") if name.strip()]
    if not names:
        raise ValueError("must name at least one topic")
    return sorted(set(names))


def _object(value: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError as error:
        raise ValueError(f"must be JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError('must be a JSON object, as {"topic": …}')
    return found


def _partition(topic: str, number: Any) -> TopicPartition:
    try:
        partition = int(number)
    except (TypeError, ValueError):
        partition = -1
    if partition < 0:
        raise ValueError(f"{topic}: {number!r} is no partition number")
    return TopicPartition(topic, partition)


def assignment(value: str) -> list[TopicPartition]:
    """`{"topic": [0, 1]}`."""
    found = []
    for topic, numbers in _object(value).items():
        if not isinstance(numbers, list):
            raise ValueError(f'must be as {{"{topic}": [0, 1]}}')
        found += [_partition(topic, number) for number in numbers]
    if not found:
        raise ValueError("must name at least one partition")
    return sorted(set(found))


def numbers_by_partition(value: str) -> dict[TopicPartition, int]:
    """`{"topic": {"0": 17}}`."""
    found = {}
    for topic, partitions in _object(value).items():
        if not isinstance(partitions, dict):
            raise ValueError(f'must be as {{"{topic}": {{"0": 17}}}}')
        for number, each in partitions.items():
            if not isinstance(each, int) or isinstance(each, bool) or each < -2:
                raise ValueError(f"{topic}/{number}: {each!r} is no offset")
            found[_partition(topic, number)] = each
    return found


Place = str | dict[TopicPartition, int]


def starting(value: str) -> Place:
    """A word, or offsets as JSON."""
    word = value.strip().lower()
    return (
        word if word in {"earliest", "latest", "committed"} else _offsets(value, "earliest, latest")
    )


def ending(value: str) -> Place:
    """A word, or offsets as JSON."""
    word = value.strip().lower()
    return word if word in {"latest", "committed"} else _offsets(value, "latest")


def _offsets(value: str, words: str) -> dict[TopicPartition, int]:
    if not value.strip().startswith("{"):
        raise ValueError(f'must be {words}, committed or JSON as {{"topic": {{"0": 17}}}}')
    return numbers_by_partition(value)


def _strategy(value: str) -> str:
    word = value.strip().lower()
    if word not in {"error", "latest"}:
        raise ValueError("must be error or latest")
    return word


SUBSCRIBE: Final = Option("subscribe", None, "topics to read, with commas", _names)
SUBSCRIBE_PATTERN: Final = Option(
    "subscribePattern",
    None,
    "topics to read: a regular expression (Python's) that must match the whole name",
    text,
)
ASSIGN: Final = Option("assign", None, 'partitions to read: `{"orders": [0, 1]}`', assignment)
STARTING_OFFSETS: Final = Option(
    "startingOffsets",
    None,
    "where a new query begins: `earliest`, `latest`, `committed` (the bookmark of `group.id`;"
    ' `earliest` where there is none) or `{"orders": {"0": 17, "1": -2}}` with -2 for the earliest'
    " and -1 for the latest; default `latest`, in a batch `earliest`",
    starting,
)
ENDING_OFFSETS: Final = Option(
    "endingOffsets",
    "latest",
    "where a batch ends, exclusive: `latest`, `committed`, or JSON as above (-1: the latest)",
    ending,
)
STARTING_TIMESTAMP: Final = Option(
    "startingTimestamp",
    None,
    "begin at the first record with this time or a later one; milliseconds since 1970 UTC",
    positive,
)
ENDING_TIMESTAMP: Final = Option(
    "endingTimestamp", None, "a batch ends before the first record with this time", positive
)
STARTING_OFFSETS_BY_TIMESTAMP: Final = Option(
    "startingOffsetsByTimestamp",
    None,
    'the same for each partition: `{"orders": {"0": 1700000000000}}`',
    numbers_by_partition,
)
ENDING_OFFSETS_BY_TIMESTAMP: Final = Option(
    "endingOffsetsByTimestamp", None, "the same for each partition", numbers_by_partition
)
TIMESTAMP_STRATEGY: Final = Option(
    "startingOffsetsByTimestampStrategy",
    "error",
    "where no record is that late: `error`, or begin at the `latest`",
    _strategy,
)
MAX_OFFSETS: Final = Option(
    "maxOffsetsPerTrigger",
    None,
    "the most records of one micro-batch, shared by the partitions by what waits in each",
    positive,
)
MAX_BYTES: Final = Option(
    "maxBytesPerTrigger",
    None,
    "about as many stored bytes in one micro-batch (`64m`); reckoned from the sizes of segments",
    byte_size,
)
MIN_PARTITIONS: Final = Option(
    "minPartitions",
    None,
    "at least about as many tasks: large partitions are split; default one task a partition",
    positive,
)
MAX_RECORDS_PER_PARTITION: Final = Option(
    "maxRecordsPerPartition", None, "the most records of one task: larger ones are split", positive
)
FAIL_ON_DATA_LOSS: Final = Option(
    "failOnDataLoss",
    "true",
    "records that were deleted before they were read: `true` fails and names them, `false` goes on"
    " with what is left and logs them",
    boolean,
)
INCLUDE_HEADERS: Final = Option("includeHeaders", "false", "a column `headers`", boolean)
GROUP_ID: Final = Option(
    "group.id",
    None,
    "a consumer group that this query alone keeps: its bookmark and lag show in the broker",
    text,
    ("kafka.group.id",),
)
SESSION_TIMEOUT: Final = Option(
    "group.session.timeout",
    "15s",
    "after a crash, the group is free this long after its last sign of life",
    duration_ms,
)
RETRY_TIMEOUT: Final = Option(
    "retryTimeout", "2m", "how long a broker that is away is waited for", duration_ms
)
IDLE_WAIT: Final = Option(
    "idleWait", "300ms", "how long the broker is asked to wait for new records", duration_ms
)
FETCH_BYTES: Final = Option(
    "fetchBytes", "4m", "of one fetch; a task holds up to two of them", byte_size
)

READ_OPTIONS: Final[tuple[Option[Any], ...]] = (
    SERVERS,
    SUBSCRIBE,
    SUBSCRIBE_PATTERN,
    ASSIGN,
    STARTING_OFFSETS,
    STARTING_TIMESTAMP,
    STARTING_OFFSETS_BY_TIMESTAMP,
    TIMESTAMP_STRATEGY,
    ENDING_OFFSETS,
    ENDING_TIMESTAMP,
    ENDING_OFFSETS_BY_TIMESTAMP,
    MAX_OFFSETS,
    MAX_BYTES,
    MIN_PARTITIONS,
    MAX_RECORDS_PER_PARTITION,
    FAIL_ON_DATA_LOSS,
    INCLUDE_HEADERS,
    GROUP_ID,
    SESSION_TIMEOUT,
    RETRY_TIMEOUT,
    IDLE_WAIT,
    FETCH_BYTES,
)
_WHATS: Final[tuple[Option[Any], ...]] = (SUBSCRIBE, SUBSCRIBE_PATTERN, ASSIGN)
_ENDINGS: Final[tuple[Option[Any], ...]] = (
    ENDING_OFFSETS,
    ENDING_TIMESTAMP,
    ENDING_OFFSETS_BY_TIMESTAMP,
)
_STARTINGS: Final[tuple[Option[Any], ...]] = (
    STARTING_OFFSETS,
    STARTING_TIMESTAMP,
    STARTING_OFFSETS_BY_TIMESTAMP,
)
_ONLY_STREAMING: Final = (MAX_OFFSETS, MAX_BYTES)


def read_options(given: Mapping[str, str], *, is_streaming: bool) -> Options:
    """Checked, one by one and together."""
    options = Options(given, READ_OPTIONS, "a streaming read" if is_streaming else "a batch read")
    options[SERVERS]  # missing: say so first
    _at_most_one(options, _WHATS)
    if not any(options.has(row) for row in _WHATS):
        raise InvalidOption("say what to read: give subscribe, subscribePattern or assign")
    _at_most_one(options, _STARTINGS)
    _at_most_one(options, _ENDINGS)
    for option in _ENDINGS if is_streaming else ():
        if options.has(option):
            raise InvalidOption(f"option {option.name}: a stream has no end; use it with read")
    places = [options.get(STARTING_OFFSETS), options.get(ENDING_OFFSETS)]
    if "committed" in places and not options.has(GROUP_ID):
        raise InvalidOption("option group.id is missing: whose committed offsets are meant?")
    if not is_streaming and options.get(STARTING_OFFSETS) == "latest":
        raise InvalidOption("option startingOffsets: a batch that begins at the latest is empty")
    for option in () if is_streaming else _ONLY_STREAMING:
        if options.has(option):
            raise InvalidOption(f"option {option.name} is for readStream: a batch has no triggers")
    return options


def _at_most_one(options: Options, rows: tuple[Option[Any], ...]) -> None:
    found = [row.name for row in rows if options.has(row)]
    if len(found) > 1:
        raise InvalidOption(f"options {' and '.join(found)} exclude each other: give one")
