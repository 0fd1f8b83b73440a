"""The load generator against real brokers: every workload, the checks, interrupts, crashes."""

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from scripts.loadgen import app
from scripts.loading.checker import SentRecords, find_missing, judge
from scripts.loading.conduct import Conductor
from scripts.loading.histogram import Latencies
from scripts.loading.processes import WorkerFailed
from scripts.loading.readback import read_back
from scripts.loading.result import Result, load_result
from scripts.loading.stage import Place
from scripts.loading.stamps import Stamp, checked_value
from scripts.loading.tally import Moment
from scripts.loading.workload import Workload, check_workload
from scripts.ports import kept_port
from seglog import Admin, Producer, SyncAdmin, embedded_blocking

from tests.brokers import broker_process

ROOT = Path(__file__).resolve().parents[2]
LOADGEN = [sys.executable, str(ROOT / "scripts" / "loadgen.py")]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}

# In one process: they share a broker, and each puts some load on the machine.
pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("loadgen")]


class Silent:
    """A view that only remembers."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.produced = 0

    def show(self, moment: Moment) -> None:
        self.phases.append(moment.phase)
        self.produced = moment.produce.records if moment.produce is not None else 0


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with embedded_blocking(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap


async def conduct(bootstrap: str, **options: Any) -> Result:
    """A short run against a broker that is there."""
    settings: dict[str, Any] = {"seconds": 200.0, "size": "150", **options}
    workload = check_workload(Workload(**settings))
    return await Conductor(workload, Place(bootstrap), Silent()).run()


def assert_clean(result: Result, records: int) -> None:
    check = result.check
    assert check is not None
    assert check.is_clean, check
    assert (check.sent, check.acknowledged, check.read) == (records, records, records)
    assert result.warnings == [] or all(
        "core" in note or "late" in note for note in result.warnings
    )


# --- workloads -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "send", "keys": "zipf", "topics": 2, "partitions": 2, "producers": 3,
         "producer_processes": 2},
        {"mode": "await", "in_flight": 8, "rate": 4000.0, "producers": 2},
        {"mode": "batch", "batch_records": 300, "keys": "uniform", "partitions": 3,
         "compression": "lz4", "size": "uniform:150:900"},
        {"mode": "send", "rate": 20_000.0, "linger_ms": 0.0, "durability": "os"},
    ],
    ids=lambda options: options["mode"] + ("-open" if "rate" in options else "-closed"),
)  # fmt: skip
async def test_all_that_is_produced_is_acknowledged_measured_and_there(bootstrap, options):
    result = await conduct(bootstrap, kind="produce", records=3000, check=True, **options)
    assert_clean(result, 3000)
    assert result.ended_by == "count"
    produce = result.produce
    assert produce is not None
    assert produce.latency is not None
    assert (produce.records, produce.latency.count, produce.failed) == (3000, 3000, {})
    assert sum(second.produced for second in result.timeline) == 3000
    is_open = options.get("rate", 0) > 0
    assert (produce.lateness is not None) == is_open
    assert len(produce.processes_cpu_percent) == options.get("producer_processes", 1)


@pytest.mark.parametrize(
    "options",
    [
        {"reading": "batches", "partitions": 4, "consumers": 3, "consumer_processes": 2},
        {"reading": "records", "sharing": "all", "consumers": 2},
        {"reading": "records", "sharing": "group", "partitions": 2, "consumers": 2},
    ],
    ids=["dealt-batches", "all-records", "group-records"],
)
async def test_a_backlog_is_read_once_by_those_who_share_it(bootstrap, options):
    result = await conduct(bootstrap, kind="consume", fill=4000, check=True, **options)
    assert_clean(result, 4000)
    assert result.consume is not None
    readers = options["consumers"] if options.get("sharing") == "all" else 1
    assert result.consume.records == 4000 * readers
    assert result.produce is None
    assert result.ended_by == "count"


async def test_a_backlog_is_read_again_until_the_count_is_reached(bootstrap):
    result = await conduct(bootstrap, kind="consume", fill=2000, records=9000)
    assert result.consume is not None
    assert result.ended_by == "count"
    assert 9000 <= result.consume.records < 11_000


@pytest.mark.parametrize(
    "options",
    [
        {"reading": "records", "partitions": 3, "sharing": "group", "consumers": 2},
        {"reading": "batches", "rate": 3000.0, "compression": "zstd", "partitions": 2,
         "consumers": 2, "consumer_processes": 2},
    ],
    ids=["group-records", "dealt-batches"],
)  # fmt: skip
async def test_end_to_end_every_record_is_read_and_its_age_known(bootstrap, options):
    result = await conduct(bootstrap, kind="end-to-end", records=3000, check=True, **options)
    assert_clean(result, 3000)
    assert result.consume is not None
    assert result.consume.latency is not None
    assert result.consume.latency.count == 3000 == result.consume.records


async def test_topics_of_a_run_are_kept_where_asked_and_deleted_elsewhere(bootstrap):
    """Every test above has left its topics to the run."""

    def topics() -> list[str]:
        with SyncAdmin(bootstrap) as admin:
            return [name for name in admin.list_topics() if name.startswith("loadgen-")]

    assert topics() == []
    workload = Workload(kind="produce", records=10, seconds=10.0, topics=2)
    await Conductor(workload, Place(bootstrap, keeps_topics=True), Silent()).run()
    assert len(topics()) == 2
    with SyncAdmin(bootstrap) as admin:
        for name in topics():
            admin.delete_topic(name)


# --- no coordinated omission ---------------------------------------------------------------------


async def test_every_record_that_was_due_while_the_broker_stood_still_counts_its_wait(tmp_path):
    """One caller waits for each answer: a generator that counts from its own calls would see one
    slow record in the stall."""
    rate, stall_s = 200.0, 0.8
    async with broker_process(tmp_path / "data") as broker:
        workload = Workload(
            kind="produce", mode="await", in_flight=1, rate=rate, seconds=100.0, linger_ms=0.0
        )
        view = Silent()
        conductor = Conductor(workload, Place(f"127.0.0.1:{broker.port}"), view)
        running = asyncio.create_task(conductor.run())

        async def produced(count: float) -> None:
            while view.produced < count:
                assert not running.done(), await running
                await asyncio.sleep(0.01)

        await produced(1)
        broker.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(stall_s)  # the stall itself, not a wait for something
        broker.process.send_signal(signal.SIGCONT)
        await produced(view.produced + 2 * rate * stall_s)
        conductor.interrupt()
        result = await running
    assert result.ended_by == "stop"
    assert result.produce is not None
    assert result.produce.latency is not None
    latencies = Latencies.decode(result.produce.latency.histogram)
    assert latencies.count == result.produce.records
    waited_half = [p for p in range(1000) if latencies.percentile_us(p / 10) >= 1e6 * stall_s / 2]
    assert len(waited_half) / 1000 * latencies.count >= 0.4 * rate * stall_s


# --- on a terminal --------------------------------------------------------------------------------


def test_on_a_terminal_a_table_renews_itself_and_the_summary_stays(tmp_path):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 110, 0, 0))
    process = subprocess.Popen(
        [*LOADGEN, "run", "--seconds", "1.5", "--rate", "500", "--name", "the name"],
        env={**ENVIRONMENT, "TERM": "xterm-256color"}, stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 65536):
            shown += data
    except OSError:
        pass  # EIO: the other side is closed
    finally:
        os.close(ours)
        assert process.wait(120) == 0
    text = shown.decode()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert "\x1b[1A" in text  # goes up, and draws again
    assert "of 1.5 s" in plain
    assert "━" in plain  # how far it is
    assert "Ctrl-C ends it" in plain
    assert re.search(r"produced +\d", plain)
    assert "broker    CPU" in plain
    assert "the name" in plain[plain.rindex("Ctrl-C ends it") :]


# --- faults --------------------------------------------------------------------------------------


async def test_faults_in_a_real_log_are_found_with_partition_and_offset(bootstrap):
    def value(sequence: int) -> bytes:
        return checked_value(Stamp(0, sequence), 1_790_000_000_000_000_000, b'"a":1}', None)

    values = [value(n) for n in (0, 1, 2, 2, 4, 3, 5, 7)]  # 2 twice, 3 after 4, 6 missing
    values[6] = values[6].replace(b'"a":1', b'"a":2')  # 5 damaged
    async with Admin(bootstrap) as admin:
        await admin.create_topic("faulty", 2)
    async with Producer(bootstrap) as producer:
        await producer.send_batch("faulty", values, partition=1)
    sightings = await read_back(bootstrap, ["faulty"])
    sent = [SentRecords(0, 8)]
    verdict = judge(sent, sightings, find_missing(sent, sightings), [])
    assert (verdict.lost, verdict.doubled, verdict.reordered, verdict.damaged) == (1, 1, 1, 1)
    places = {f.fault: (f.topic, f.partition, f.offset) for f in verdict.findings}
    assert places == {
        "doubled": ("faulty", 1, 3), "reordered": ("faulty", 1, 5), "damaged": ("faulty", 1, 6),
    }  # fmt: skip


async def test_a_run_whose_records_are_deleted_under_it_tells_which_are_lost(bootstrap):
    """The checker in a real run: someone deletes records between acknowledgement and check."""

    class Deleting(Silent):
        def show(self, moment: Moment) -> None:
            super().show(moment)
            if moment.phase == "checking":
                with SyncAdmin(bootstrap) as admin:
                    (topic,) = [n for n in admin.list_topics() if re.match(r"loadgen-\w+-0", n)]
                    admin.delete_records(topic, 0, 25)

    workload = Workload(kind="produce", records=200, seconds=30.0, check=True, size="150")
    result = await Conductor(workload, Place(bootstrap), Deleting()).run()
    assert result.check is not None
    assert (result.check.lost, result.check.doubled, result.check.damaged) == (25, 0, 0)
    first = result.check.findings[0]
    assert (first.fault, first.partition, first.offset, first.sequence) == ("lost", 0, 0, 0)


async def test_nothing_is_lost_while_the_broker_is_killed_and_started_again():
    workload = check_workload(
        Workload(
            kind="end-to-end", seconds=2.0, rate=2000.0, check=True, size="150", partitions=2,
            producers=2, consumers=2, kill_broker_every_s=0.7,
        )
    )  # fmt: skip
    result = await Conductor(workload, Place(), Silent()).run()
    assert result.check is not None
    assert result.check.is_clean, result.check
    assert result.check.acknowledged == result.check.sent == 4000
    assert result.broker is not None
    assert result.broker.kills >= 1
    assert result.broker.cpu_seconds > 0


async def test_a_worker_that_cannot_go_on_ends_the_run_with_its_reason(bootstrap):
    workload = Workload(kind="produce", seconds=5.0, batch_bytes=100)  # refused by the producer
    with pytest.raises(WorkerFailed, match="producer process 0: BadConfig: batch_bytes 100"):
        await Conductor(workload, Place(bootstrap), Silent()).run()


# --- as a person runs it -------------------------------------------------------------------------


def test_ctrl_c_ends_a_run_with_the_result_so_far_and_leaves_nothing_behind(tmp_path):
    process = subprocess.Popen(
        [*LOADGEN, "run", "end-to-end", "--seconds", "3600", "--rate", "500", "--check",
         "--json", "result.json", "--folder", "."],
        env=ENVIRONMENT, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stdout is not None
    try:
        for line in process.stderr:
            if re.search(r"consumed [1-9]", line):
                break
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 3  # a broker, a producer, a consumer
        assert list(tmp_path.glob("seglog-loadgen-*"))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 130, out + err
    assert "interrupted: this is the result so far" in out
    result = load_result(tmp_path / "result.json")
    assert result.ended_by == "stop"
    assert result.check is not None
    assert result.check.is_clean
    assert result.check.read == result.check.sent > 0
    _, alive = psutil.wait_procs(children, timeout=120)
    assert not alive
    assert not list(tmp_path.glob("seglog-loadgen-*"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--bootstrap", "192.0.2.1:7400"], "is not on this machine.*--allow-remote"),
        (["--bootstrap", "nowhere"], "'nowhere' is not host:port"),
        (["--size", "tiny"], "'tiny' is not a size"),
        (["--json", "no/such/folder.json"], "there is no folder"),
    ],
    ids=["remote", "address", "size", "folder"],
)
def test_what_cannot_be_done_is_said_with_what_to_do(arguments, told):
    done = CliRunner().invoke(app, ["run", *arguments])
    assert done.exit_code == 1
    assert re.search(told, done.output), done.output


def test_a_broker_that_is_not_there_is_said():
    address = f"127.0.0.1:{kept_port()}"
    done = subprocess.run(
        [*LOADGEN, "run", "--bootstrap", address],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("loadgen: ")
    assert address in done.stderr
    assert "Traceback" not in done.stderr
