"""`seglog records`: what is done to records that are there already."""

from __future__ import annotations

from typing import Annotated

import typer

from .common import Bootstrap, Yes, confirm, reach, say

EVERYTHING = -1  # in place of an offset: what is there when the broker gets the request

records = typer.Typer(name="records", no_args_is_help=True, help="Delete records.")


@records.callback()
def group() -> None:
    """Delete records."""  # a group of one command stays a group by having this


@records.command()
def delete(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[int, typer.Option(min=0, help="Of which partition.")],
    before: Annotated[
        str,
        typer.Option(metavar="OFFSET|all", help="Delete what lies before this offset, or all."),
    ],
    yes: Yes = False,
    bootstrap: Bootstrap = "",
) -> None:
    """Delete the oldest records of a partition: raise its log start. Asks first."""
    offset = _offset(before)
    from ..client.blocking import SyncAdmin  # noqa: PLC0415 - other commands need no client

    with SyncAdmin(reach(bootstrap), client_name="seglog-cli") as admin:
        start = admin.list_offsets(topic, "earliest", [partition])[partition].offset
        what = "all records" if offset == EVERYTHING else f"what lies before offset {offset}"
        confirm(f"Delete {what} of {topic}/{partition}, which starts at {start}?", yes)
        new_start = admin.delete_records(topic, partition, offset)
    say(f"{topic}/{partition} starts at offset {new_start}; it was {start}")


def _offset(text: str) -> int:
    if text == "all":
        return EVERYTHING
    if not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(f"{text!r} is neither an offset nor all", param_hint="--before")
    return int(text)
