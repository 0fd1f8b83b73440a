"""The paths of consumer groups: list, describe with lag, bookmarks, reset, delete."""

from __future__ import annotations

from fastapi import APIRouter, Response

from .group_models import (
    BookmarksOut,
    CommitIn,
    GroupOut,
    GroupsOut,
    ResetIn,
    ResetOut,
    bookmarks_out,
    group_out,
)
from .models import GroupPath
from .state import ANY_PROBLEM, CLOSED_QUERY, PREFIX, GatewayState, json_response

router = APIRouter(prefix=PREFIX, tags=["groups"], responses=ANY_PROBLEM, dependencies=CLOSED_QUERY)


@router.get("/groups", response_model=GroupsOut)
async def list_groups(gateway: GatewayState) -> Response:
    """All groups."""
    found = await (await gateway.backend.admin()).list_groups()
    return json_response(
        {
            "groups": [
                {
                    "group": each.group,
                    "state": each.state,
                    "members": each.members,
                    "assignor": each.assignor,
                }
                for each in found
            ]
        }
    )


@router.get("/groups/{group}", response_model=GroupOut)
async def describe_group(group: GroupPath, gateway: GatewayState) -> Response:
    """Members, bookmarks, and lag in records and in seconds."""
    return json_response(group_out(await (await gateway.backend.admin()).describe_group(group)))


@router.delete("/groups/{group}", status_code=204, response_class=Response)
async def delete_group(group: GroupPath, gateway: GatewayState) -> Response:
    """Forget a group without members, and its bookmarks; 409 where it has members."""
    await (await gateway.backend.admin()).delete_group(group)
    return Response(status_code=204)


@router.get("/groups/{group}/offsets", response_model=BookmarksOut)
async def list_bookmarks(group: GroupPath, gateway: GatewayState) -> Response:
    """The committed offsets; of a group that nobody knows, none."""
    found = await (await gateway.backend.admin()).fetch_offsets(group)
    return json_response(bookmarks_out(group, found))


@router.post("/groups/{group}/offsets", response_model=BookmarksOut)
async def commit_offsets(group: GroupPath, body: CommitIn, gateway: GatewayState) -> Response:
    """Commit offsets, each of the next record to read; durable when it is answered.

    409 while the group has members: then they commit. Answers with the bookmarks of these
    partitions.
    """
    admin = await gateway.backend.admin()
    offsets = {(each.topic, each.partition): (each.offset, each.metadata) for each in body.offsets}
    await admin.commit_offsets(group, offsets)
    return json_response(bookmarks_out(group, await admin.fetch_offsets(group, list(offsets))))


@router.post("/groups/{group}/reset", response_model=ResetOut)
async def reset_offsets(group: GroupPath, body: ResetIn, gateway: GatewayState) -> Response:
    """Move bookmarks; unless `dry_run` is false, only tell what that would change."""
    admin = await gateway.backend.admin()
    partitions = body.partitions
    changes = await admin.reset_offsets(
        group,
        body.target(),
        topics=body.topics,
        partitions=None if partitions is None else [(p.topic, p.partition) for p in partitions],
        dry_run=body.dry_run,
    )
    shown = [change._asdict() for change in changes]
    return json_response({"group": group, "dry_run": body.dry_run, "changes": shown})
