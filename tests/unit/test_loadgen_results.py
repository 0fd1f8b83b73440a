"""Results: read back as they were saved, told as a page that needs nothing else, compared with a
sense for noise.
"""

import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from scripts.loadgen import app
from scripts.loading.broker import BrokerSample
from scripts.loading.checker import Finding, Verdict
from scripts.loading.compare import compare_results, print_comparison
from scripts.loading.histogram import Latencies
from scripts.loading.live import PlainView, print_summary
from scripts.loading.report import make_report
from scripts.loading.result import (
    BadResult,
    Broker,
    Result,
    Second,
    Side,
    load_result,
    save_result,
    this_machine,
)
from scripts.loading.workload import Workload


def a_side(rate: float, latency_us: float) -> Side:
    latencies = Latencies()
    latencies.record_many([int(latency_us * 1000 * n / 500) for n in range(1, 1001)])
    return Side(
        records=int(rate * 12), seconds=12.0, records_per_second=rate, bytes_per_second=100 * rate,
        failed={}, latency=latencies.summary(), lateness=latencies.summary(),
        processes_cpu_percent=[50.0],
    )  # fmt: skip


def a_result(
    rate: float = 10_000, latency_us: float = 2000, wobble: float = 0.02, **more: Any
) -> Result:
    """Of an end-to-end run of 12 seconds, whose single seconds differ by `wobble`."""
    timeline = []
    for second in range(12):
        factor = 1 + wobble * (second % 3 - 1)
        timeline.append(
            Second(
                second=second, produced=int(rate * factor), consumed=int(rate * factor),
                produce_p50_us=latency_us / factor, produce_p99_us=2 * latency_us / factor,
                produce_max_us=3 * latency_us / factor, end_to_end_p50_us=latency_us / factor,
                end_to_end_p99_us=2 * latency_us / factor,
                end_to_end_max_us=3 * latency_us / factor,
            )
        )  # fmt: skip
    samples = [
        BrokerSample(
            second=n + 1.0, cpu_percent=40.0 + n % 2, memory_bytes=30_000_000,
            written_bytes=n * 1_000_000, disk_bytes=n * 2_000_000,
        )
        for n in range(12)
    ]  # fmt: skip
    values: dict[str, Any] = {
        "name": "a run", "started_at": "2026-01-01T00:00:00+00:00", "ended_by": "time",
        "seconds": 12.0, "record_bytes": 100.0, "machine": this_machine(),
        "workload": Workload(kind="end-to-end", rate=rate),
        "produce": a_side(rate, latency_us), "consume": a_side(rate, latency_us),
        "timeline": timeline,
        "broker": Broker(
            cpu_seconds=5.0, cpu_percent=41.0, memory_peak_bytes=30_000_000,
            written_bytes=11_000_000, disk_bytes=22_000_000, kills=0, samples=samples,
        ),
    }  # fmt: skip
    return Result(**{**values, **more})


def a_verdict(**faults: Any) -> Verdict:
    counts = {"lost": 0, "doubled": 0, "reordered": 0, "damaged": 0, "findings": [], **faults}
    return Verdict(sent=10, acknowledged=9, unsure=1, read=10, **counts)


# --- files ---------------------------------------------------------------------------------------


def test_a_result_is_read_as_it_was_saved(tmp_path):
    finding = Finding("doubled", "t", 1, 7, 0, 3, "read 2 times")
    result = a_result(check=a_verdict(doubled=1, findings=[finding]), warnings=["so what"])
    save_result(result, tmp_path / "r.json")
    assert load_result(tmp_path / "r.json") == result
    assert msgspec.json.decode((tmp_path / "r.json").read_bytes())["version"] == 1


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file"),
        (b"nonsense", "is not JSON"),
        (b"[1]", "is not a result of loadgen"),
        (b'{"format": "other"}', "is not a result of loadgen"),
        (b'{"format": "seglog-loadgen", "version": 99}', "has version 99, this program reads 1"),
        (b'{"format": "seglog-loadgen", "version": 1, "seconds": "x"}', "is damaged"),
    ],
    ids=["missing", "no-json", "array", "other", "newer", "damaged"],
)
@pytest.mark.parametrize("command", ["report", "compare"])
def test_a_file_that_is_no_result_is_refused_with_the_reason(tmp_path, content, told, command):
    path: Path = tmp_path / "r.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadResult, match=told):
        load_result(path)
    arguments = [command, str(path)] + [str(path)] * (command == "compare")
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert re.search(told, done.output)


# --- the page ------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a page is made of; an error where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.text = ""
        self.tags: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in {"meta", "br", "link"}:
            self.open.append(tag)
        for name, value in attrs:
            self.ids += [value or ""] if name == "id" else []
            self.references += [value or ""] if name in {"href", "src", "xlink:href"} else []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def report() -> str:
    return make_report(a_result(name="the <run> & more", check=a_verdict()))


def test_a_report_is_one_page_that_needs_nothing_else(report):
    page = Page(report)
    assert "the <run> & more" in page.text  # escaped where it must be
    assert page.tags.count("svg") == 5
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert all(reference.startswith("#") for reference in page.references)
    assert len(page.ids) == len(set(page.ids))
    assert {reference[1:] for reference in page.references} <= set(page.ids)


def test_a_report_has_no_colour_of_its_own_in_its_charts(report):
    charts = "".join(re.findall(r"<svg.*?</svg>", report, re.DOTALL))
    colours = set(re.findall(r"(?:fill|stroke|stop-color): (#\w+)", charts))
    assert colours <= {"#ffffff", "#000000"}, colours  # those of clip paths and defaults
    assert "var(--ink)" in charts
    assert "prefers-color-scheme: dark" in report


def test_a_report_tells_what_was_found(report):
    finding = Finding("lost", "orders", 3, 4711, 0, 5)
    faulty = a_result(check=a_verdict(lost=1, findings=[finding]), broker=None, timeline=[])
    text = Page(make_report(faulty)).text
    assert "✗ faults" in text
    assert "lost: orders/3 offset 4711, producer 0 sequence 5" in text
    assert "✓ none" in Page(report).text


@pytest.mark.parametrize("kind", ["produce", "consume", "end-to-end"])
def test_a_report_is_made_of_whatever_a_result_has(kind):
    more: dict[str, Any] = {"broker": None, "workload": Workload(kind=kind)}
    if kind != "end-to-end":
        more["consume" if kind == "produce" else "produce"] = None
    bare = a_result(**more)
    for timeline in (bare.timeline[:1], []):
        page = Page(make_report(msgspec.structs.replace(bare, timeline=timeline)))
        assert kind in page.text


# --- compare -------------------------------------------------------------------------------------


def judgements(before: Result, after: Result) -> dict[str, str]:
    return {row.name: row.judgement for row in compare_results(before, after).rows}


def test_a_run_is_the_same_as_itself():
    assert set(judgements(a_result(), a_result()).values()) == {"same"}


def test_what_got_worse_or_better_beyond_noise_is_marked():
    found = judgements(a_result(), a_result(rate=8000, latency_us=1000))
    assert found["produce, records/s"] == found["consume, records/s"] == "worse"
    assert found["produce, latency p50"] == found["end to end, p99"] == "better"
    found = judgements(a_result(), a_result(rate=12_000, latency_us=4000))
    assert found["produce, records/s"] == "better"
    assert found["produce, latency p50"] == found["end to end, p99"] == "worse"
    assert not compare_results(a_result(), a_result(rate=12_000)).is_worse


def test_the_same_difference_is_noise_where_single_seconds_differ_as_much():
    assert judgements(a_result(), a_result(rate=8500))["produce, records/s"] == "worse"
    noisy = [a_result(rate=rate, wobble=0.2) for rate in (10_000, 8500)]
    assert judgements(*noisy)["produce, records/s"] == "same"


def test_short_runs_must_differ_by_more():
    short = [
        msgspec.structs.replace(result, timeline=result.timeline[:4])
        for result in (a_result(), a_result(rate=8500), a_result(rate=5000))
    ]
    assert judgements(short[0], short[1])["produce, records/s"] == "same"
    assert judgements(short[0], short[2])["produce, records/s"] == "worse"


def test_a_fault_that_was_not_there_before_is_worse_whatever_the_noise():
    found = judgements(a_result(check=a_verdict()), a_result(check=a_verdict(reordered=1)))
    assert found["check, reordered"] == "worse"
    assert found["check, lost"] == "same"


def test_what_was_not_the_same_in_both_is_told():
    other = a_result(workload=Workload(kind="end-to-end", rate=10_000, compression="zstd"))
    comparison = compare_results(a_result(), other)
    assert comparison.differences == ["compression: none → zstd"]
    stream = io.StringIO()
    print_comparison(comparison, Console(file=stream, width=120))
    assert "compression: none → zstd" in stream.getvalue()


def test_the_exit_code_tells_of_a_regression_where_asked(tmp_path):
    save_result(a_result(), tmp_path / "a.json")
    save_result(a_result(rate=5000), tmp_path / "b.json")
    a, b = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    assert CliRunner().invoke(app, ["compare", a, b]).exit_code == 0
    done = CliRunner().invoke(app, ["compare", "--fail", a, b])
    assert done.exit_code == 4
    assert "WORSE" in done.output
    assert CliRunner().invoke(app, ["compare", "--fail", b, a]).exit_code == 0


# --- what a person sees at once ------------------------------------------------------------------


def test_the_summary_tells_the_verdict_first_faults_and_notes():
    stream = io.StringIO()
    finding = Finding("damaged", "orders", 3, 4711)
    result = a_result(
        check=a_verdict(damaged=1, findings=[finding]), warnings=["busy"], ended_by="stop"
    )
    print_summary(result, Console(file=stream, width=100))
    text = stream.getvalue()
    assert "check: lost 0, doubled 0, reordered 0, damaged 1" in text
    assert "damaged: orders/3 offset 4711" in text
    assert "note: busy" in text
    assert "interrupted" in text
    assert "10,000" in text


def test_in_a_pipe_progress_is_plain_lines(capsys):
    PlainView(Workload(kind="produce"))
    assert "\x1b" not in capsys.readouterr().err
