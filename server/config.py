"""The broker's settings: one table, with defaults, ranges and a line of explanation each.

Outside they are written with dots, as topic settings are: `max.connections`. A topic's own settings
(server/storage/config.py) have their defaults here too, under `topic.`: `topic.retention.ms`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ..protocol.constants import (
    DEFAULT_PORT,
    KIB,
    MAX_ARRAY_LENGTH,
    MAX_COMMIT_METADATA_LENGTH,
    MAX_FETCH_BYTES,
    MAX_FRAME_BYTES,
    MAX_PARTITIONS_PER_TOPIC,
    MIB,
)
from .storage.config import LogConfig

DAY_MS = 24 * 60 * 60 * 1000

Count = Annotated[int, Meta(ge=1)]
Milliseconds = Annotated[int, Meta(ge=1, le=DAY_MS)]


class BrokerConfig(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename=lambda name: name.replace("_", "."),
):
    """Everything that can be set when a broker starts."""

    #: The folder that holds everything the broker keeps.
    data: Annotated[str, Meta(min_length=1)] = "seglog-data"
    #: The address to listen on.
    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    #: The port to listen on; 0 takes a free one and prints it.
    port: Annotated[int, Meta(ge=0, le=65_535)] = DEFAULT_PORT
    #: The host that clients are told to connect to; empty: the address they came to.
    advertised_host: str = ""

    # --- limits of a request and a connection ---
    #: The largest request.
    max_frame_bytes: Annotated[int, Meta(ge=KIB, le=1024 * MIB)] = MAX_FRAME_BYTES
    #: The most entries in any array of a request.
    max_array_length: Annotated[int, Meta(ge=1, le=MAX_ARRAY_LENGTH)] = MAX_ARRAY_LENGTH
    #: The most bytes of batches in one fetch response.
    max_fetch_bytes: Annotated[int, Meta(ge=KIB, le=1024 * MIB)] = MAX_FETCH_BYTES
    #: Connections in all.
    max_connections: Count = 10_000
    #: Connections from one address.
    max_connections_per_address: Count = 10_000
    #: Requests of one connection that wait for an answer; more are read when one is answered.
    max_in_flight_requests: Count = 256
    #: Bytes of requests of one connection that wait for an answer.
    max_in_flight_bytes: Annotated[int, Meta(ge=KIB)] = 64 * MIB
    #: Bytes of batches, of all connections, that wait for the writer; beyond, nobody is read.
    max_queued_bytes: Annotated[int, Meta(ge=KIB)] = 64 * MIB
    #: A connection that sends nothing, and waits for nothing, is closed after this time.
    idle_timeout_ms: Milliseconds = 10 * 60 * 1000
    #: A connection that does not take its answers is closed after this time.
    slow_reader_timeout_ms: Milliseconds = 30_000

    # --- topics ---
    #: Topics in all.
    max_topics: Count = 10_000
    #: Partitions of all topics together.
    max_partitions: Count = 20_000
    #: Partitions of a topic that is created without a number.
    default_partitions: Annotated[int, Meta(ge=1, le=MAX_PARTITIONS_PER_TOPIC)] = 1
    #: Whether a topic that a producer asks for is created when it is missing.
    auto_create_topics: bool = False

    # --- consumer groups ---
    #: Groups in all.
    max_groups: Count = 1_000
    #: Members of one group.
    max_members_per_group: Count = 1_000
    #: Committed offsets of all groups together.
    max_committed_offsets: Count = 1_000_000
    #: Topics that one member of a group may subscribe to.
    group_max_subscribed_topics: Annotated[int, Meta(ge=1, le=MAX_ARRAY_LENGTH)] = 1_000
    #: Characters of text that may go with a committed offset.
    group_max_metadata_length: Annotated[int, Meta(ge=0, le=MAX_COMMIT_METADATA_LENGTH)] = (
        MAX_COMMIT_METADATA_LENGTH
    )
    #: The shortest session timeout that a member may ask for.
    group_min_session_timeout_ms: Milliseconds = 1_000
    #: The longest session timeout that a member may ask for.
    group_max_session_timeout_ms: Milliseconds = 30 * 60 * 1000
    #: Committed offsets go this long after the group's last member, and the last commit.
    group_offsets_retention_ms: Annotated[int, Meta(ge=1)] = 7 * DAY_MS

    # --- transactions ---
    #: Transactions that are remembered.
    max_transactions: Count = 100_000
    #: A transaction that did nothing for this long is forgotten: a query that is stopped for longer
    #: may publish its last batch again.
    transaction_retention_ms: Annotated[int, Meta(ge=1)] = 90 * DAY_MS
    #: What is staged for a step goes this long after the last of it, if nobody commits it.
    staged_retention_ms: Annotated[int, Meta(ge=1)] = DAY_MS
    #: Batches that wait staged, of all transactions together.
    max_staged_batches: Count = 500_000

    # --- storage ---
    #: Size of each of the two journal files, through which groups that touch many partitions go.
    journal_bytes: Annotated[int, Meta(ge=64 * KIB, le=1024 * MIB)] = 16 * MIB
    #: Sealed segments that are kept open for reading.
    open_segments: Annotated[int, Meta(ge=1)] = 128
    #: Threads that bring cold data into memory.
    reader_threads: Annotated[int, Meta(ge=1, le=64)] = 4
    #: How often retention, rolling by age, and expiry are looked at.
    housekeeping_interval_ms: Milliseconds = 10_000
    #: How often a log's recovery point is saved, so that a start after a crash scans little.
    checkpoint_interval_ms: Milliseconds = 60_000
    #: How often compacted topics are looked at.
    compaction_interval_ms: Milliseconds = 15_000
    #: How long a stop may take before connections that still wait are closed.
    shutdown_timeout_ms: Milliseconds = 10_000

    # --- metrics ---
    #: Topics that metrics show one by one; sums count all of them.
    metrics_max_topics: Annotated[int, Meta(ge=0)] = 1_000
    #: Partitions that metrics show one by one.
    metrics_max_partitions: Annotated[int, Meta(ge=0)] = 2_000
    #: Groups that metrics show one by one.
    metrics_max_groups: Annotated[int, Meta(ge=0)] = 200
    #: Bookmarks (one for each group and partition) that metrics show, with their lag.
    metrics_max_group_partitions: Annotated[int, Meta(ge=0)] = 10_000

    #: Defaults of topics' own settings.
    topic: LogConfig = LogConfig()

    def __post_init__(self) -> None:
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise ValueError(
                "group.min.session.timeout.ms is longer than group.max.session.timeout.ms"
            )
