"""Names for the shell to complete, asked of the broker: quickly, or not at all.

Whatever goes wrong, nothing is offered and nothing is said: the user is in the middle of a line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import typer

from .common import DEFAULT_BOOTSTRAP, reach

if TYPE_CHECKING:
    from ..client.blocking import SyncAdmin

ANSWER_WITHIN_S: Final = 0.5


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    return _starting(context, incomplete, lambda admin: admin.list_topics())


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    return _starting(context, incomplete, lambda admin: [g.group for g in admin.list_groups()])


def _starting(
    context: typer.Context, incomplete: str, names: Callable[[SyncAdmin], list[str]]
) -> list[str]:
    root = context.find_root()
    bootstrap = context.params.get("bootstrap") or root.params.get("bootstrap")
    logging.disable()
    try:
        from ..client.blocking import SyncAdmin  # noqa: PLC0415 - only if a name is asked for

        address = reach(bootstrap or DEFAULT_BOOTSTRAP, timeout_s=ANSWER_WITHIN_S)
        with SyncAdmin(
            address, client_name="seglog-cli", request_timeout_s=ANSWER_WITHIN_S
        ) as admin:
            return sorted(name for name in names(admin) if name.startswith(incomplete))
    except Exception:
        return []  # said above
