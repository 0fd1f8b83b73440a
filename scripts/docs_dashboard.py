"""docs/grafana-dashboard.json, made from this file by scripts/update-docs.

A dashboard by hand is thousands of lines that nobody reviews; here a panel is a title, a unit and
its queries. It imports into Grafana 10 and newer; data source and broker are chosen at its top.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

_COLUMNS: Final = 24  # Grafana's grid
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_RATE: Final = "[$__rate_interval]"


class Query(NamedTuple):
    expression: str
    legend: str


class Panel(NamedTuple):
    title: str
    unit: str  # by Grafana's names
    queries: Sequence[Query]
    description: str = ""
    kind: str = "timeseries"
    width: int = 12
    stacked: bool = False


class Row(NamedTuple):
    title: str
    panels: Sequence[Panel]


def _rate(name: str, by: str = "", extra: str = "") -> str:
    total = f"rate({name}{_of(extra)}{_RATE})"
    return f"sum by ({by}) ({total})" if by else f"sum({total})"


def _quantile(quantile: float, histogram: str, extra: str = "", by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    inner = f"sum by ({labels}) (rate({histogram}_bucket{_of(extra)}{_RATE}))"
    return f"histogram_quantile({quantile}, {inner})"


def _of(extra: str = "") -> str:
    return "{" + ", ".join(filter(None, ['instance=~"$instance"', extra])) + "}"


def _latency(title: str, api: str) -> Panel:
    name, extra = "seglog_request_duration_seconds", f'api="{api}"'
    quantiles = [Query(_quantile(q, name, extra), f"p{q * 100:g}") for q in (0.5, 0.99)]
    return Panel(title, "s", quantiles)


_TOPIC: Final = 'topic=~"$topic"'
_GROUP: Final = 'group=~"$group"'
_LAG: Final = "seglog_consumer_group_lag"

ROWS: Final = (
    Row("At a glance", (
        Panel("Records in", "rowsps", [Query(_rate("seglog_records_in_total"), "")],
              kind="stat", width=4),
        Panel("Bytes in", "Bps", [Query(_rate("seglog_bytes_in_total"), "")],
              kind="stat", width=4),
        Panel("Longest lag", "s", [Query(f"max({_LAG}_seconds{_of()})", "")],
              kind="stat", width=4),
        Panel("Offline partitions", "short", [Query(f"sum(seglog_offline_partitions{_of()})", "")],
              kind="stat", width=4),
        Panel("Disk free", "percentunit",
              [Query(f"min(seglog_disk_free_bytes{_of()} / seglog_disk_size_bytes{_of()})", "")],
              kind="stat", width=4),
        Panel("Up since", "s", [Query(f"min(seglog_uptime_seconds{_of()})", "")],
              kind="stat", width=4),
    )),
    Row("Traffic", (
        Panel("Throughput", "Bps", [
            Query(_rate("seglog_bytes_in_total"), "in"),
            Query(_rate("seglog_bytes_out_total"), "out"),
        ], "Batches as they are stored. Out may be many times in: each reader counts."),
        Panel("Records", "rowsps", [
            Query(_rate("seglog_records_in_total"), "in"),
            Query(_rate("seglog_records_out_total"), "out"),
        ]),
        Panel("Records in by topic", "rowsps",
              [Query(_rate("seglog_topic_records_in_total", "topic", _TOPIC), "{{topic}}")],
              stacked=True),
        Panel("Records out by topic", "rowsps",
              [Query(_rate("seglog_topic_records_out_total", "topic", _TOPIC), "{{topic}}")],
              stacked=True),
    )),
    Row("Requests", (
        _latency("Produce latency", "produce"),
        _latency("Fetch latency, without waiting for data", "fetch"),
        Panel("Requests by API", "reqps",
              [Query(_rate("seglog_requests_total", "api"), "{{api}}")], stacked=True),
        Panel("Errors", "short", [Query(_rate("seglog_errors_total", "api, code"),
                                        "{{api}} {{code}}")],
              "A second, as told to clients. Some belong to normal work: a consumer that asks for "
              "an offset which retention removed, or a member that leaves."),
    )),
    Row("Writer and disk", (
        Panel("Group commit: batches", "short", [
            Query(_quantile(0.5, "seglog_group_commit_batches"), "p50"),
            Query(_quantile(0.99, "seglog_group_commit_batches"), "p99"),
        ], "How many batches share a sync: the busier the broker, the more."),
        Panel("Group commit: bytes", "bytes", [
            Query(_quantile(0.5, "seglog_group_commit_bytes"), "p50"),
            Query(_quantile(0.99, "seglog_group_commit_bytes"), "p99"),
        ]),
        Panel("fsync", "s", [
            Query(_quantile(0.5, "seglog_fsync_duration_seconds", by="file"), "{{file}} p50"),
            Query(_quantile(0.99, "seglog_fsync_duration_seconds", by="file"), "{{file}} p99"),
        ], "What durable produces wait for. A rise here is the disk's."),
        Panel("Waiting for the writer, journal in use", "bytes", [
            Query(f"sum(seglog_writer_queued_bytes{_of()})", "queued"),
            Query(f"sum(seglog_journal_used_bytes{_of()})", "journal"),
        ]),
        Panel("Size by topic", "bytes",
              [Query(f"sum by (topic) (seglog_log_size_bytes{_of(_TOPIC)})", "{{topic}}")],
              stacked=True),
        Panel("Largest partitions", "bytes",
              [Query(f"topk(10, seglog_log_size_bytes{_of(_TOPIC)})", "{{topic}}/{{partition}}")]),
        Panel("Disk free", "bytes", [
            Query(f"min by (instance) (seglog_disk_free_bytes{_of()})", "{{instance}}"),
        ]),
        Panel("Housekeeping", "short", [
            Query(_rate("seglog_segments_deleted_total"), "segments deleted"),
            Query(_rate("seglog_compactions_total"), "compactions"),
            Query(_rate("seglog_housekeeping_failures_total"), "failures"),
        ]),
    )),
    Row("Consumer groups", (
        Panel("Lag in records", "short",
              [Query(f"sum by (group) ({_LAG}_records{_of(_GROUP)})", "{{group}}")]),
        Panel("Lag in seconds", "s",
              [Query(f"max by (group) ({_LAG}_seconds{_of(_GROUP)})", "{{group}}")],
              "How old the oldest unread record is, of the partition that is furthest behind."),
        Panel("Partitions furthest behind", "short",
              [Query(f"topk(10, {_LAG}_records{_of(_GROUP)})",
                     "{{group}} {{topic}}/{{partition}}")]),
        Panel("Members and rebalances", "short", [
            Query(f"sum by (group) (seglog_consumer_group_members{_of(_GROUP)})",
                  "{{group}} members"),
            Query(f"sum by (group) (changes(seglog_consumer_group_epoch{_of(_GROUP)}{_RATE}))",
                  "{{group}} rebalances"),
        ]),
    )),
    Row("Connections and process", (
        Panel("Connections", "short", [
            Query(f"sum(seglog_connections{_of()})", "open"),
            Query(f"sum by (api) (seglog_long_polls{_of()})", "waiting: {{api}}"),
            Query(f"sum(seglog_in_flight_requests{_of()})", "requests in flight"),
        ]),
        Panel("Refused and closed", "cps", [
            Query(_rate("seglog_connections_accepted_total"), "accepted"),
            Query(_rate("seglog_connections_refused_total", "reason"), "refused: {{reason}}"),
            Query(_rate("seglog_connections_closed_total", "reason"), "closed: {{reason}}"),
        ]),
        Panel("CPU", "percentunit", [
            Query(f"sum by (instance) (rate(process_cpu_seconds_total{_of()}{_RATE}))",
                  "{{instance}}"),
        ], "1 is one core."),
        Panel("Memory", "bytes", [
            Query(f"sum by (instance) (process_resident_memory_bytes{_of()})", "{{instance}}"),
        ], "With the pages of segments that are mapped, which the system takes back at need."),
        Panel("Open files and threads", "short", [
            Query(f"sum by (instance) (process_open_fds{_of()})", "{{instance}} files"),
            Query(f"sum by (instance) (process_max_fds{_of()})", "{{instance}} files at most"),
            Query(f"sum by (instance) (seglog_threads{_of()})", "{{instance}} threads"),
        ]),
        Panel("Left out of these metrics", "short",
              [Query(f"sum by (kind) (seglog_metrics_left_out{_of()})", "{{kind}}")],
              "Not 0: raise the setting metrics.max.… to see the rest."),
    )),
)  # fmt: skip


# --- as Grafana wants it ---


def dashboard() -> str:
    content = {
        "uid": "seglog",
        "title": "Seglog",
        "description": "A Seglog broker: traffic, latency, disk, consumer groups.",
        "tags": ["seglog"],
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "schemaVersion": 39,
        "version": 1,
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": _variables()},
        "panels": _panels(),
    }
    return json.dumps(content, indent=2) + "\n"


def _variables() -> list[dict[str, Any]]:
    source = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "refresh": 1,
    }
    asked = {
        "instance": "label_values(seglog_build_info, instance)",
        "topic": 'label_values(seglog_log_end_offset{instance=~"$instance"}, topic)',
        "group": 'label_values(seglog_consumer_group_members{instance=~"$instance"}, group)',
    }
    return [source, *(_variable(name, query) for name, query in asked.items())]


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": "Broker" if name == "instance" else name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "hide": 0,
        "includeAll": True,
        "multi": True,
        "options": [],
        "refresh": 2,
        "regex": "",
        "sort": 1,
    }


def _panels() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    top = 0
    for row in ROWS:
        place = {"h": 1, "w": _COLUMNS, "x": 0, "y": top}
        made.append({
            "id": len(made) + 1, "type": "row", "title": row.title, "collapsed": False,
            "gridPos": place, "panels": [],
        })  # fmt: skip
        top += 1
        left, height = 0, 0
        for panel in row.panels:
            if left + panel.width > _COLUMNS:
                left, top = 0, top + height
            height = 4 if panel.kind == "stat" else 8
            place = {"h": height, "w": panel.width, "x": left, "y": top}
            made.append(_panel(panel, len(made) + 1, place))
            left += panel.width
        top += height
    return made


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    options: dict[str, Any]
    if panel.kind == "stat":
        options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    else:
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        defaults["custom"] = {"fillOpacity": 10, "showPoints": "never", "stacking": stacking}
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + position),
                "datasource": _SOURCE,
                "editorMode": "code",
                "expr": query.expression,
                "legendFormat": query.legend or "__auto",
                "range": True,
            }
            for position, query in enumerate(panel.queries)
        ],
    }


#: Whole files of docs/ that are made here.
FILES: dict[str, Callable[[], str]] = {"grafana-dashboard.json": dashboard}
