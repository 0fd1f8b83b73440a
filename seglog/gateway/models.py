"""The typed bodies of records: what a produce request has, and what reading gives.

Requests are strict (a text is not taken for a number) and closed (an unknown field is a mistake):
what is wrong is told before anything is sent.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple, Self

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from ..protocol.columns import Headers
from ..protocol.constants import (
    MAX_GROUP_NAME_LENGTH,
    MAX_OFFSET,
    MAX_PARTITIONS_PER_TOPIC,
    MAX_TOPIC_NAME_LENGTH,
)
from ..protocol.times import EPOCH, from_datetime, parse_time
from .problems import Problem
from .records import Encoding, from_base64, from_document

_NAME: Final = r"^[A-Za-z0-9_][A-Za-z0-9._-]*$"
MAX_TIMESTAMP_US: Final = 253_402_300_799_999_999  # the end of the year 9999
MAX_HEADERS: Final = 100
MAX_HEADER_NAME_LENGTH: Final = 1_000

Name = Annotated[str, Field(min_length=1, max_length=MAX_TOPIC_NAME_LENGTH, pattern=_NAME)]
PartitionNumber = Annotated[int, Field(ge=0, lt=MAX_PARTITIONS_PER_TOPIC)]
Offset = Annotated[int, Field(ge=0, le=MAX_OFFSET)]

TopicPath = Annotated[
    str, Path(min_length=1, max_length=MAX_TOPIC_NAME_LENGTH, pattern=_NAME, examples=["orders"])
]
GroupPath = Annotated[
    str, Path(min_length=1, max_length=MAX_GROUP_NAME_LENGTH, pattern=_NAME, examples=["billing"])
]
PartitionPath = Annotated[int, Path(ge=0, lt=MAX_PARTITIONS_PER_TOPIC, examples=[0])]

PLACES: Final = "`earliest`, `latest`, an offset, `-N` (the last N), or a time (ISO 8601)"
PLACE_PATTERN: Final = r"^(earliest|latest|-?[0-9]{1,18}|[0-9]{4}-[0-9]{2}-[0-9]{2}(T.{1,40})?)$"
FromQuery = Annotated[
    str, Query(alias="from", pattern=PLACE_PATTERN, description=f"Where to begin: {PLACES}.")
]
EncodingQuery = Annotated[
    Encoding,
    Query(
        description="`auto`: text where bytes are UTF-8, else base64. `base64`: always."
        " `json`: as auto, but values that are JSON documents come as such."
    ),
]
OnePartition = Annotated[
    int | None,
    Query(ge=0, lt=MAX_PARTITIONS_PER_TOPIC, description="One partition; without it, all."),
]


class Closed(BaseModel):
    """A request, or a part of one."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Outgoing(NamedTuple):
    """A record on its way, as the Producer takes it."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    headers: Headers | None = None
    timestamp_us: int | None = None


class HeaderIn(Closed):
    """A header of a record. Without a value it has none (null)."""

    name: str = Field(max_length=MAX_HEADER_NAME_LENGTH)
    value: str | None = Field(None, description="text")
    value_base64: str | None = None

    _cell: bytes | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _decode(self) -> Self:
        self._cell = _one_of("value", self.value, self.value_base64)
        return self

    @property
    def pair(self) -> tuple[str, bytes | None]:
        return self.name, self._cell


class RecordIn(Closed):
    """A record to append. Its value is one of `value`, `value_json` and `value_base64`; without
    any it is null, which with a key is a tombstone."""

    value: str | None = Field(None, description="text, stored as UTF-8")
    value_json: Any = Field(None, description="any JSON, stored as compact JSON")
    value_base64: str | None = Field(None, description="any bytes")
    key: str | None = Field(None, description="text; records of one key go to one partition")
    key_base64: str | None = None
    headers: list[HeaderIn] = Field([], max_length=MAX_HEADERS)
    partition: PartitionNumber | None = Field(None, description="without it, chosen by the key")
    timestamp: str | None = Field(
        None, max_length=64, description="ISO 8601 from 1970 on, UTC without a zone"
    )
    timestamp_us: int | None = Field(
        None, ge=0, le=MAX_TIMESTAMP_US, description="microseconds since 1970, UTC"
    )

    _outgoing: Outgoing = PrivateAttr(Outgoing(None))

    @model_validator(mode="after")
    def _decode(self) -> Self:
        """While the request is checked, so that all that is wrong is told before one is sent."""
        if "value_json" in self.model_fields_set:
            if {"value", "value_base64"} & self.model_fields_set:
                raise ValueError("give one of value, value_json and value_base64")
            value: bytes | None = from_document(self.value_json)
        else:
            value = _one_of("value", self.value, self.value_base64)
        self._outgoing = Outgoing(
            value,
            _one_of("key", self.key, self.key_base64),
            self.partition,
            tuple(header.pair for header in self.headers) or None,
            to_time_us(self.timestamp, self.timestamp_us),
        )
        return self

    @property
    def outgoing(self) -> Outgoing:
        return self._outgoing


class ProduceIn(Closed):
    """Records to append, in this order within each partition."""

    records: list[RecordIn] = Field(min_length=1)


def to_time_us(timestamp: str | None, timestamp_us: int | None) -> int | None:
    """ValueError where both are given, or the text is no time."""
    if timestamp is None:
        return timestamp_us
    if timestamp_us is not None:
        raise ValueError("give one of timestamp and timestamp_us")
    moment = parse_time(timestamp)
    if moment is None:
        raise ValueError("timestamp is not a time such as 2026-01-31T12:00:00Z")
    if moment < EPOCH:
        raise ValueError("timestamp is before 1970")
    return from_datetime(moment)


def _one_of(name: str, text: str | None, encoded: str | None) -> bytes | None:
    if text is not None and encoded is not None:
        raise ValueError(f"give one of {name} and {name}_base64")
    if encoded is not None:
        return from_base64(encoded)
    return None if text is None else text.encode()


# --- answers -------------------------------------------------------------------------------------


class Placed(BaseModel):
    """Where a record is: durable by the time this is answered."""

    topic: str
    partition: int
    offset: int | None = Field(description="null: in the log, but the broker no longer knows where")
    timestamp: str | None
    timestamp_us: int


class NotPlaced(BaseModel):
    """A record that was not appended, and why."""

    error: Problem


class ProduceOut(BaseModel):
    """One entry for each record, in the order of the request."""

    records: list[Placed | NotPlaced]


class HeaderOut(BaseModel):
    name: str
    value: str | None = None
    value_base64: str | None = None


class RecordOut(BaseModel):
    """A record. A cell stands in one field: as text, as base64, or (the value) as a document."""

    partition: int
    offset: int
    timestamp: str | None = Field(description="UTC; null beyond the years 1 to 9999")
    timestamp_us: int
    key: str | None = None
    key_base64: str | None = None
    value: str | None = None
    value_base64: str | None = None
    value_json: Any = None
    headers: list[HeaderOut]


class ReadOut(BaseModel):
    """Records of one partition, and where to go on."""

    topic: str
    partition: int
    records: list[RecordOut]
    next_offset: int = Field(description="read on from here")
    log_start: int
    durable_end: int = Field(description="when the read began")
