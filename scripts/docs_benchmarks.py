"""The part of docs/benchmarks.md that is made from docs/benchmarks.json, a result of
`scripts/bench peers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from scripts.peers.report import RESULT, STRENGTHS, cell, loss_lines, missing_lines
from scripts.peers.results import Result, load

#: A load above this share of the cores, before anything was started, is somebody else's work.
BUSY_SHARE: Final = 0.25


def peers_report() -> str:
    return "\n\n".join(sections(load(RESULT)))


def sections(result: Result) -> Iterator[str]:
    """The whole report, paragraph by paragraph."""
    yield from _circumstances(result)
    for strength, title in STRENGTHS.items():
        rows = [row for row in result.rows if row.strength == strength]
        if rows:
            yield f"### {title}"
            titles = [system.title for system in result.systems.values()]
            lines = [f"| | {' | '.join(titles)} |", f"|---|{'---:|' * len(titles)}"]
            for row in rows:
                shown = " | ".join(cell(row, name) for name in result.systems)
                lines.append(f"| {row.title}, {row.unit} | {shown} |")
            yield "\n".join(lines)
    yield from _listed("Not measured", [*missing_lines(result.absent), *result.failures()])
    yield from _listed("Where Seglog is behind, and why", list(loss_lines(result)))
    yield "### How each was run"
    for system in result.systems.values():
        yield f"**{system.title}**, broker {system.server_version}, client {system.client_version}"
        yield "\n".join(
            f"- {kind}: {'; '.join(settings)}" for kind, settings in system.settings.items()
        )


def _circumstances(result: Result) -> Iterator[str]:
    machine = result.machine
    yield f"    {result.command}"
    yield (
        f"{result.began}, {result.took_s / 60:.0f} minutes; {machine.cpu}, {machine.cores} cores, "
        f"{machine.memory_gb:g} GB, {machine.kernel}, {machine.disk} (`fdatasync` of 4 KiB: "
        f"{machine.fdatasync_ms:.2g} ms), {machine.python}. {result.rounds} "
        f"round{'s' * (result.rounds > 1)} of {result.seconds:g} s a cell."
    )
    if machine.load_average is not None and machine.load_average > BUSY_SHARE * machine.cores:
        yield (
            f"**The machine was busy with other work when it began (load average "
            f"{machine.load_average:g}): the figures say little.**"
        )
    if result.is_quick:
        yield "**A quick run, to show the form: its short rounds say little.**"


def _listed(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield f"### {title}"
        yield "\n".join(f"- {line}" for line in lines)


GENERATED: Final[dict[str, Callable[[], str]]] = {"benchmarks-peers": peers_report}
