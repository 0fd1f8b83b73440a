"""`seglog records`: what is done to records that are there already."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ..places import Place, out_of_range
from .common import Bootstrap, Yes, confirm, counted, open_admin, say
from .completion import complete_topic
from .places import find_log_ends, find_offsets, parse_place

if TYPE_CHECKING:
    from ..client.blocking import SyncAdmin
    from ..client.log_ends import LogEnds

records = typer.Typer(name="records", no_args_is_help=True, help="Delete records.")


@records.callback()
def group() -> None:
    """Delete records."""  # a group of one command stays a group by having this


@records.command()
def delete(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topic)],
    before: Annotated[
        str,
        typer.Option(
            metavar="OFFSET|TIME|all",
            help="Delete what lies before this offset or time, or all that is there now.",
        ),
    ],
    partition: Annotated[
        list[int] | None,
        typer.Option(
            min=0,
            help="Only of this one. May be repeated. All partitions, if none is given.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = "",
) -> None:
    """Delete the oldest records of partitions: raise their log start. Asks first.

    An offset is one of a single partition: where there are several, say which.
    """
    place = "latest" if before == "all" else parse_place(before, "--before")
    if before != "all" and not isinstance(place, int | datetime):
        raise typer.BadParameter(
            f"{before!r} is neither an offset, a time nor all", param_hint="--before"
        )
    with open_admin(bootstrap) as admin:
        log_ends = find_log_ends(admin, topic, partition)
        if isinstance(place, int) and len(log_ends) > 1:
            raise typer.BadParameter(
                f"{topic} has {len(log_ends)} partitions: offset {place} of which?",
                param_hint="--partition",
            )
        cuts = _cuts(admin, topic, place, log_ends)
        gone = sum(cut - log_ends[number].log_start for number, cut in cuts.items())
        if not cuts:
            say(f"nothing of {topic} lies before that")
            return
        where = counted(len(cuts), "partition")
        confirm(f"Delete about {counted(gone, 'record')} of {topic}, in {where}?", yes)
        for number, cut in cuts.items():
            new_start = admin.delete_records(topic, number, cut)
            old_start = log_ends[number].log_start
            say(f"{topic}/{number} starts at offset {new_start}; it was {old_start}")


def _cuts(
    admin: SyncAdmin, topic: str, place: Place, log_ends: dict[int, LogEnds]
) -> dict[int, int]:
    """The new log start of each partition that loses records."""
    found = find_offsets(admin, topic, place, log_ends)
    for number, cut in found.items():
        if isinstance(place, int) and cut > log_ends[number].durable_end:
            raise out_of_range(topic, number, cut, log_ends[number])
    return {number: cut for number, cut in found.items() if cut > log_ends[number].log_start}
