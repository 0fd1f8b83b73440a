"""The typed bodies of topics, and how the client's answers become them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from ..protocol.constants import MAX_CLIENT_NAME_LENGTH, MAX_OFFSET, MAX_PARTITIONS_PER_TOPIC
from ..protocol.messages import DescribeTopicResponse, PartitionDescription
from .models import Closed, Name
from .problems import Problem, problem

PartitionCount = Annotated[int, Field(ge=1, le=MAX_PARTITIONS_PER_TOPIC)]
SettingName = Annotated[str, Field(max_length=MAX_CLIENT_NAME_LENGTH)]
SettingNumber = Annotated[int, Field(ge=-MAX_OFFSET, le=MAX_OFFSET)]
Config = Annotated[
    dict[SettingName, str | SettingNumber],
    Field(max_length=100, description="settings of the topic: docs/operations.md has them all"),
]


class TopicIn(Closed):
    """A topic to create."""

    name: Name
    partitions: PartitionCount | None = Field(None, description="without it, the broker's default")
    config: Config = Field(default_factory=dict)


class TopicChange(Closed):
    """What to change of a topic; the rest stays."""

    partitions: PartitionCount | None = Field(None, description="in all; never fewer than before")
    config: Config = Field(default_factory=dict)


class TopicListed(BaseModel):
    name: str
    partitions: int


class TopicsOut(BaseModel):
    topics: list[TopicListed]


class PartitionOut(BaseModel):
    """`error`: it cannot be looked at; then the numbers say nothing."""

    partition: int
    log_start: int
    durable_end: int
    log_end: int
    size_bytes: int
    segments: int
    error: Problem | None = None


class TopicOut(BaseModel):
    name: str
    id: str
    config: dict[str, str | int]
    partitions: list[PartitionOut]


class FoundAt(BaseModel):
    partition: int
    offset: int


class OffsetsOut(BaseModel):
    topic: str
    offsets: list[FoundAt]


class LogStartOut(BaseModel):
    topic: str
    partition: int
    log_start: int


def topic_out(found: DescribeTopicResponse) -> dict[str, object]:
    return {
        "name": found.name,
        "id": found.id,
        "config": found.config,
        "partitions": [_partition_out(each) for each in found.partitions],
    }


def _partition_out(found: PartitionDescription) -> dict[str, object]:
    error = None if found.error is None else problem(found.error.to_exception())
    return {
        "partition": found.partition,
        "log_start": found.log_start,
        "durable_end": found.durable_end,
        "log_end": found.log_end,
        "size_bytes": found.size_bytes,
        "segments": len(found.segments),
        "error": error,
    }
