"""The dashboard and the alert rules name only what a real exposition has."""

import asyncio
import json
import re
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seglog.protocol import api
from seglog.protocol.errors import ERRORS, SeglogError
from seglog.protocol.group_messages import CommitOffsetsRequest, OffsetCommit
from seglog.server.metrics_table import METRICS

from tests.brokers import RawClient, running_broker
from tests.metrics import Scrape
from tests.promql import Selector, is_balanced, uses

yaml: Any = pytest.importorskip("yaml")

DOCS = Path(__file__).resolve().parents[2] / "docs"
DASHBOARD = json.loads((DOCS / "grafana-dashboard.json").read_text(encoding="utf-8"))
METRICS_PAGE = (DOCS / "metrics.md").read_text(encoding="utf-8")
YAML = re.findall(r"```yaml\n(.*?)```", METRICS_PAGE, re.DOTALL)
SCRAPE_CONFIG, ALERTS = map(yaml.safe_load, YAML)
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

#: What Prometheus itself puts on every series, and the one metric that is its own.
SCRAPE_LABELS = {"instance", "job"}
OWN_METRICS = {"up"}


async def busy_broker(data: Path) -> Scrape:
    """A scrape in which every metric has a series: also those that only errors make."""
    async with (
        running_broker(data, max_connections=2) as broker,
        await RawClient.open(broker.port) as client,
    ):
        await client.create("t", 1)
        await client.produce("t", 0, b"x")
        await client.fetch("t", 0, 0)
        with pytest.raises(SeglogError):
            await client.fetch("t", 0, 99)
        commit = CommitOffsetsRequest("g", "", 0, [OffsetCommit("t", 0, 0)])
        await client.call(api.COMMIT_OFFSETS, commit)
        async with await RawClient.open(broker.port) as second:
            refused = await RawClient.open(broker.port, hello=False)
            await refused.closed()
            refused.close()
            second.write(struct.pack(">I", 0xFFFF_FFFF))
            await second.closed()
        return await Scrape.of(broker)


@pytest.fixture(scope="module")
def scrape() -> Scrape:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(busy_broker(Path(folder)))


def labels_of(scrape: Scrape, name: str) -> set[str]:
    return {label for sample, given in scrape.samples if sample == name for label, _ in given}


def known_values(scrape: Scrape, label: str) -> set[str]:
    if label == "code":
        return {error.wire_name() for error in ERRORS.values()}
    if label == "job":
        return {config["job_name"] for config in SCRAPE_CONFIG["scrape_configs"]}
    return scrape.label_values(label)


def wrong_in_selector(scrape: Scrape, selector: Selector) -> Iterator[str]:
    name = selector.name
    if name not in OWN_METRICS and name not in scrape.names():
        yield f"there is no metric {name}"
        return
    for label, _, text in selector.matchers:
        if label not in labels_of(scrape, name) | SCRAPE_LABELS:
            yield f"{name} has no label {label}"
        elif not text.startswith("$"):
            for pattern in text.split("|"):
                if not any(re.fullmatch(pattern, each) for each in known_values(scrape, label)):
                    yield f"{label} is never {pattern}"


def wrong(scrape: Scrape, expression: str, shown_labels: set[str]) -> list[str]:
    """What an expression, or the text beside its result, names that is not there."""
    if not is_balanced(expression):
        return ["brackets"]
    found = uses(expression)
    faults = [fault for each in found.selectors for fault in wrong_in_selector(scrape, each)]
    names = [each.name for each in found.selectors if each.name not in OWN_METRICS]
    if not found.selectors:
        faults.append("no metric at all")
    for name in names:
        missing = found.grouping - labels_of(scrape, name) - SCRAPE_LABELS
        faults += [f"{name} cannot be grouped by {label}" for label in sorted(missing)]
        left = found.grouping or labels_of(scrape, name) | SCRAPE_LABELS
        faults += [f"the result has no label {label}" for label in sorted(shown_labels - left)]
    return faults


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("rate(seglog_records_typo_total[5m])", "there is no metric seglog_records_typo_total"),
        ('seglog_log_size_bytes{tpic="x"}', "seglog_log_size_bytes has no label tpic"),
        ('seglog_errors_total{code="NO_SUCH"}', "code is never NO_SUCH"),
        ('seglog_requests_total{api=~"produce|fetsh"}', "api is never fetsh"),
        ("sum by (topik) (seglog_log_segments)", "seglog_log_segments cannot be grouped by topik"),
        ("sum(seglog_topics", "brackets"),
        ("1 + 1", "no metric at all"),
    ],
)
def test_a_wrong_expression_is_found(scrape, expression, fault):
    assert wrong(scrape, expression, set()) == [fault]


@pytest.mark.parametrize(
    "expression",
    [
        'sum by (le, api) (rate(seglog_request_duration_seconds_bucket{api="fetch"}[5m]))',
        'max(seglog_log_size_bytes{topic=~"$topic"}) and on (instance) seglog_topics > 3',
        "histogram_quantile(0.5, sum by (le) (rate(seglog_group_commit_bytes_bucket[1m])))",
    ],
)
def test_a_right_expression_is_left_alone(scrape, expression):
    if "and on" in expression:
        assert uses(expression).grouping == {"instance"}
    assert wrong(scrape, expression, set()) == []


def test_every_metric_of_the_table_has_a_series_in_that_scrape(scrape: Scrape):
    names = scrape.names()
    for metric in METRICS:
        sample = metric.name + ("_bucket" if metric.kind == "histogram" else "")
        assert sample in names, sample
        assert labels_of(scrape, sample) - {"le"} == set(metric.labels)


# --- the dashboard -------------------------------------------------------------------------------


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: str(panel["id"]))
def test_every_panel_names_metrics_and_labels_that_there_are(scrape: Scrape, panel):
    for target in panel["targets"]:
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert wrong(scrape, target["expr"], shown) == [], target["expr"]


def test_every_choice_of_the_dashboard_names_a_metric_and_a_label_that_there_are(scrape: Scrape):
    asked = [v for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    assert asked
    for variable in asked:
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
        assert found
        assert wrong(scrape, found[1], {found[2]}) == []


def test_the_dashboard_has_the_form_that_grafana_imports():
    assert DASHBOARD["schemaVersion"] >= 36  # data sources by type and uid
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(numbers) == len(set(numbers))
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies on another panel"
        assert place["x"] + place["w"] <= 24
        taken |= cells
    for panel in PANELS:
        assert panel["type"] in {"stat", "timeseries"}
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert references == sorted(set(references))
        assert panel["targets"]
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= variables


def test_the_dashboard_shows_what_an_operator_asks_first():
    titles = " ".join(panel["title"].lower() for panel in PANELS)
    for word in ("throughput", "produce latency", "fetch latency", "group commit", "fsync",
                 "lag in records", "lag in seconds", "size by topic", "connections", "errors",
                 "memory", "cpu", "disk free"):  # fmt: skip
        assert word in titles, word


# --- the alert rules -----------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_every_alert_names_metrics_and_labels_that_there_are(scrape: Scrape, rule):
    summary = rule["annotations"]["summary"]
    shown = set(re.findall(r"\$labels\.(\w+)", summary))
    assert wrong(scrape, rule["expr"], shown) == [], rule["expr"]


def test_there_is_an_alert_for_each_thing_that_goes_wrong():
    together = " ".join(rule["expr"] for rule in RULES)
    for name in ("seglog_offline_partitions", "seglog_consumer_group_lag_seconds",
                 "seglog_fsync_duration_seconds", "seglog_disk_free_bytes",
                 "seglog_errors_total"):  # fmt: skip
        assert name in together


def test_the_page_counts_the_series_of_each_limit_right():
    """The table of limits in docs/metrics.md, against the table of metrics."""
    by_labels = {
        "metrics.max.topics": ("topic",),
        "metrics.max.partitions": ("topic", "partition"),
        "metrics.max.groups": ("group",),
        "metrics.max.group.partitions": ("group", "topic", "partition"),
    }
    rows = dict(re.findall(r"(?m)^\| `(metrics\.max\.[\w.]+)` \|.*\| (\d+) \|$", METRICS_PAGE))
    assert rows == {
        setting: str(sum(metric.labels == labels for metric in METRICS))
        for setting, labels in by_labels.items()
    }
