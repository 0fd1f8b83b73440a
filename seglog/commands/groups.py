"""`seglog groups`: who reads what, how far behind they are, and moving their bookmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..places import Last
from ..protocol.errors import UnknownGroup
from .common import (
    Bootstrap,
    Output,
    OutputOption,
    Yes,
    confirm,
    counted,
    on_terminal,
    open_admin,
    say,
    show_json,
    show_rows,
)
from .completion import complete_group, complete_topic
from .group_views import described, described_json, listed, listed_json
from .places import parse_place
from .watching import Count, Every, Round, Watch, watch_rounds

if TYPE_CHECKING:
    from ..client.blocking import SyncAdmin
    from ..client.group_lag import GroupDescription
    from ..client.group_reset import OffsetChange, ResetTo

groups = typer.Typer(
    name="groups", no_args_is_help=True, help="Look at consumer groups, and move their bookmarks."
)

Name = Annotated[
    str, typer.Argument(metavar="GROUP", help="The group.", autocompletion=complete_group)
]


@groups.command("list")
def list_groups(
    watch: Watch = False,
    every: Every = 2.0,
    count: Count = None,
    output: OutputOption = Output.table,
    bootstrap: Bootstrap = "",
) -> None:
    """List the groups: state, members, and lag in records and in seconds.

    The lag of a group is all that it has not read, and the longest that one of these records has
    waited. In a pipe: group, state, members, records, seconds, partitions without a known lag.
    """
    with open_admin(bootstrap) as admin:

        def look() -> Round:
            found = _describe_all(admin)
            return Round([listed(found)], listed_json(found))

        watch_rounds(look, watch=watch, every_s=every, count=count, output=output)


@groups.command()
def describe(
    group: Name,
    watch: Watch = False,
    every: Every = 2.0,
    count: Count = None,
    output: OutputOption = Output.table,
    bootstrap: Bootstrap = "",
) -> None:
    """Show a group's members, and its bookmark and lag in each partition.

    In a pipe, lines begin with "group", "member" or "partition". The lag in seconds is how long the
    oldest record that the group has not read has been there. "-": nothing was committed yet, or
    nobody owns the partition.
    """
    with open_admin(bootstrap) as admin:

        def look() -> Round:
            found = admin.describe_group(group)
            return Round(described(found), described_json(found))

        watch_rounds(look, watch=watch, every_s=every, count=count, output=output)


@groups.command()
def reset(
    group: Name,
    to: Annotated[
        str | None,
        typer.Option(metavar="earliest|latest|OFFSET|TIME", help="Move there.", show_default=False),
    ] = None,
    by: Annotated[
        int | None,
        typer.Option(metavar="N", help="Move so many records on; -N: back.", show_default=False),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="Move to where this group is.",
            show_default=False,
            autocompletion=complete_group,
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this topic. May be repeated. All that the group has read, if none is given.",
            show_default=False,
            autocompletion=complete_topic,
        ),
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC/N",
            help="Only this partition. May be repeated.",
            show_default=False,
        ),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it, after asking. Without it, nothing changes.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it, and do not ask.")] = False,
    output: OutputOption = Output.table,
    bootstrap: Bootstrap = "",
) -> None:
    """Move the bookmarks of a group: first shows what that would do.

    The group must have no members then. A target outside of what a log has becomes its start or its
    end. In a pipe: topic, partition, bookmark before ("-": none), bookmark after, difference.
    """
    target = _target(to, by, like)
    partitions = [_partition(text) for text in partition or ()] or None
    with open_admin(bootstrap) as admin:

        def change(dry_run: bool) -> list[OffsetChange]:
            return admin.reset_offsets(
                group, target, topics=topic or None, partitions=partitions, dry_run=dry_run
            )

        changes = change(dry_run=True)
        moved = [each for each in changes if each.difference != 0]
        _show_changes(changes, output)
        if not (execute or yes):
            say(
                f"{counted(len(moved), 'bookmark')} would move; nothing was changed. "
                "Add --execute to do it"
            )
            return
        if not moved:
            say("every bookmark is there already")
            return
        confirm(f"Move {counted(len(moved), 'bookmark')} of {group}?", yes)
        done = [each for each in change(dry_run=False) if each.difference != 0]
    say(f"moved {counted(len(done), 'bookmark')} of {group}")


@groups.command()
def delete(
    group: Name,
    yes: Yes = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="No error if there is no such group.")
    ] = False,
    bootstrap: Bootstrap = "",
) -> None:
    """Forget a group and its bookmarks. Asks first. It must have no members."""
    with open_admin(bootstrap) as admin:
        try:
            marks = len(admin.fetch_offsets(group))
            confirm(f"Delete {group} with {counted(marks, 'bookmark')}?", yes)
            admin.delete_group(group)
        except UnknownGroup:
            if not if_exists:
                raise
            say(f"there is no group {group}")
            return
    say(f"deleted {group}")


def _describe_all(admin: SyncAdmin) -> list[GroupDescription]:
    found = []
    for listing in sorted(admin.list_groups(), key=lambda each: each.group):
        try:
            found.append(admin.describe_group(listing.group))
        except UnknownGroup:
            continue  # deleted since it was listed
    return found


def _target(to: str | None, by: int | None, like: str | None) -> ResetTo:
    if (to is not None) + (by is not None) + (like is not None) != 1:
        raise typer.BadParameter("give one of them", param_hint="--to, --by or --like")
    from ..client.group_reset import SameAs, Shift  # noqa: PLC0415 - other commands need no client

    if by is not None:
        return Shift(by)
    if like is not None:
        return SameAs(like)
    place = parse_place(to or "", "--to")
    if isinstance(place, Last):
        raise typer.BadParameter(
            f"{to!r} cannot be a place here; --by -N goes back from the bookmark",
            param_hint="--to",
        )
    return place


def _partition(text: str) -> tuple[str, int]:
    topic, slash, number = text.rpartition("/")
    if not (slash and topic and number.isascii() and number.isdigit()):
        raise typer.BadParameter(f"{text!r} is not TOPIC/N", param_hint="--partition")
    return topic, int(number)


def _show_changes(changes: list[OffsetChange], output: Output) -> None:
    if output is Output.json:
        rows: list[dict[str, Any]] = [
            {**each._asdict(), "difference": each.difference} for each in changes
        ]
        show_json(rows)
        return
    show_rows(
        ["topic", "partition", "from", "to", "difference"],
        [
            (
                each.topic,
                each.partition,
                "-" if each.from_offset is None else each.from_offset,
                each.to_offset,
                "-" if each.difference is None else _signed(each.difference),
            )
            for each in changes
        ],
    )


def _signed(number: int) -> str:
    return f"{number:+,}" if on_terminal() else str(number)
