"""`seglog serve --http-port` and `seglog gateway` as a user meets them, and docs/http.md as it
stands."""

import json
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from seglog import SyncAdmin, SyncProducer

from tests.brokers import BrokerMemory
from tests.commands import SEGLOG, TIMEOUT_S
from tests.metrics import Scrape
from tests.serving import Serving, environment, starting

ROOT = Path(__file__).resolve().parents[2]


class Running(Serving):
    """A command that also says where it speaks HTTP."""

    def listen(self) -> None:
        self.bootstrap = self.url = ""
        while not self.url:
            line = self.line()
            if line.startswith("listening on "):
                self.bootstrap = line.removeprefix("listening on ").strip()
            elif line.startswith("http on "):
                self.url = line.removeprefix("http on ").strip()


@pytest.fixture
def run(tmp_path) -> Iterator[Callable[..., Running]]:
    """Starts commands in `tmp_path`."""
    with starting(Running, tmp_path) as start:
        yield start


def refused(cwd: Path, *arguments: str, **variables: str) -> str:
    """The one line that a command says and ends with."""
    result = subprocess.run(
        [*SEGLOG, *arguments],
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert result.returncode in (1, 2), result.stderr
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


def append_one(url: str) -> None:
    with httpx.Client(base_url=url, timeout=TIMEOUT_S) as http:
        assert http.get("/readyz").status_code == 200
        http.post("/v1/topics", json={"name": "t"}).raise_for_status()
        answer = http.post("/v1/topics/t/records", json={"records": [{"value": "x"}]})
        assert answer.json()["records"][0]["offset"] == 0


# --- running -------------------------------------------------------------------------------------


def test_serve_with_an_http_port_is_both_and_ready_when_it_says_so(run):
    both = run("serve", "--data", "d", "--port", "0", "--http-port", "0")

    assert both.bootstrap.startswith("127.0.0.1:")
    assert both.url.startswith("http://127.0.0.1:")
    append_one(both.url)


def test_metrics_of_a_served_broker_are_the_brokers_and_the_gateways(run):
    both = run("serve", "--data", "d", "--port", "0", "--http-port", "0")
    append_one(both.url)

    with httpx.Client(base_url=both.url, timeout=TIMEOUT_S) as http:
        records = [{"value": "xyz"}] * 41
        http.post("/v1/topics/t/records", json={"records": records}).raise_for_status()
        assert len(http.get("/v1/topics/t/partitions/0/records").json()["records"]) == 42
        answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    scrape = Scrape(answer.text)
    assert scrape.value("seglog_topic_records_in_total", topic="t") == 42
    assert scrape.value("seglog_log_durable_end_offset", topic="t", partition=0) == 42
    posted = {"route": "/v1/topics/{topic}/records", "method": "POST", "status": 200}
    assert scrape.value("seglog_http_requests_total", **posted) == 2
    assert scrape["process_cpu_seconds_total"] > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_both_cleanly_with_a_stream_open(run, number):
    both = run("serve", "--data", "d", "--port", "0", "--http-port", "0")
    append_one(both.url)

    with httpx.stream("GET", f"{both.url}/v1/topics/t/stream?follow=true", timeout=TIMEOUT_S) as s:
        lines = s.iter_lines()
        assert json.loads(next(lines))["value"] == "x"
        both.process.send_signal(number)
        assert list(lines) == []  # its end, not a cut
    out, err = both.process.communicate(timeout=TIMEOUT_S)
    assert (both.process.returncode, out) == (0, "")
    assert "Traceback" not in err


def test_the_gateway_as_a_process_of_its_own(run):
    both = run("serve", "--data", "d", "--port", "0", "--http-port", "0")
    apart = run("gateway", "--bootstrap", both.bootstrap, "--port", "0")

    while httpx.get(f"{apart.url}/readyz", timeout=TIMEOUT_S).status_code == 503:
        pass  # it starts without the broker, and may have to wait for its first answer
    append_one(apart.url)
    code, out, err = apart.stop()
    assert (code, out) == (0, "")
    assert "Traceback" not in err


def test_http_settings_come_from_the_file_variables_and_flags(run, tmp_path):
    (tmp_path / "seglog.toml").write_text(
        'port = 0\ndata = "d"\n[http]\nport = 0\nmax.records = 5\nmax.body.bytes = "2KiB"'
    )
    variables = {"SEGLOG_HTTP_MAX_RECORDS": "2", "SEGLOG_CONFIG": "seglog.toml"}
    both = run("serve", **variables)
    apart = run(
        "gateway", "--bootstrap", both.bootstrap, "--set", "http.max.records=1", **variables
    )

    for running, limit in ((both, 2), (apart, 1)):
        with httpx.Client(base_url=running.url, timeout=TIMEOUT_S) as http:
            http.post("/v1/topics", json={"name": "t"})
            for count, status in ((limit, 200), (limit + 1, 413)):
                body = {"records": [{"value": "x"}] * count}
                assert http.post("/v1/topics/t/records", json=body).status_code == status
            large = http.post("/v1/topics/t/records", content=b"x" * 3000)
            assert large.status_code == 413


def test_without_an_http_port_there_is_none(run, tmp_path):
    process = subprocess.Popen(
        [*SEGLOG, "serve", "--data", "d", "--port", "0"],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().startswith("listening on ")
    process.terminate()
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert out == ""


def test_readers_that_take_nothing_cost_a_process_little_and_are_cut_off(run):
    both = run(
        "serve", "--data", "d", "--port", "0", "--http-port", "0",
        "--set", "http.slow.reader.timeout.ms=1s", "--set", "http.stream.buffer.bytes=256KiB",
    )  # fmt: skip
    with SyncAdmin(both.bootstrap) as admin, SyncProducer(both.bootstrap) as producer:
        admin.create_topic("t")
        for _ in range(32):
            producer.send_batch("t", [b"x" * 10_000] * 100)  # 32 MB in all
    memory = BrokerMemory(both.process.pid)
    before = memory.sample()
    port = int(both.url.rpartition(":")[2])
    stalled = []
    for _ in range(20):
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", port))
        reader.sendall(b"GET /v1/topics/t/events?from=earliest HTTP/1.1\r\nHost: x\r\n\r\n")
        stalled.append(reader)

    figures = ""
    begun = 'route="/v1/topics/{topic}/events",status="200"} 20.0'
    while begun not in figures or "\nseglog_http_streams 0.0" not in figures:  # until all are cut
        figures = httpx.get(f"{both.url}/metrics", timeout=TIMEOUT_S).text
        memory.sample()

    # 640 MB were asked for; each may hold a fetch, a decoded batch and what is being sent.
    assert memory.peak_bytes - before < 120 << 20
    for reader in stalled:
        reader.close()


# --- mistakes ------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_told_in_one_line(run, tmp_path):
    taken = run("serve", "--data", "d", "--port", "0", "--http-port", "0").url.rpartition(":")[2]

    for command in (
        ("serve", "--data", "e", "--port", "0", "--http-port", taken, "--log-level", "error"),
        ("gateway", "--port", taken),
    ):
        line = refused(tmp_path, *command)
        assert f"http: cannot listen on 127.0.0.1:{taken}" in line
        assert "free port" in line


def test_a_wrong_setting_is_told_in_one_line(tmp_path):
    assert "http.port must be -1 to 65535" in refused(tmp_path, "serve", "--http-port", "70000")
    line = refused(tmp_path, "gateway", "--set", "http.max.recods=5")
    assert "did you mean http.max.records?" in line
    assert "bootstrap" in refused(tmp_path, "gateway", "--bootstrap", "x:y:z", "--port", "0")


def test_where_the_extra_is_missing_one_line_says_what_to_install(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['uvicorn'] = None\n")

    for command in (("serve", "--http-port", "0"), ("gateway",)):
        line = refused(tmp_path, *command, PYTHONPATH=str(tmp_path))
        assert "needs uvicorn: pip install 'seglog[http]'" in line
    assert not (tmp_path / "seglog-data").exists()


# --- the document --------------------------------------------------------------------------------

BLOCK = re.compile(r"^```(sh|json|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def without_times(value: Any) -> Any:
    if isinstance(value, list):
        return [without_times(each) for each in value]
    if isinstance(value, dict):
        return {
            name: without_times(each)
            for name, each in value.items()
            if not name.startswith("timestamp")
        }
    return value


def test_the_examples_of_the_document_run_and_print_what_it_says(run, tmp_path):
    if shutil.which("curl") is None:
        pytest.skip("no curl here")
    both = run("serve", "--data", "d", "--port", "0", "--http-port", "0")
    text = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    assert [kind for kind, _ in blocks].count("sh") >= 7

    printed = ""
    for kind, content in blocks:
        if kind == "sh":
            result = subprocess.run(
                ["bash", "-euo", "pipefail", "-c",
                 content.replace("http://127.0.0.1:8080", both.url)],
                cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
            assert result.returncode == 0, f"{content}\n{result.stderr}"
            printed = result.stdout
        elif kind == "json":
            assert without_times(json.loads(printed)) == without_times(json.loads(content)), printed
        else:
            assert printed == content
