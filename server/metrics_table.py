"""The one table of metrics: the names, labels and meanings that the world sees.

Names follow Prometheus' conventions: base units, `_total` for what only grows. A name, once out,
keeps its meaning: dashboards and alerts hang on it. `server/scrape.py` has the value of each.

No label takes what clients choose freely: topics, partitions and groups are bounded by the broker's
limits, and what is shown of them by `metrics.max.…`.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """One row."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


_TOPIC: Final = ("topic",)
_PARTITION: Final = ("topic", "partition")
_LAG: Final = ("group", "topic", "partition")

# --- what goes in and out ---

RECORDS_IN = Metric(
    "seglog_records_in_total", "counter", "Records appended, of all topics but internal ones."
)
BATCHES_IN = Metric(
    "seglog_batches_in_total", "counter", "Batches appended, of all topics but internal ones."
)
BYTES_IN = Metric(
    "seglog_bytes_in_total",
    "counter",
    "Bytes of batches appended (as stored: compressed), of all topics but internal ones.",
)
DUPLICATES_IN = Metric(
    "seglog_duplicate_batches_in_total",
    "counter",
    "Batches that a producer sent again: answered as the first time, and not appended.",
)
RECORDS_OUT = Metric(
    "seglog_records_out_total",
    "counter",
    "Records in the batches that fetches were answered with, of all topics.",
)
BYTES_OUT = Metric(
    "seglog_bytes_out_total",
    "counter",
    "Bytes of batches that fetches were answered with, of all topics.",
)
TOPIC_RECORDS_IN = Metric(
    "seglog_topic_records_in_total",
    "counter",
    "Records appended to the topic since the broker's start.",
    _TOPIC,
)
TOPIC_BATCHES_IN = Metric(
    "seglog_topic_batches_in_total", "counter", "Batches appended to the topic.", _TOPIC
)
TOPIC_BYTES_IN = Metric(
    "seglog_topic_bytes_in_total", "counter", "Bytes of batches appended to the topic.", _TOPIC
)
TOPIC_RECORDS_OUT = Metric(
    "seglog_topic_records_out_total",
    "counter",
    "Records in the batches of the topic that fetches were answered with.",
    _TOPIC,
)
TOPIC_BYTES_OUT = Metric(
    "seglog_topic_bytes_out_total",
    "counter",
    "Bytes of batches of the topic that fetches were answered with.",
    _TOPIC,
)
NETWORK_IN = Metric(
    "seglog_network_receive_bytes_total", "counter", "Bytes received from clients, frames included."
)
NETWORK_OUT = Metric(
    "seglog_network_transmit_bytes_total",
    "counter",
    "Bytes of answers given to the system to be sent, frames included.",
)

# --- requests ---

REQUESTS = Metric(
    "seglog_requests_total",
    "counter",
    "Requests answered, also with an error. api=unknown: what came was no request we know.",
    ("api",),
)
REQUEST_SECONDS = Metric(
    "seglog_request_duration_seconds",
    "histogram",
    "From the whole request to its answer. A fetch is counted without the time that it waits for "
    "data, a group_heartbeat with the time that it waits for news.",
    ("api",),
)
FETCH_WAIT_SECONDS = Metric(
    "seglog_fetch_wait_seconds", "histogram", "How long fetches waited for data (long polls)."
)
ERRORS = Metric(
    "seglog_errors_total",
    "counter",
    "Errors told to clients, of whole requests and of single topics or partitions in them.",
    ("api", "code"),
)
LONG_POLLS = Metric("seglog_long_polls", "gauge", "Requests that wait for data or news.", ("api",))
IN_FLIGHT_REQUESTS = Metric(
    "seglog_in_flight_requests", "gauge", "Requests that wait for their answer."
)
IN_FLIGHT_BYTES = Metric(
    "seglog_in_flight_bytes", "gauge", "Bytes of the requests that wait for their answer."
)

# --- connections ---

CONNECTIONS = Metric("seglog_connections", "gauge", "Connections that are open.")
ACCEPTED = Metric("seglog_connections_accepted_total", "counter", "Connections accepted.")
REFUSED = Metric(
    "seglog_connections_refused_total",
    "counter",
    "Connections refused, by the setting that was in the way.",
    ("reason",),
)
CLOSED = Metric(
    "seglog_connections_closed_total",
    "counter",
    "Connections that the broker closed: idle, slow_reader, or unreadable for what it sent.",
    ("reason",),
)

# --- the writer ---

GROUP_BATCHES = Metric(
    "seglog_group_commit_batches", "histogram", "Batches that were made durable together."
)
GROUP_BYTES = Metric(
    "seglog_group_commit_bytes", "histogram", "Bytes that were made durable together."
)
GROUP_PARTITIONS = Metric(
    "seglog_group_commit_partitions", "histogram", "Partitions that a group commit touched."
)
GROUP_SECONDS = Metric(
    "seglog_group_commit_duration_seconds", "histogram", "How long a group commit took, all of it."
)
FSYNC_SECONDS = Metric(
    "seglog_fsync_duration_seconds",
    "histogram",
    "How long a sync of a log (also beside the writer) or of the journal took.",
    ("file",),
)
QUEUED_BYTES = Metric(
    "seglog_writer_queued_bytes", "gauge", "Bytes of batches that wait for the writer."
)
JOURNAL_GROUPS = Metric(
    "seglog_journal_groups_total", "counter", "Group commits that went through the journal."
)
JOURNAL_BYTES = Metric("seglog_journal_bytes_total", "counter", "Bytes written to the journal.")
JOURNAL_USED = Metric(
    "seglog_journal_used_bytes", "gauge", "How far the journal file that is written to is full."
)
JOURNAL_SIZE = Metric("seglog_journal_size_bytes", "gauge", "Size of one of the journal files.")
JOURNAL_BROKEN = Metric(
    "seglog_journal_broken",
    "gauge",
    "1: the disk refused the journal, and every log is synced by itself until a restart.",
)

# --- topics and logs ---

TOPICS = Metric("seglog_topics", "gauge", "Topics, internal ones included.")
DAMAGED_TOPICS = Metric(
    "seglog_damaged_topics", "gauge", "Topics that cannot be served: their topic.json is damaged."
)
PARTITIONS = Metric("seglog_partitions", "gauge", "Partitions of all topics.")
OFFLINE = Metric(
    "seglog_offline_partitions",
    "gauge",
    "Partitions that take no writes, or cannot be opened, because of a disk error.",
)
LOG_START = Metric("seglog_log_start_offset", "gauge", "The first offset there is.", _PARTITION)
DURABLE_END = Metric(
    "seglog_log_durable_end_offset", "gauge", "Up to here readers may read.", _PARTITION
)
LOG_END = Metric(
    "seglog_log_end_offset", "gauge", "The offset that the next record gets.", _PARTITION
)
LOG_BYTES = Metric("seglog_log_size_bytes", "gauge", "Bytes of all batches.", _PARTITION)
LOG_SEGMENTS = Metric("seglog_log_segments", "gauge", "Segments of the log.", _PARTITION)
LOG_OFFLINE = Metric("seglog_log_offline", "gauge", "1: the partition is offline.", _PARTITION)

# --- consumer groups ---

GROUPS = Metric("seglog_consumer_groups", "gauge", "Consumer groups.")
GROUP_MEMBERS = Metric(
    "seglog_consumer_group_members", "gauge", "Members of the group.", ("group",)
)
GROUP_EPOCH = Metric(
    "seglog_consumer_group_epoch",
    "gauge",
    "Raised with every new assignment: a rebalance.",
    ("group",),
)
GROUP_OFFSET = Metric(
    "seglog_consumer_group_committed_offset",
    "gauge",
    "The group's bookmark: the next record.",
    _LAG,
)
LAG_RECORDS = Metric(
    "seglog_consumer_group_lag_records",
    "gauge",
    "Records from the bookmark to the durable end.",
    _LAG,
)
LAG_SECONDS = Metric(
    "seglog_consumer_group_lag_seconds",
    "gauge",
    "How long ago the record at the bookmark was appended; 0 where nothing is unread.",
    _LAG,
)

# --- beside traffic ---

SEGMENTS_DELETED = Metric(
    "seglog_segments_deleted_total", "counter", "Segments that retention or delete_records removed."
)
COMPACTIONS = Metric("seglog_compactions_total", "counter", "Passes that changed a compacted log.")
COMPACTED_RECORDS = Metric(
    "seglog_compaction_removed_records_total", "counter", "Records that compaction removed."
)
HOUSEKEEPING_FAILURES = Metric(
    "seglog_housekeeping_failures_total",
    "counter",
    "Partitions whose retention, checkpoint, flush or compaction failed; the log says why.",
)
STAGED = Metric(
    "seglog_transactions_staged_batches_total", "counter", "Batches staged for exactly once."
)
PUBLISHED = Metric("seglog_transactions_committed_total", "counter", "Steps that were published.")
TRANSACTIONS = Metric("seglog_transactions", "gauge", "Transactions that are remembered.")
UNFINISHED = Metric(
    "seglog_transactions_unfinished", "gauge", "Steps that are decided and not yet published."
)

# --- the broker and its machine ---

DISK_FREE = Metric(
    "seglog_disk_free_bytes", "gauge", "What may still be written on the data folder's disk."
)
DISK_SIZE = Metric("seglog_disk_size_bytes", "gauge", "Size of the data folder's disk.")
OPEN_SEGMENTS = Metric(
    "seglog_open_segments", "gauge", "Sealed segments that are open for reading."
)
THREADS = Metric("seglog_threads", "gauge", "Threads of the process.")
UPTIME = Metric("seglog_uptime_seconds", "gauge", "Since the broker was started.")
BUILD = Metric("seglog_build_info", "gauge", "Always 1; the labels tell.", ("version", "python"))
LEFT_OUT = Metric(
    "seglog_metrics_left_out",
    "gauge",
    "What this scrape does not show: topics, partitions, groups, group_partitions beyond "
    "metrics.max.… or the scrape's time; unreadable: no lag in seconds for damage.",
    ("kind",),
)

METRICS: Final[tuple[Metric, ...]] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)
