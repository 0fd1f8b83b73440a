"""Seglog beside Redis Streams, NATS JetStream and Kafka: the same records, machine and run.

Every peer that is found is started on a free port of the loopback in a temporary folder, takes its
turns with the others, and is stopped at the end. One that is missing is named, with the command
that would bring it; `--install` runs these commands. The figures are ratios: above 1, Seglog is
the better one. docs/benchmarks.md shows a result, and `--write-docs RESULT` puts one there.
"""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from scripts.peers import conduct
from scripts.peers.conduct import Options
from scripts.peers.report import missing_lines, show, write_docs
from scripts.peers.results import SEGLOG, load, save
from scripts.peers.rows import GROUPS
from scripts.peers.systems import SYSTEMS, install

PEERS = [name for name in SYSTEMS if name != SEGLOG]


def main(
    quick: Annotated[bool, typer.Option("--quick", help="A look: one round, seconds a cell.")] = (
        False
    ),
    peer: Annotated[
        list[str] | None, typer.Option(help=f"Only this; may be repeated: {', '.join(PEERS)}.")
    ] = None,
    row: Annotated[
        list[str] | None, typer.Option(help=f"Only this; may be repeated: {', '.join(GROUPS)}.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="How often all take a turn.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Of one turn.")] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="On the disk to measure; the system's temporary one if not given."),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Save the result here.")] = None,
    do_install: Annotated[
        bool, typer.Option("--install", help="Bring what is missing first (apt, Maven, Go).")
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option("--write-docs", help="Measure nothing: put this result into the docs."),
    ] = None,
) -> None:
    """Takes about 20 minutes with all peers on two cores; two or three with --quick."""
    console = Console()
    if write is not None:
        write_docs(load(write), console)
        return
    peers, groups = _chosen(peer, PEERS, "peer"), _chosen(row, list(GROUPS), "row")
    if do_install:
        install({SYSTEMS[name].server for name in peers})
    scale = conduct.QUICK if quick else conduct.FULL
    scale = scale._replace(rounds=rounds or scale.rounds, seconds=seconds or scale.seconds)
    for line in missing_lines(conduct.find_absent(peers)):
        console.print(line, style="yellow", soft_wrap=True)
    # Ended from outside, it must stop its brokers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    command = repeatable(sys.argv[1:])
    options = Options(peers, groups, scale, quick, command, folder)
    result = conduct.conduct(options, console)
    if json is not None:
        save(result, json)
    show(result, console)
    if result.failures():
        raise typer.Exit(1)


def repeatable(arguments: list[str]) -> str:
    """The command as a reader would repeat it: without the files and folders of one machine."""
    kept = []
    words = iter(arguments)
    for word in words:
        if word in {"--json", "--folder"}:
            next(words, None)
        elif not word.startswith(("--json=", "--folder=")):
            kept.append(word)
    return shlex.join(["scripts/bench", *kept])


def _chosen(wanted: list[str] | None, known: list[str], what: str) -> list[str]:
    for name in wanted or ():
        if name not in known:
            raise typer.BadParameter(f"{what} {name!r}: there are {', '.join(known)}")
    return [name for name in known if not wanted or name in wanted]
