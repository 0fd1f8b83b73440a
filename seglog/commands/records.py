"""`seglog records`: what is done to records that are there already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..protocol.errors import OffsetOutOfRange
from .common import Bootstrap, Yes, confirm, counted, open_admin, say
from .completion import complete_topic
from .places import Place, find_ranges, find_starts, parse_place

if TYPE_CHECKING:
    from ..client.blocking import SyncAdmin

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
    place = Place("latest") if before == "all" else parse_place(before, "--before")
    if place.kind not in ("offset", "time") and before != "all":
        raise typer.BadParameter(
            f"{before!r} is neither an offset, a time nor all", param_hint="--before"
        )
    with open_admin(bootstrap) as admin:
        ranges = find_ranges(admin, topic, partition)
        if place.kind == "offset" and len(ranges) > 1:
            raise typer.BadParameter(
                f"{topic} has {len(ranges)} partitions: offset {place.number} of which?",
                param_hint="--partition",
            )
        cuts = _cuts(admin, topic, place, ranges)
        gone = sum(cut - ranges[number][0] for number, cut in cuts.items())
        if not cuts:
            say(f"nothing of {topic} lies before that")
            return
        where = counted(len(cuts), "partition")
        confirm(f"Delete about {counted(gone, 'record')} of {topic}, in {where}?", yes)
        for number, cut in cuts.items():
            new_start = admin.delete_records(topic, number, cut)
            say(f"{topic}/{number} starts at offset {new_start}; it was {ranges[number][0]}")


def _cuts(
    admin: SyncAdmin, topic: str, place: Place, ranges: dict[int, tuple[int, int]]
) -> dict[int, int]:
    """The new log start of each partition that loses records."""
    if place.kind == "offset":
        ((number, (start, end)),) = ranges.items()
        if place.number > end:
            raise OffsetOutOfRange(
                f"{topic}/{number} has offsets {start} to {end}, and no {place.number}"
            )
        found = {number: place.number}
    else:
        found = find_starts(admin, topic, place, ranges)
    return {number: cut for number, cut in found.items() if cut > ranges[number][0]}
