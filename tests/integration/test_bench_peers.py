"""`scripts/bench peers`: Seglog itself goes through all of it; real peers do in slow tests."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from scripts.loading.histogram import Latencies
from scripts.peers import jobs
from scripts.peers.campaign import Bench, Scale
from scripts.peers.conduct import Options, conduct, find_absent
from scripts.peers.results import SEGLOG, load
from scripts.peers.rows import GROUPS, through
from scripts.peers.systems import SYSTEMS
from scripts.peers.workers import Job, JobFailed, Workers

ROOT = Path(__file__).resolve().parents[2]
TINY = Scale(rounds=1, seconds=0.2, fill_records=30_000, footprint_records=1_000)
PEERS = [name for name in SYSTEMS if name != SEGLOG]
pytestmark = pytest.mark.xdist_group("bench-peers")


def bench_command(*arguments: str, home: Path) -> tuple[list[str], dict[str, str]]:
    """The command as on a machine that has no peer: nothing on the PATH or in caches."""
    command = [sys.executable, str(ROOT / "scripts" / "bench.py"), "peers", *arguments]
    return command, {**os.environ, "PATH": "", "XDG_CACHE_HOME": str(home), "TMPDIR": str(home)}


async def fail(gate, message):
    raise ValueError(message)


async def answer(gate, value):
    begin = await gate()
    return value, begin


def is_broker(process: psutil.Process) -> bool:
    try:
        return "serve" in process.cmdline()
    except psutil.NoSuchProcess:  # it has ended since it was listed
        return False


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=100)
    return not alive


def test_seglog_goes_through_every_row_and_missing_peers_are_named(tmp_path):
    saved = tmp_path / "result.json"
    command, environment = bench_command(
        "--rounds", "1", "--seconds", "0.1", "--quick", "--json", str(saved), home=tmp_path
    )

    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=220, check=False
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert "Redis Streams, durable: not measured: redis-server is not installed" in run.stdout
    assert "To have it: apt-get install redis-server" in run.stdout
    result = load(saved)
    assert list(result.systems) == [SEGLOG]
    assert {each.title for each in result.absent} == {SYSTEMS[name].title for name in PEERS}
    assert result.failures() == []
    measured = {row.key for row in result.rows if row.value(SEGLOG)}
    for strength in ("durable", "written"):
        for row in (
            "produce-100-1",
            "produce-100-4",
            "produce-1024-1",
            "produce-1024-4",
            "awaited",
        ):
            assert f"{strength}/{row}" in measured
        assert f"{strength}/memory-loaded" in measured
    assert {"any/read-records", "any/read-batches", "any/start", "any/disk"} <= measured
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminated"])
def test_every_process_is_ended_when_a_run_is_cut_off(tmp_path, number):
    command, environment = bench_command("--row", "produce", "--seconds", "30", home=tmp_path)
    run = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        parent = psutil.Process(run.pid)
        deadline = time.monotonic() + 100
        children: list[psutil.Process] = []
        while not any(map(is_broker, children)):
            assert time.monotonic() < deadline, "no broker was started"
            assert run.poll() is None
            children = parent.children(recursive=True)

        run.send_signal(number)

        assert run.wait(100) != 0
        assert gone(children)
        assert list(tmp_path.iterdir()) == []
    finally:
        run.kill()
        run.wait()


def test_a_broker_that_was_just_started_is_known_when_ctrl_c_comes(tmp_path, monkeypatch):
    server = SYSTEMS[SEGLOG].server(tmp_path / "broker", is_durable=True)
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start_and_interrupt(*arguments, **options):
        started.append(popen(*arguments, **options))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", start_and_interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            server.start()
        assert server.pid == started[0].pid
        server.stop()
        assert started[0].poll() is not None
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_latencies_count_from_the_intended_time(tmp_path):
    seglog = SYSTEMS[SEGLOG]
    with Workers(2) as workers:
        bench = Bench(TINY, workers, tmp_path, Console(quiet=True), 1)
        bench.systems = [seglog]
        with bench.running():
            found = through(bench, seglog, count=400, rate=2_000)

    latencies = Latencies.decode(found.latencies)
    # All but those meant for the first fifth of the cell's 0.2 seconds.
    assert latencies.count == 400 - 80
    assert found.span.records == 400
    assert found.span.ended - found.span.started >= 399 / 2_000


def test_a_failed_job_tells_why_and_leaves_workers_that_work():
    with Workers(2) as workers:
        with pytest.raises(JobFailed, match="ValueError: no such luck"):
            workers.run([Job(answer, (1,)), Job(fail, ("no such luck",))], 100)

        (one, begun), (two, begun_too) = workers.run([Job(answer, (1,)), Job(answer, (2,))], 100)
        pids = workers.pids

    assert (one, two) == (1, 2)
    assert begun == begun_too
    assert not any(map(psutil.pid_exists, pids))


def test_a_reading_that_is_short_or_too_small_to_time_is_no_figure(tmp_path):
    seglog = SYSTEMS[SEGLOG]
    with Workers(1) as workers:
        bench = Bench(TINY, workers, tmp_path, Console(quiet=True), 1)
        bench.systems = [seglog]
        with bench.running(), bench.topics(seglog, 1) as (topic,):
            target = bench.target(seglog)
            assert bench.one(jobs.fill, target, topic, 100, 1_000, 10.0) == 1_000
            damaged = bench.add_row("damaged", "read", "records/s", more_is_better=True)
            with bench.cell(damaged, seglog, 0):  # the records have 100 bytes, not 101
                bench.one(jobs.read, target, topic, 101, "batches", 1_000)
            small = bench.add_row("small", "read", "records/s", more_is_better=True)
            with bench.cell(small, seglog, 0):  # the first batch is all it asks for
                bench.one(jobs.read, target, topic, 100, "batches", 1)

    assert damaged.rounds == small.rounds == {}
    assert "where 1000 of 101 bytes were acknowledged" in damaged.notes[SEGLOG]
    assert "too few to time" in small.notes[SEGLOG]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("peer", PEERS)
def test_a_real_peer_goes_through_every_row(peer, tmp_path):
    absent = find_absent([peer])
    if len(absent) == 2:
        pytest.skip(f"{absent[0].reason}: {absent[0].install}")
    options = Options([peer], list(GROUPS), TINY, True, "a test", tmp_path)

    result = conduct(options, Console(quiet=True))

    assert result.failures() == []
    assert result.absent == absent
    strengths = {"durable", "written", "any"} - {each.strength for each in absent}
    for row in result.rows:
        if row.strength in strengths:
            ratio = row.ratio(peer)
            assert ratio is not None, row.key
            assert ratio.middle > 0
    assert list(tmp_path.iterdir()) == []
