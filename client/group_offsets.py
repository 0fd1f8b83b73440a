"""A group's committed offsets (bookmarks), asked for and written; for members and for tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple, TypeVar

from ..protocol import api
from ..protocol.constants import MAX_ARRAY_LENGTH, NO_MEMBER, NO_OFFSET, UNKNOWN_EPOCH
from ..protocol.errors import BadConfig
from ..protocol.group_messages import (
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    CommittedOffset,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    OffsetCommit,
    TopicPartitions,
)
from ..protocol.times import to_datetime
from .cluster import Cluster
from .metadata import TopicPartition

#: What to commit: the offset of the next record to read, perhaps with a text of one's own.
Offsets = Mapping[tuple[str, int], int | tuple[int, str]]

T = TypeVar("T")


class Bookmark(NamedTuple):
    """A committed offset: of the next record to read."""

    offset: int
    metadata: str
    committed_at: datetime
    log_epoch: int = UNKNOWN_EPOCH


class Identity(NamedTuple):
    """Who commits."""

    member_id: str = NO_MEMBER
    member_epoch: int = 0


NOBODY: Final = Identity()


async def fetch_bookmarks(
    cluster: Cluster, group: str, names: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Bookmark]:
    """Of these partitions, or of all (None), those that have one."""
    if names is None:
        return await _fetch(cluster, group, None)
    found: dict[TopicPartition, Bookmark] = {}
    for chunk in _chunks(list(names)):
        found |= await _fetch(cluster, group, grouped(chunk))
    return found


async def _fetch(
    cluster: Cluster, group: str, partitions: list[TopicPartitions] | None
) -> dict[TopicPartition, Bookmark]:
    request = FetchOffsetsRequest(group, partitions)
    response: FetchOffsetsResponse = await cluster.retry(
        lambda: cluster.request_to_any(api.FETCH_OFFSETS, request)
    )
    return {
        TopicPartition(each.topic, each.partition): _bookmark(each)
        for each in response.offsets
        if each.offset != NO_OFFSET
    }


def _bookmark(found: CommittedOffset) -> Bookmark:
    committed_at = to_datetime(found.commit_time_ms * 1000)
    return Bookmark(found.offset, found.metadata, committed_at, found.log_epoch)


async def write_bookmarks(
    cluster: Cluster,
    group: str,
    commits: Sequence[OffsetCommit],
    who: Callable[[], Identity] = lambda: NOBODY,
    timeout_s: float | None = None,
) -> None:
    """Durable when it returns. What refuses one partition is raised after all were tried."""
    refusal = None
    for chunk in _chunks(commits):

        async def send(chunk: Sequence[OffsetCommit] = chunk) -> CommitOffsetsResponse:
            # Asked for each time: while a commit is tried again, the epoch may go on.
            request = CommitOffsetsRequest(group, *who(), list(chunk))
            response: CommitOffsetsResponse = await cluster.request_to_any(
                api.COMMIT_OFFSETS, request
            )
            return response

        response = await cluster.retry(send, timeout_s=timeout_s)
        errors = [result.error for result in response.results if result.error is not None]
        refusal = refusal or next(iter(errors), None)
    if refusal is not None:
        raise refusal.to_exception()


def to_commits(offsets: Offsets) -> list[OffsetCommit]:
    """What an application asks to commit, checked."""
    commits = []
    for (topic, partition), value in offsets.items():
        offset, metadata = (value, "") if isinstance(value, int) else value
        if offset < 0:
            raise BadConfig(f"commit of offset {offset} for {topic}/{partition}")
        commits.append(OffsetCommit(topic, partition, offset, metadata))
    return commits


def grouped(names: Iterable[TopicPartition]) -> list[TopicPartitions]:
    """By topic, sorted, as requests have them."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(names):
        topics.setdefault(topic, []).append(number)
    return [TopicPartitions(topic, numbers) for topic, numbers in topics.items()]


def flat(topics: Iterable[TopicPartitions]) -> set[TopicPartition]:
    """The way back."""
    return {TopicPartition(each.topic, number) for each in topics for number in each.partitions}


def _chunks(items: Sequence[T]) -> Iterable[Sequence[T]]:
    for start in range(0, len(items), MAX_ARRAY_LENGTH):
        yield items[start : start + MAX_ARRAY_LENGTH]
