"""Put a broker under load and measure it: `scripts/loadgen --help`, docs/loadgen.md."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import msgspec
import typer
import uvloop
from rich.console import Console

from scripts.loading.broker import BrokerFailed, is_loopback
from scripts.loading.compare import compare_results, print_comparison
from scripts.loading.conduct import Conductor
from scripts.loading.live import make_view, print_summary
from scripts.loading.processes import WorkerFailed
from scripts.loading.result import BadResult, Result, load_result, save_result
from scripts.loading.sizes import BadSize, parse_bytes
from scripts.loading.stage import Place
from scripts.loading.workload import BadWorkload, Workload, check_workload
from seglog.protocol.errors import SeglogError

EXIT_FAULTS: Final = 3  # the check found something
EXIT_WORSE: Final = 4  # the comparison found something
EXIT_UNDELIVERED: Final = 5  # records failed
EXIT_INTERRUPTED: Final = 130

app = typer.Typer(
    help="Put a broker under load, and measure it.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class Kind(StrEnum):
    produce = "produce"
    consume = "consume"
    end_to_end = "end-to-end"


class Mode(StrEnum):
    send = "send"
    await_ = "await"
    batch = "batch"


class Keys(StrEnum):
    none = "none"
    uniform = "uniform"
    zipf = "zipf"


class Compression(StrEnum):
    none = "none"
    zstd = "zstd"
    lz4 = "lz4"


class Reading(StrEnum):
    batches = "batches"
    records = "records"


class Sharing(StrEnum):
    deal = "deal"
    all_ = "all"
    group = "group"


class Durability(StrEnum):
    fsync = "fsync"
    os = "os"


_WHAT: Final = "What to measure"
_RECORDS: Final = "Records"
_PRODUCERS: Final = "Producers"
_CONSUMERS: Final = "Consumers"
_TOPICS: Final = "Topics and broker"
_OUTPUT: Final = "Output"


def _option(panel: str, meaning: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=meaning, rich_help_panel=panel, **more)


@app.command()
def run(
    kind: Annotated[Kind, typer.Argument(help="What to measure.")] = Kind.produce,
    seconds: Annotated[float, _option(_WHAT, "End after this long.")] = 10.0,
    records: Annotated[int, _option(_WHAT, "End after so many; 0: only --max-bytes counts.")] = 0,
    max_bytes: Annotated[
        str, _option(_WHAT, "Send no more than this, before compression.", metavar="SIZE")
    ] = "4GiB",
    rate: Annotated[
        float,
        _option(
            _WHAT,
            "Records a second in all, whatever the broker does (open loop); latency counts from "
            "when a record was due. 0: as fast as it goes (closed loop).",
        ),
    ] = 0.0,
    fill: Annotated[
        int, _option(_WHAT, "For consume: records written before, and read again and again.")
    ] = 500_000,
    check: Annotated[
        bool,
        _option(
            _WHAT,
            "Stamp every record with producer, sequence and checksum, and tell which were lost, "
            "doubled, reordered or damaged; exit code 3 where there are any.",
            "--check",
        ),
    ] = False,
    kill_broker_every: Annotated[
        float,
        _option(_WHAT, "Kill the broker so often, as a crash would, and start it again.",
                metavar="SECONDS"),
    ] = 0.0,
    size: Annotated[
        str,
        _option(_RECORDS, "Of values: 1KiB, uniform:100:2000, lognormal:500:8000 (half below, 99 % "
                "below), mix:100=90,10KiB=10.", metavar="SIZES"),
    ] = "100",
    keys: Annotated[Keys, _option(_RECORDS, "Keys, each as often or unevenly.")] = Keys.none,
    key_count: Annotated[int, _option(_RECORDS, "How many different keys.")] = 10_000,
    zipf_exponent: Annotated[float, _option(_RECORDS, "How uneven zipf is.")] = 1.0,
    seed: Annotated[int, _option(_RECORDS, "The same seed makes the same records.")] = 1,
    mode: Annotated[
        Mode,
        _option(_PRODUCERS, "send: a record a call. await: and wait until it is acknowledged. "
                "batch: send_batch."),
    ] = Mode.send,
    producers: Annotated[int, _option(_PRODUCERS, "Tasks, each with a client of its own.")] = 1,
    producer_processes: Annotated[int, _option(_PRODUCERS, "Spread them over so many.")] = 1,
    batch_records: Annotated[int, _option(_PRODUCERS, "For batch: records a call.")] = 1_000,
    in_flight: Annotated[
        int,
        _option(_PRODUCERS, "For await: callers at once of each producer. 0: 1, with --rate 256."),
    ] = 0,
    batch_bytes: Annotated[
        str, _option(_PRODUCERS, "Of the producer.", metavar="SIZE")
    ] = "256KiB",
    linger_ms: Annotated[float, _option(_PRODUCERS, "Of the producer.")] = 5.0,
    compression: Annotated[Compression, _option(_PRODUCERS, "Of batches.")] = Compression.none,
    delivery_timeout: Annotated[
        float, _option(_PRODUCERS, "A record that is not acknowledged by then has failed.",
                       metavar="SECONDS"),
    ] = 60.0,
    consumers: Annotated[int, _option(_CONSUMERS, "Tasks, each with a client of its own.")] = 1,
    consumer_processes: Annotated[int, _option(_CONSUMERS, "Spread them over so many.")] = 1,
    reading: Annotated[
        Reading, _option(_CONSUMERS, "As columns, or with `async for record in consumer`.")
    ] = Reading.batches,
    sharing: Annotated[
        Sharing,
        _option(_CONSUMERS, "deal: each has some partitions. all: each reads everything. group: a "
                "consumer group."),
    ] = Sharing.deal,
    topics: Annotated[int, _option(_TOPICS, "Made for the run.")] = 1,
    partitions: Annotated[int, _option(_TOPICS, "Of each topic.")] = 1,
    durability: Annotated[
        Durability, _option(_TOPICS, "fsync: acknowledged is on disk.")
    ] = Durability.fsync,
    bootstrap: Annotated[
        str,
        _option(_TOPICS, "A broker that is there. Without it, one is started for the run.",
                metavar="HOST:PORT"),
    ] = "",
    allow_remote: Annotated[
        bool, _option(_TOPICS, "The broker may be on another machine.", "--allow-remote")
    ] = False,
    keep_topics: Annotated[
        bool, _option(_TOPICS, "Do not delete the topics of the run.", "--keep-topics")
    ] = False,
    folder: Annotated[
        Path | None,
        _option(_TOPICS, "For the data of the broker that is started: on the disk to measure.",
                metavar="DIR", exists=True, file_okay=False),
    ] = None,
    settings: Annotated[
        list[str] | None,
        _option(_TOPICS, "Of the broker that is started. May be repeated.", "--set",
                metavar="KEY=VALUE"),
    ] = None,
    name: Annotated[str, _option(_OUTPUT, "What the result is called.")] = "",
    json: Annotated[
        Path | None, _option(_OUTPUT, "Save the result here.", metavar="FILE", dir_okay=False)
    ] = None,
    html: Annotated[
        Path | None, _option(_OUTPUT, "Save a report here.", metavar="FILE", dir_okay=False)
    ] = None,
) -> None:  # fmt: skip
    """Put a broker under load.

    produce: how fast records are taken, and how soon they are acknowledged.

    consume: how fast a backlog is read.

    end-to-end: both at once, and how old a record is when it is read.

    Without --bootstrap a broker is started in a temporary folder, and removed afterwards.
    """
    workload = _workload(
        kind=kind, seconds=seconds, records=records, max_bytes=max_bytes, rate=rate, fill=fill,
        check=check, kill_broker_every_s=kill_broker_every, size=size, keys=keys,
        key_count=key_count, zipf_exponent=zipf_exponent, seed=seed, mode=mode,
        producers=producers, producer_processes=producer_processes, batch_records=batch_records,
        in_flight=in_flight or (256 if rate else 1), batch_bytes=batch_bytes, linger_ms=linger_ms,
        compression=compression, delivery_timeout_s=delivery_timeout, consumers=consumers,
        consumer_processes=consumer_processes, reading=reading, sharing=sharing, topics=topics,
        partitions=partitions, durability=durability,
    )  # fmt: skip
    _check_place(bootstrap, workload, allow_remote=allow_remote)
    for path in (json, html):
        if path is not None and not path.parent.is_dir():
            _fail(f"{path}: there is no folder {path.parent}")
    place = Place(bootstrap, folder, tuple(settings or ()), keep_topics)
    result = _conduct(workload, place, name)
    print_summary(result, Console())
    if json is not None:
        save_result(result, json)
    if html is not None:
        _save_report(result, html)
    raise typer.Exit(_exit_code(result))


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(metavar="A", help="A result: what to compare with.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="A result: what to judge.")],
    fail: Annotated[
        bool, typer.Option("--fail", help="Exit code 4 where B is worse beyond noise.")
    ] = False,
) -> None:
    """Compare two results: B in ratio to A, and what got worse beyond noise.

    Noise is how much the figures of single seconds vary within the two runs.
    """
    try:
        comparison = compare_results(load_result(before), load_result(after))
    except BadResult as error:
        _fail(str(error))
    print_comparison(comparison, Console())
    if fail and comparison.is_worse:
        raise typer.Exit(EXIT_WORSE)


@app.command()
def report(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="A result of run --json.")],
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to; else beside the result, as .html."),
    ] = None,
) -> None:
    """Make a report of a result: one HTML file with charts that needs nothing else."""
    try:
        loaded = load_result(result)
    except BadResult as error:
        _fail(str(error))
    target = output or result.with_suffix(".html")
    _save_report(loaded, target)
    typer.echo(f"{target}")


def _workload(**options: Any) -> Workload:
    try:
        options["max_bytes"] = parse_bytes(options["max_bytes"], most=1 << 50)
        options["batch_bytes"] = parse_bytes(options["batch_bytes"], most=8 << 20)
        plain = {
            name: value.value if isinstance(value, StrEnum) else value
            for name, value in options.items()
        }
        return check_workload(msgspec.convert(plain, Workload, strict=True))
    except (BadWorkload, BadSize, msgspec.ValidationError) as error:
        _fail(str(error))


def _check_place(bootstrap: str, workload: Workload, *, allow_remote: bool) -> None:
    if not bootstrap:
        return
    if workload.kill_broker_every_s:
        _fail("--kill-broker-every kills only a broker of its own: leave --bootstrap out")
    try:
        is_here = is_loopback(bootstrap)
    except ValueError as error:
        _fail(f"--bootstrap {error}")
    if not is_here and not allow_remote:
        _fail(
            f"--bootstrap {bootstrap} is not on this machine. If it may be put under load, say so "
            "with --allow-remote"
        )


def _conduct(workload: Workload, place: Place, name: str) -> Result:
    """With Ctrl-C and SIGTERM ending it early; a second one ends it at once."""

    async def conducted() -> Result:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        with make_view(workload) as view:
            conductor = Conductor(workload, place, view, name)

            def interrupt() -> None:
                if conductor.is_interrupted:
                    task.cancel()
                conductor.interrupt()

            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, interrupt)
            return await conductor.run()

    logging.getLogger("seglog").setLevel(logging.ERROR)  # as in the workers
    try:
        return uvloop.run(conducted())
    except asyncio.CancelledError:
        _fail("interrupted twice: ended without a result", EXIT_INTERRUPTED)
    except (BrokerFailed, WorkerFailed, SeglogError, OSError) as error:
        _fail(str(error))
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        if not isinstance(first, BrokerFailed | WorkerFailed | SeglogError | OSError):
            raise
        _fail(str(first))


def _exit_code(result: Result) -> int:
    """What is worst about it counts."""
    if result.check is not None and not result.check.is_clean:
        return EXIT_FAULTS
    if result.ended_by == "stop":
        return EXIT_INTERRUPTED
    if result.produce is not None and result.produce.failed:
        return EXIT_UNDELIVERED
    return 0


def _save_report(result: Result, path: Path) -> None:
    # Here, so that a run without a report does not load the library that draws.
    from scripts.loading.report import make_report  # noqa: PLC0415

    path.write_text(make_report(result), encoding="utf-8")


def _fail(reason: str, code: int = 1) -> NoReturn:
    print(f"loadgen: {reason}", file=sys.stderr)
    raise SystemExit(code)


if __name__ == "__main__":
    app()
