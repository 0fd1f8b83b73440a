"""`seglog topics`: create, list, describe, alter and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ..protocol.errors import TopicExists, UnknownTopic
from .common import (
    Bootstrap,
    Output,
    OutputOption,
    Yes,
    confirm,
    counted,
    open_admin,
    say,
    show_json,
    show_rows,
    topic_settings,
)
from .completion import complete_topic

if TYPE_CHECKING:
    from ..protocol.messages import DescribeTopicResponse

topics = typer.Typer(name="topics", no_args_is_help=True, help="Create and look after topics.")

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The topic.", autocompletion=complete_topic)
]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="KEY=VALUE",
        help="A setting, such as retention.ms=3d. May be repeated.",
        show_default=False,
    ),
]


@topics.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new topic.")],
    partitions: Annotated[
        int | None,
        typer.Option(min=1, help="How many. The broker's default.partitions if not given."),
    ] = None,
    config: Config = None,
    if_not_exists: Annotated[
        bool,
        typer.Option("--if-not-exists", help="No error if it is there, whatever its settings."),
    ] = False,
    bootstrap: Bootstrap = "",
) -> None:
    """Create a topic.

    docs/operations.md lists the settings.
    """
    settings = topic_settings(config or ())
    with open_admin(bootstrap) as admin:
        try:
            count = admin.create_topic(name, partitions, settings)
        except TopicExists:
            if not if_not_exists:
                raise
            say(f"{name} is there already")
            return
    say(f"created {name} with {counted(count, 'partition')}")


@topics.command("list")
def list_topics(output: OutputOption = Output.table, bootstrap: Bootstrap = "") -> None:
    """List the topics and how many partitions each has."""
    with open_admin(bootstrap) as admin:
        found = sorted((t.name, len(t.leaders)) for t in admin.metadata().topics)
    if output is Output.json:
        show_json([{"name": name, "partitions": count} for name, count in found])
    else:
        show_rows(["topic", "partitions"], found)


@topics.command()
def describe(name: Name, output: OutputOption = Output.table, bootstrap: Bootstrap = "") -> None:
    """Show a topic's partitions, with their offsets and sizes, and its settings.

    In a pipe, lines of partitions begin with "partition", those of settings with "setting".
    """
    with open_admin(bootstrap) as admin:
        found = admin.describe_topic(name)
    if output is Output.json:
        show_json(_as_json(found))
        return
    show_rows(
        ["", "partition", "log start", "end", "bytes", "segments", "error"],
        [
            ("partition", p.partition, p.log_start, p.durable_end, p.size_bytes, len(p.segments),
             p.error.message if p.error else "")
            for p in found.partitions
        ],
        title=f"{found.name} ({found.id})",
    )  # fmt: skip
    show_rows(
        ["", "setting", "value"],
        [("setting", key, value) for key, value in sorted(found.config.items())],
    )


@topics.command()
def alter(
    name: Name,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="How many in all; never fewer than before.")
    ] = None,
    config: Config = None,
    bootstrap: Bootstrap = "",
) -> None:
    """Add partitions or change settings; the rest stays.

    Keys are spread anew over more partitions: records of one key may then be in two of them.
    """
    if partitions is None and not config:
        raise typer.BadParameter("nothing to change", param_hint="--partitions or --config")
    settings = topic_settings(config or ())
    with open_admin(bootstrap) as admin:
        admin.alter_topic(name, partitions, settings)
    say(f"altered {name}")


@topics.command()
def delete(
    name: Name,
    yes: Yes = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="No error if there is no such topic.")
    ] = False,
    bootstrap: Bootstrap = "",
) -> None:
    """Delete a topic with all its records. Asks first."""
    with open_admin(bootstrap) as admin:
        try:
            partitions = admin.describe_topic(name).partitions
            records = sum(p.durable_end - p.log_start for p in partitions)
            confirm(f"Delete {name} with about {counted(records, 'record')}?", yes)
            admin.delete_topic(name)
        except UnknownTopic:
            if not if_exists:
                raise
            say(f"there is no topic {name}")
            return
    say(f"deleted {name}")


def _as_json(found: DescribeTopicResponse) -> dict[str, object]:
    return {
        "name": found.name,
        "id": found.id,
        "config": found.config,
        "partitions": [
            {
                "partition": p.partition,
                "log_start": p.log_start,
                "durable_end": p.durable_end,
                "log_end": p.log_end,
                "epoch": p.epoch,
                "size_bytes": p.size_bytes,
                "segments": [msgspec.structs.asdict(segment) for segment in p.segments],
                "error": p.error.message if p.error else None,
            }
            for p in found.partitions
        ],
    }
