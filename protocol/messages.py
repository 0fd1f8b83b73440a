"""Every request and response, as a typed array with fixed positions.

A field is only ever added at the end, with a default. `msgspec` decodes straight into these and
refuses what does not fit, naming the field; bins come out as views of the frame, uncopied. Where a
request names several partitions, its response has one result for each, in the same order; an error
of one partition does not touch the others.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from .constants import (
    MAX_ARRAY_LENGTH,
    MAX_CLIENT_NAME_LENGTH,
    MAX_FETCH_WAIT_MS,
    MAX_PARTITIONS_PER_TOPIC,
    MAX_STAGED_BATCHES,
    MAX_TOPIC_NAME_LENGTH,
    MAX_TRANSACTION_NAME_LENGTH,
    UNKNOWN_EPOCH,
)
from .errors import SeglogError, error_from_wire

TopicName = Annotated[str, Meta(min_length=1, max_length=MAX_TOPIC_NAME_LENGTH)]
PartitionNumber = Annotated[int, Meta(ge=0, lt=MAX_PARTITIONS_PER_TOPIC)]
PartitionCount = Annotated[int, Meta(ge=1, le=MAX_PARTITIONS_PER_TOPIC)]
Offset = Annotated[int, Meta(ge=0)]
ByteCount = Annotated[int, Meta(ge=0, le=2**31 - 1)]
ShortText = Annotated[str, Meta(max_length=MAX_CLIENT_NAME_LENGTH)]
Settings = Annotated[dict[ShortText, str | int], Meta(max_length=100)]
ManyPartitions = Meta(min_length=1, max_length=MAX_ARRAY_LENGTH)


class Message(msgspec.Struct, array_like=True, gc=False):
    """The root of all messages."""


class WireError(Message):
    """An error on its way: a code of errors.ERRORS, the message, the numbers that go with it."""

    code: int
    message: str
    details: dict[str, int] = {}

    @classmethod
    def of(cls, error: SeglogError) -> WireError:
        return cls(error.code, error.what, error.details())

    def to_exception(self) -> SeglogError:
        return error_from_wire(self.code, self.message, self.details)


class Empty(Message):
    """A response that says only that it was done."""


# --- connection ----------------------------------------------------------------------------------


class HelloRequest(Message):
    client_name: ShortText
    client_version: ShortText = ""


class ApiVersions(Message):
    key: int
    lowest: int
    highest: int


class HelloResponse(Message):
    broker_version: str
    broker_id: int
    cluster_id: str
    apis: list[ApiVersions]
    limits: dict[str, int]


# --- topics --------------------------------------------------------------------------------------


class MetadataRequest(Message):
    """`topics` nil: all of them (internal ones only where they are named)."""

    topics: Annotated[list[TopicName], Meta(max_length=MAX_ARRAY_LENGTH)] | None = None
    may_create: bool = False


class BrokerAddress(Message):
    broker_id: int
    host: str
    port: int


class TopicMetadata(Message):
    """`leaders[n]` is the broker_id that serves partition n."""

    error: WireError | None
    name: str
    id: str = ""
    leaders: list[int] = []


class MetadataResponse(Message):
    brokers: list[BrokerAddress]
    topics: list[TopicMetadata]


class CreateTopicRequest(Message):
    """`partitions` nil: as many as the broker's `default.partitions`."""

    name: TopicName
    partitions: PartitionCount | None = None
    config: Settings = {}


class CreateTopicResponse(Message):
    id: str
    partitions: int


class DeleteTopicRequest(Message):
    name: TopicName


class AlterTopicRequest(Message):
    """`partitions` nil: as many as before; a topic never loses one."""

    name: TopicName
    partitions: PartitionCount | None = None
    config: Settings = {}


class DescribeTopicRequest(Message):
    name: TopicName


class SegmentDescription(Message):
    file: str
    start_offset: int
    end_offset: int
    size_bytes: int
    is_sealed: bool


class PartitionDescription(Message):
    partition: int
    error: WireError | None
    log_start: int = 0
    durable_end: int = 0
    log_end: int = 0
    epoch: int = 0
    size_bytes: int = 0
    segments: list[SegmentDescription] = []


class DescribeTopicResponse(Message):
    name: str
    id: str
    config: dict[str, str | int]
    partitions: list[PartitionDescription]


# --- records -------------------------------------------------------------------------------------


class ProduceBatch(Message):
    """One encoded batch (docs/storage.md); the broker's 28 bytes in front are zeros."""

    topic: TopicName
    partition: PartitionNumber
    batch: memoryview


class ProduceRequest(Message):
    batches: Annotated[list[ProduceBatch], ManyPartitions]


class ProduceResult(Message):
    error: WireError | None
    base_offset: int = -1
    append_time_us: int = -1


class ProduceResponse(Message):
    results: list[ProduceResult]


class FetchPartition(Message):
    """`epoch`: the log epoch of the last batch that this reader got; -1 where it got none."""

    topic: TopicName
    partition: PartitionNumber
    offset: Offset
    max_bytes: ByteCount
    epoch: int = UNKNOWN_EPOCH


class FetchRequest(Message):
    """Answered with `min_bytes`, after `max_wait_ms`, or at once where a partition fails."""

    max_wait_ms: Annotated[int, Meta(ge=0, le=MAX_FETCH_WAIT_MS)]
    min_bytes: ByteCount
    max_bytes: ByteCount
    partitions: Annotated[list[FetchPartition], ManyPartitions]


class FetchResult(Message):
    """`batches`: whole stored batches back to back. The first may begin before the asked offset."""

    error: WireError | None
    log_start: int
    durable_end: int
    batches: memoryview


class FetchResponse(Message):
    results: list[FetchResult]


class ListOffsetsPartition(Message):
    """`timestamp_us`: -2 asks for the log start, -1 for the durable end, else for the first record
    with that timestamp or a later one."""

    topic: TopicName
    partition: PartitionNumber
    timestamp_us: int


class ListOffsetsRequest(Message):
    partitions: Annotated[list[ListOffsetsPartition], ManyPartitions]


class ListOffsetsResult(Message):
    """`offset` -1: no record is that late. `timestamp_us` is the found record's, else -1."""

    error: WireError | None
    offset: int = -1
    timestamp_us: int = -1


class ListOffsetsResponse(Message):
    results: list[ListOffsetsResult]


class DeleteRecordsPartition(Message):
    """`before_offset` -1: everything that is there now."""

    topic: TopicName
    partition: PartitionNumber
    before_offset: Annotated[int, Meta(ge=-1)]


class DeleteRecordsRequest(Message):
    partitions: Annotated[list[DeleteRecordsPartition], ManyPartitions]


class DeleteRecordsResult(Message):
    error: WireError | None
    log_start: int = -1


class DeleteRecordsResponse(Message):
    results: list[DeleteRecordsResult]


class InitProducerRequest(Message):
    """`producer_id` -1: a new producer. Else the same in its next epoch, older ones fenced."""

    producer_id: Annotated[int, Meta(ge=-1)] = -1
    producer_epoch: Annotated[int, Meta(ge=0, lt=2**32 - 1)] = 0


class InitProducerResponse(Message):
    producer_id: int
    producer_epoch: int


# --- transactions --------------------------------------------------------------------------------

TransactionName = Annotated[str, Meta(min_length=1, max_length=MAX_TRANSACTION_NAME_LENGTH)]
Step = Annotated[int, Meta(ge=0, lt=2**32)]


class StageRequest(Message):
    """Keep batches, durably and out of sight, for a step of a transaction that may be committed."""

    transaction: TransactionName
    step: Step
    batches: Annotated[list[ProduceBatch], ManyPartitions]


class StageResult(Message):
    """`position` names the staged batch in a commit."""

    error: WireError | None
    position: int = -1


class StageResponse(Message):
    results: list[StageResult]


class CommitStagedRequest(Message):
    """Publish a step: these staged batches, in this order. Once decided, the decision stands.

    `is_last`: no step follows, so the transaction is remembered for `staged.retention.ms` only.
    """

    transaction: TransactionName
    step: Step
    positions: Annotated[list[Offset], Meta(max_length=MAX_STAGED_BATCHES)]
    is_last: bool = False


class CommitStagedResponse(Message):
    """`was_done`: the step had been committed before, and this call changed nothing. `last_step` is
    then that step, or a later one."""

    was_done: bool
    last_step: int = -1


class DescribeTransactionRequest(Message):
    transaction: TransactionName


class DescribeTransactionResponse(Message):
    """`last_step`: the last one that was committed; -1 where there is none."""

    last_step: int
