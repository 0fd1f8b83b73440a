"""One look at everything that a broker counts or can tell: the rows behind /metrics.

    counters    read as they are: plain numbers, each changed by one thread alone
    the rest    topics, logs, groups, connections: asked now, from copies that are made in one step

Call it in a thread beside the loop: it takes no lock that traffic waits for, pauses as often as it
is told to, and shows no more than `metrics.max.…` allow; what it leaves out it says.

Promise: log start ≤ durable end ≤ log end in what one scrape shows of a log, and no counter is
lower than in the scrape before.
"""

from __future__ import annotations

import platform
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from ..protocol.api import APIS, FETCH, GROUP_HEARTBEAT
from ..protocol.errors import ERRORS, SeglogError
from . import metrics_table as t
from .lag import append_time_us, first_unread
from .metrics import UNKNOWN_API, Buckets, TopicTraffic
from .partition import Partition

if TYPE_CHECKING:
    from .app import Broker
    from .groups.records import Committed

Value = float | Buckets
Row = tuple[tuple[str, ...], Value]  # label values, value
Rows = dict[t.Metric, list[Row]]

MAX_LAG_SECONDS: Final = 5.0  # of a scrape, for asking logs when records were appended


class _Known(NamedTuple):
    """When the record at a bookmark was appended, from an earlier scrape: that does not change."""

    topic_id: str
    offset: int
    append_time_us: int


_KnownTimes = dict[tuple[str, str, int], _Known]  # by group, topic, partition


class Scraper:
    """Owned by the broker; one scrape at a time, whoever asks."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._busy = threading.Lock()
        self._append_times: _KnownTimes = {}

    def scrape(self, pause: Callable[[], None] = lambda: None) -> Rows:
        """Every metric's rows. `pause` is called often: it may sleep, so that others get on."""
        with self._busy:
            scrape = _Scrape(self._broker, self._append_times, pause)
            rows = scrape.read()
            self._append_times = scrape.append_times  # of the bookmarks that there are now
            return rows


class _Scrape:
    """One of them."""

    def __init__(self, broker: Broker, known: _KnownTimes, pause: Callable[[], None]) -> None:
        self._broker = broker
        self._known = known
        self._pause = pause
        self._rows: Rows = {metric: [] for metric in t.METRICS}
        self._left_out: Counter[str] = Counter()
        self.append_times: _KnownTimes = {}

    def read(self) -> Rows:
        self._read_traffic()
        self._read_requests()
        self._read_connections()
        self._read_writer()
        self._read_topics()
        self._read_groups()
        self._read_background()
        self._read_machine()
        for kind in ("topics", "partitions", "groups", "group_partitions", "unreadable"):
            self._put(t.LEFT_OUT, self._left_out[kind], kind)
        return self._rows

    def _put(self, metric: t.Metric, value: Value, *labels: str) -> None:
        self._rows[metric].append((labels, value))

    # --- counters --------------------------------------------------------------------------------

    def _read_traffic(self) -> None:
        metrics = self._broker.metrics
        traffic = metrics.traffic
        self._put(t.RECORDS_IN, traffic.records_in)
        self._put(t.BATCHES_IN, traffic.batches_in)
        self._put(t.BYTES_IN, traffic.bytes_in)
        self._put(t.DUPLICATES_IN, traffic.duplicate_batches)
        self._put(t.RECORDS_OUT, traffic.records_out)
        self._put(t.BYTES_OUT, traffic.bytes_out)
        self._put(t.NETWORK_IN, metrics.received_bytes)
        self._put(t.NETWORK_OUT, metrics.sent_bytes)

    def _read_requests(self) -> None:
        metrics = self._broker.metrics
        names = {UNKNOWN_API: "unknown", **{key: api.name for key, api in APIS.items()}}
        for key, histogram in metrics.requests.items():
            buckets = histogram.read()
            self._put(t.REQUESTS, buckets.cumulative[-1], names[key])
            self._put(t.REQUEST_SECONDS, buckets, names[key])
        self._put(t.FETCH_WAIT_SECONDS, metrics.fetch_wait.read())
        for (key, code), count in sorted(dict(metrics.errors).items()):
            name = ERRORS[code].wire_name() if code in ERRORS else str(code)
            self._put(t.ERRORS, count, names[key], name)

    def _read_connections(self) -> None:
        metrics, connections = self._broker.metrics, self._broker.listener.connections.copy()
        self._put(t.CONNECTIONS, len(connections))
        self._put(t.ACCEPTED, metrics.connections_accepted)
        for reason, count in sorted(dict(metrics.connections_refused).items()):
            self._put(t.REFUSED, count, reason)
        for reason, count in sorted(dict(metrics.connections_closed).items()):
            self._put(t.CLOSED, count, reason)
        self._put(t.LONG_POLLS, sum(len(each.waiters) for each in connections), FETCH.name)
        self._put(t.LONG_POLLS, self._broker.groups.parked_heartbeats, GROUP_HEARTBEAT.name)
        self._put(t.IN_FLIGHT_REQUESTS, sum(each.in_flight_requests for each in connections))
        self._put(t.IN_FLIGHT_BYTES, sum(each.in_flight_bytes for each in connections))
        self._pause()

    def _read_writer(self) -> None:
        metrics, journal = self._broker.metrics, self._broker.journal
        self._put(t.GROUP_BATCHES, metrics.group_batches.read())
        self._put(t.GROUP_BYTES, metrics.group_bytes.read())
        self._put(t.GROUP_PARTITIONS, metrics.group_partitions.read())
        self._put(t.GROUP_SECONDS, metrics.group_seconds.read())
        for kind, histogram in metrics.syncs.items():
            self._put(t.FSYNC_SECONDS, histogram.read(), kind)
        self._put(t.QUEUED_BYTES, self._broker.writer.queued_bytes)
        self._put(t.JOURNAL_GROUPS, journal.groups_written)
        self._put(t.JOURNAL_BYTES, journal.bytes_written)
        self._put(t.JOURNAL_USED, journal.used_bytes)
        self._put(t.JOURNAL_SIZE, journal.size)
        self._put(t.JOURNAL_BROKEN, int(journal.is_broken))

    def _read_background(self) -> None:
        metrics, transactions = self._broker.metrics, self._broker.transactions.snapshot()
        self._put(t.SEGMENTS_DELETED, metrics.deleted_segments)
        self._put(t.COMPACTIONS, metrics.compactions)
        self._put(t.COMPACTED_RECORDS, metrics.compacted_records)
        self._put(t.HOUSEKEEPING_FAILURES, metrics.housekeeping_failures)
        self._put(t.STAGED, metrics.staged_batches)
        self._put(t.PUBLISHED, metrics.published_steps)
        self._put(t.TRANSACTIONS, len(transactions))
        self._put(t.UNFINISHED, sum(not known.is_done for known in transactions.values()))

    def _read_machine(self) -> None:
        broker = self._broker
        try:
            self._put(t.DISK_FREE, broker.fs.free_bytes(broker.folder.path))
            self._put(t.DISK_SIZE, broker.fs.total_bytes(broker.folder.path))
        except OSError:
            pass  # no answer is better than a wrong one: the series is missing, and alerts see that
        self._put(t.OPEN_SEGMENTS, len(broker.folder.cache))
        self._put(t.THREADS, threading.active_count())
        self._put(t.UPTIME, time.monotonic() - broker.metrics.started)
        self._put(t.BUILD, 1, broker.version, platform.python_version())

    # --- topics and their logs -------------------------------------------------------------------

    def _read_topics(self) -> None:
        broker = self._broker
        topics = broker.topics.snapshot()
        self._put(t.TOPICS, len(topics))
        self._put(t.DAMAGED_TOPICS, len(broker.folder.damaged))
        self._put(t.PARTITIONS, sum(map(len, topics.values())))
        self._put(t.OFFLINE, sum(_is_offline(p) for each in topics.values() for p in each))
        room = broker.config.metrics_max_partitions
        for number, name in enumerate(sorted(topics)):
            if number < broker.config.metrics_max_topics:
                self._read_topic(name, topics[name][0].traffic)
            else:
                self._left_out["topics"] += 1
            shown = topics[name][:room]
            for partition in shown:
                self._read_log(partition)
                self._pause()
            room -= len(shown)
            self._left_out["partitions"] += len(topics[name]) - len(shown)

    def _read_topic(self, name: str, traffic: TopicTraffic) -> None:
        self._put(t.TOPIC_RECORDS_IN, traffic.records_in, name)
        self._put(t.TOPIC_BATCHES_IN, traffic.batches_in, name)
        self._put(t.TOPIC_BYTES_IN, traffic.bytes_in, name)
        self._put(t.TOPIC_RECORDS_OUT, traffic.records_out, name)
        self._put(t.TOPIC_BYTES_OUT, traffic.bytes_out, name)

    def _read_log(self, partition: Partition) -> None:
        labels = (partition.topic, str(partition.number))
        self._put(t.LOG_OFFLINE, int(_is_offline(partition)), *labels)
        log = partition.log_or_none
        if log is None:
            return  # it could not be opened: nothing is known of it
        # In this order, since each may grow meanwhile.
        self._put(t.LOG_START, log.log_start, *labels)
        self._put(t.DURABLE_END, log.durable_end, *labels)
        self._put(t.LOG_END, log.log_end, *labels)
        self._put(t.LOG_BYTES, log.size_bytes, *labels)
        self._put(t.LOG_SEGMENTS, len(log.segments), *labels)

    # --- groups ----------------------------------------------------------------------------------

    def _read_groups(self) -> None:
        config, coordinator = self._broker.config, self._broker.groups.coordinator
        groups = coordinator.groups.copy()
        self._put(t.GROUPS, len(groups))
        shown = sorted(groups)[: config.metrics_max_groups]
        self._left_out["groups"] = len(groups) - len(shown)
        until = time.monotonic() + MAX_LAG_SECONDS
        room = config.metrics_max_group_partitions
        for name in shown:
            self._put(t.GROUP_MEMBERS, len(groups[name].members), name)
            self._put(t.GROUP_EPOCH, groups[name].epoch, name)
            for topic, number, committed in _bookmarks(coordinator.offsets.snapshot(name)):
                if room <= 0 or time.monotonic() > until:
                    self._left_out["group_partitions"] += 1
                    continue
                room -= 1
                self._read_lag(name, topic, number, committed)
                self._pause()

    def _read_lag(self, group: str, topic: str, number: int, committed: Committed) -> None:
        place = (group, topic, number)
        labels = (group, topic, str(number))
        self._put(t.GROUP_OFFSET, committed.offset, *labels)
        try:
            log = self._broker.topics.partition(topic, number).log
            first = first_unread(log, committed.offset)
            records = max(0, log.durable_end - first)
            self._put(t.LAG_RECORDS, records, *labels)
            if not records:
                self._put(t.LAG_SECONDS, 0, *labels)
                return
            was = self._known.get(place)
            if was is not None and was[:2] == (committed.topic_id, first):
                appended_us: int | None = was.append_time_us
            else:
                appended_us = append_time_us(log, first)
        except (SeglogError, OSError):  # deleted meanwhile, offline from the start, or damaged
            self._left_out["unreadable"] += 1
            return
        if appended_us is not None:
            self.append_times[place] = _Known(committed.topic_id, first, appended_us)
            age_us = time.time_ns() // 1000 - appended_us
            self._put(t.LAG_SECONDS, max(0, age_us) / 1_000_000, *labels)


def _bookmarks(
    by_topic: dict[str, dict[int, Committed]],
) -> Iterator[tuple[str, int, Committed]]:
    for topic, bookmarks in sorted(by_topic.items()):
        for number, committed in sorted(bookmarks.items()):
            yield topic, number, committed


def _is_offline(partition: Partition) -> bool:
    log = partition.log_or_none
    return log is None or bool(log.offline_reason)
