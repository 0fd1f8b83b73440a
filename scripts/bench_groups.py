"""Consumer groups: 100 members and 1,000 partitions joining and leaving, and traffic beside them.

    answer   a join that changes the target, against a commit: both are durable when answered, and
             the join computes and saves an assignment besides. The sync is most of either
    calm     from a join or a leave until every partition has its owner again, over the wire, with
             members that give up at once what they are told to
    beside   durable 1 KiB produces and the fetches that wait for them, while one member after the
             other joins and leaves a group of 100, against the same without any group

Members live in a process of their own, as they do in life; on few cores they take time from the
broker and from the measuring side.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Final

import typer
import uvloop

from scripts.figures import Figure, median_ratio, report
from scripts.server_process import Peer, Server
from seglog.protocol import api
from seglog.protocol import group_messages as g
from seglog.protocol import messages as m
from seglog.protocol.batch import encode_batch

GROUP: Final = "bench"
TOPIC: Final = "shared"
PROBED: Final = "probed"
SESSION_MS: Final = 30_000
CALM_TIMEOUT_S: Final = 60
CALM_AIM_MS: Final = 500
LATENCY_AIM: Final = 2.0
PROBES: Final = 300
NOW_US: Final = 1_700_000_000_000_000


class Member:
    """Heartbeats for as long as it runs; gives up at once what it is told to."""

    def __init__(self, crowd: Crowd, peer: Peer) -> None:
        self.crowd = crowd
        self.peer = peer
        self.id = str(uuid.uuid4())
        self.epoch = 0
        self.version = 0
        self.holds: list[g.TopicPartitions] = []
        self.task: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, crowd: Crowd) -> Member:
        member = cls(crowd, await Peer.open(crowd.port, greet=True))
        member.task = asyncio.create_task(member.live())
        return member

    @property
    def load(self) -> int:
        return sum(len(topic.partitions) for topic in self.holds)

    async def live(self) -> None:
        while True:
            await self.beat(SESSION_MS)

    async def beat(self, max_wait_ms: int = 0) -> None:
        answer = await self.peer.ask(
            api.GROUP_HEARTBEAT,
            g.GroupHeartbeatRequest(
                GROUP, self.id, self.epoch, None, SESSION_MS, ["sticky"], [TOPIC], self.holds,
                max_wait_ms, self.version,
            ),
        )  # fmt: skip
        self.epoch, self.version = answer.member_epoch, answer.assignment_version
        self.holds = answer.assignment
        self.crowd.changed.set()

    async def leave(self) -> None:
        if self.task is not None:
            self.task.cancel()
        self.peer.transport.abort()
        async with asyncio.timeout(CALM_TIMEOUT_S):
            peer = await Peer.open(self.crowd.port, greet=True)
            await peer.ask(api.GROUP_LEAVE, g.GroupLeaveRequest(GROUP, self.id, self.epoch))
        peer.transport.abort()


class Crowd:
    """All members of the group."""

    def __init__(self, port: int, partitions: int) -> None:
        self.port = port
        self.partitions = partitions
        self.members: list[Member] = []
        self.changed = asyncio.Event()

    async def join(self, count: int = 1) -> None:
        self.members += await asyncio.gather(*(Member.start(self) for _ in range(count)))

    async def leave(self) -> None:
        await self.members.pop(0).leave()

    def is_calm(self) -> bool:
        loads = [member.load for member in self.members]
        return sum(loads) == self.partitions and max(loads) - min(loads) <= 1

    async def calm(self) -> None:
        async with asyncio.timeout(CALM_TIMEOUT_S):
            while not self.is_calm():
                self.changed.clear()
                await self.changed.wait()

    async def end(self) -> None:
        while self.members:
            await self.leave()


async def create(port: int, topic: str, partitions: int) -> None:
    peer = await Peer.open(port, greet=True)
    await peer.ask(api.CREATE_TOPIC, m.CreateTopicRequest(topic, partitions))
    peer.transport.abort()


# --- joins and leaves ----------------------------------------------------------------------------


async def bench_moves(port: int, members: int, partitions: int, rounds: int) -> list[Figure]:
    crowd = Crowd(port, partitions)
    began = time.perf_counter()
    await crowd.join(members)
    await crowd.calm()
    start_ms = (time.perf_counter() - began) * 1000
    join_ms, leave_ms, answer_ms, commit_ms = [], [], [], []
    for _ in range(rounds):
        began = time.perf_counter()
        await crowd.join()
        await crowd.calm()
        join_ms.append((time.perf_counter() - began) * 1000)
        began = time.perf_counter()
        await crowd.leave()
        await crowd.calm()
        leave_ms.append((time.perf_counter() - began) * 1000)
        answer, commit = await time_answers(crowd)
        answer_ms.append(answer)
        commit_ms.append(commit)
    await crowd.end()
    group = f"{members} members, {partitions:,} partitions"
    note = f"{median(answer_ms):.2f} ms against {median(commit_ms):.2f}"
    ratio = median_ratio(answer_ms, commit_ms)
    return [
        Figure(group, "a join's answer, times a commit's", ratio, "×", note=note),
        Figure(group, f"{members} joins at once, until calm", start_ms, "ms"),
        Figure.at_most(group, "a join, until calm", median(join_ms), CALM_AIM_MS, "ms", ""),
        Figure.at_most(group, "a leave, until calm", median(leave_ms), CALM_AIM_MS, "ms", ""),
    ]


async def time_answers(crowd: Crowd) -> tuple[float, float]:
    """Milliseconds until a join is answered, and until a commit in another group is."""
    peer = await Peer.open(crowd.port, greet=True)
    commit = g.CommitOffsetsRequest("other", "", 0, [g.OffsetCommit(TOPIC, 0, 1)])
    began = time.perf_counter()
    await peer.ask(api.COMMIT_OFFSETS, commit)
    committed = time.perf_counter()
    member = Member(crowd, peer)
    await member.beat()
    joined = time.perf_counter()
    await member.leave()
    await crowd.calm()
    return (joined - committed) * 1000, (committed - began) * 1000


# --- traffic beside it ---------------------------------------------------------------------------


def churn(port: int, members: int, partitions: int, is_calm: Event, is_over: Event) -> None:
    """A process of members: one joins, one leaves, again and again."""

    async def run() -> None:
        crowd = Crowd(port, partitions)
        await crowd.join(members)
        await crowd.calm()
        is_calm.set()
        while not is_over.is_set():
            await crowd.join()
            await crowd.calm()
            await crowd.leave()
            await crowd.calm()
            await asyncio.sleep(0.05)
        await crowd.end()

    uvloop.run(run())


@contextmanager
def churning(port: int, members: int, partitions: int) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    is_calm, is_over = context.Event(), context.Event()
    process = context.Process(target=churn, args=(port, members, partitions, is_calm, is_over))
    process.start()
    try:
        if not is_calm.wait(CALM_TIMEOUT_S):
            raise RuntimeError("the members did not come to rest")
        yield
    finally:
        is_over.set()
        process.join(CALM_TIMEOUT_S)


async def probe(port: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each produce, and of the fetch that waits for it, one after the other."""
    writer, reader = await Peer.open(port, greet=True), await Peer.open(port, greet=True)
    batch = memoryview(encode_batch([bytes(1024)], timestamps=NOW_US))
    produce = m.ProduceRequest([m.ProduceBatch(PROBED, 0, batch)])
    produces, fetches = [], []
    (result,) = (await writer.ask(api.PRODUCE, produce)).results
    offset = result.base_offset + 1
    for number in range(PROBES):
        wanted = m.FetchPartition(PROBED, 0, offset + number, 1 << 20)
        fetching = asyncio.create_task(
            reader.ask(api.FETCH, m.FetchRequest(10_000, 1, 1 << 20, [wanted]))
        )
        await asyncio.sleep(0.001)
        began = time.perf_counter()
        await writer.ask(api.PRODUCE, produce)
        produces.append((time.perf_counter() - began) * 1000)
        await fetching
        fetches.append((time.perf_counter() - began) * 1000)
    for peer in (writer, reader):
        peer.transport.abort()
    return produces, fetches


def bench_beside(port: int, members: int, partitions: int, rounds: int) -> Iterator[Figure]:
    alone: dict[str, list[list[float]]] = {"produce": [], "fetch": []}
    beside: dict[str, list[list[float]]] = {"produce": [], "fetch": []}
    for _ in range(rounds):
        for name, latencies in zip(alone, uvloop.run(probe(port)), strict=True):
            alone[name].append(latencies)
        with churning(port, members, partitions):
            for name, latencies in zip(beside, uvloop.run(probe(port)), strict=True):
                beside[name].append(latencies)
    for name in alone:
        group = f"{name} of 1 KiB beside a group that never rests"
        for label, percent in (("p50", 50), ("p99", 99)):
            without, with_group = (
                [quantiles(latencies, n=100)[percent - 1] for latencies in side[name]]
                for side in (alone, beside)
            )
            note = f"{median(with_group):.2f} ms against {median(without):.2f}"
            ratio = median_ratio(with_group, without)
            if percent == 50:
                yield Figure.at_most(group, f"{label}, times alone", ratio, LATENCY_AIM, "×", note)
            else:  # a tail of a few requests on a shared machine: for the reader
                yield Figure(group, f"{label}, times alone", ratio, "×", note=note)


def main(
    folder: Annotated[
        Path | None,
        typer.Option(help="On the disk to measure; the system's temporary one if not given."),
    ] = None,
    members: Annotated[int, typer.Option(min=2)] = 100,
    partitions: Annotated[int, typer.Option(min=1)] = 1_000,
    rounds: Annotated[int, typer.Option(min=1, help="How often each side takes its turn.")] = 5,
    json: Annotated[Path | None, typer.Option(help="Save the figures here as well.")] = None,
) -> None:
    """Takes about half a minute, and cleans up."""
    with tempfile.TemporaryDirectory(dir=folder) as data:
        broker = Server("-m", "seglog", "serve", "--data", data, "--port", "0")
        try:
            uvloop.run(create(broker.port, TOPIC, partitions))
            uvloop.run(create(broker.port, PROBED, 1))
            figures = uvloop.run(bench_moves(broker.port, members, partitions, rounds))
            figures += bench_beside(broker.port, members, partitions, rounds)
        finally:
            broker.stop()
    report(figures, "scripts/bench groups", json)


if __name__ == "__main__":
    typer.run(main)
