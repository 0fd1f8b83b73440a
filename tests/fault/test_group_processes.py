"""Members in processes of their own that are killed, paused and replaced, and a broker that is
killed: every record is handled, none is skipped, and who was away too long commits nothing."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts.ports import kept_port
from seglog import Admin, Producer

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120
SESSION_MS = 5000  # long enough for a busy machine: it is waited for twice
BATCH = 10
COUNT = 200  # records in each partition


class Process:
    """Another Python, and the lines it has said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []
        self._said = asyncio.Event()
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.events.append(json.loads(line))
            self._said.set()

    async def until(self, condition: Callable[[list[dict[str, Any]]], object]) -> None:
        """Until what it has said meets the condition."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition(self.events):
                    self._said.clear()
                    await self._said.wait()
        except TimeoutError:
            raise AssertionError(f"after {self.events[-20:]}") from None

    async def until_said(self, event: str, count: int = 1) -> None:
        await self.until(lambda events: len([e for e in events if e["event"] == event]) >= count)

    def said(self, event: str) -> list[dict[str, Any]]:
        return [each for each in self.events if each["event"] == event]

    @property
    def held(self) -> set[int]:
        held: set[int] = set()
        for each in self.events:
            if each["event"] == "assigned":
                held |= set(each["partitions"])
            elif each["event"] in ("revoked", "lost"):
                held -= set(each["partitions"])
        return held

    async def until_held(self, count: int) -> None:
        await self.until(lambda _: len(self.held) == count)

    def order(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word.encode() + b"\n")

    async def end(self) -> None:
        self.order("stop")
        await self.until_said("closed")
        assert await self.process.wait() == 0
        await self._listening

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        await self._listening


class Group:
    """A broker's process and those of its members."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._broker: asyncio.subprocess.Process | None = None
        self.members: list[Process] = []
        self._port = kept_port()
        self.bootstrap = f"127.0.0.1:{self._port}"

    async def start_broker(self) -> None:
        self._broker = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "seglog", "serve", "--data", str(self._data), "--port",
            str(self._port), "--log-level", "error", stdout=asyncio.subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        assert self._broker.stdout is not None
        line = await self._broker.stdout.readline()
        assert line.startswith(b"listening on "), line

    async def kill_broker(self) -> None:
        assert self._broker is not None
        self._broker.kill()
        await self._broker.wait()

    async def join(self, instance_id: str | None = None, session_ms: int = SESSION_MS) -> Process:
        words = [self.bootstrap, "t", str(session_ms), *([instance_id] if instance_id else [])]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.group_process", *words, cwd=ROOT,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        member = Process(process)
        self.members.append(member)
        await member.until_said("joined")
        return member

    async def close(self) -> None:
        for member in self.members:
            await member.kill()
        if self._broker is not None and self._broker.returncode is None:
            await self.kill_broker()

    # --- records ---

    async def fill(self, partitions: int, count: int = COUNT) -> None:
        async with Admin(self.bootstrap) as admin:
            await admin.create_topic("t", partitions)
        await self.send(partitions, count)

    async def send(self, partitions: int, count: int = COUNT) -> None:
        async with Producer(self.bootstrap) as producer:
            for number in range(partitions):
                for _ in range(0, count, BATCH):
                    await producer.send_batch("t", [b"x"] * BATCH, partition=number)
            await producer.flush()

    async def until_committed(self, partitions: int, count: int) -> None:
        """Until members have said that they committed this offset in each partition."""
        for number in range(partitions):
            for member in self.members:
                if number in member.held:
                    await member.until(
                        lambda events, number=number: any(  # type: ignore[misc]
                            each["event"] == "committed"
                            and (each["partition"], each["next"]) == (number, count)
                            for each in events
                        )
                    )

    def handled(self) -> Counter[tuple[int, int]]:
        """How often each record was handled, by partition and offset."""
        return Counter(
            (each["partition"], offset)
            for member in self.members
            for each in member.said("handled")
            for offset in range(each["first"], each["next"])
        )

    async def bookmarks(self) -> dict[int, int]:
        async with Admin(self.bootstrap) as admin:
            found = await admin.fetch_offsets("g")
        return {name.partition: mark.offset for name, mark in found.items()}


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    async with _group(tmp_path) as opened:
        yield opened


@asynccontextmanager
async def _group(data: Path) -> AsyncIterator[Group]:
    group = Group(data)
    try:
        await group.start_broker()
        yield group
    finally:
        await group.close()


def everything(partitions: int, count: int) -> set[tuple[int, int]]:
    return {(number, offset) for number in range(partitions) for offset in range(count)}


async def test_what_a_killed_member_had_not_committed_is_handled_by_another(group):
    await group.fill(4)
    killed, other = await group.join(), await group.join()
    await killed.until_held(2)
    await other.until_held(2)
    killed.order("hold")
    await killed.until_said("ready to hold")
    await group.send(4)
    await killed.until_said("holding")
    await killed.kill()
    group.members.remove(killed)
    await other.until_held(4)
    await group.until_committed(4, 2 * COUNT)
    group.members.append(killed)

    handled = group.handled()
    assert set(handled) == everything(4, 2 * COUNT)
    # Commits came after each batch, and it had said nothing of the one in its hand.
    assert max(handled.values()) == 1
    assert await group.bookmarks() == dict.fromkeys(range(4), 2 * COUNT)


async def test_a_member_that_slept_past_its_session_commits_nothing(group):
    await group.fill(1)
    sleeper = await group.join()
    await group.until_committed(1, COUNT)
    sleeper.order("hold")
    await sleeper.until_said("ready to hold")
    await group.send(1)
    await sleeper.until_said("holding")
    sleeper.process.send_signal(signal.SIGSTOP)
    other = await group.join()
    await other.until_held(1)
    await other.until(lambda _: any(e["next"] == 2 * COUNT for e in other.said("committed")))

    sleeper.order("go")
    sleeper.process.send_signal(signal.SIGCONT)
    await sleeper.until_said("refused")
    await sleeper.until_said("lost")

    assert await group.bookmarks() == {0: 2 * COUNT}
    assert sleeper.said("refused")[0]["error"] in ("UnknownMember", "NotOwner")
    # What it had buffered it did not hand out any more: only what was in hand was handled twice.
    twice = [place for place, times in group.handled().items() if times > 1]
    held = sleeper.said("holding")[0]
    assert twice == [(0, offset) for offset in range(held["first"], held["next"])]
    assert set(group.handled()) == everything(1, 2 * COUNT)
    # It is a member again, and good for something.
    await other.end()
    await sleeper.until_held(1)
    await group.send(1, BATCH)
    await sleeper.until(
        lambda _: any(e["next"] == 2 * COUNT + BATCH for e in sleeper.said("committed"))
    )


async def test_a_broker_that_dies_in_the_middle_of_a_rebalance_loses_and_doubles_nothing(group):
    await group.fill(4)
    first = await group.join(session_ms=60_000)
    await group.until_committed(4, COUNT)
    first.order("hold")
    await first.until_said("ready to hold")
    await group.send(4)
    await first.until_said("holding")
    second = await group.join(session_ms=60_000)  # the first must give up two, and has not yet

    await group.kill_broker()
    await group.start_broker()
    first.order("go")

    await first.until_held(2)
    await second.until_held(2)
    assert first.held | second.held == set(range(4))
    await group.until_committed(4, 2 * COUNT)
    assert set(group.handled()) == everything(4, 2 * COUNT)
    assert max(group.handled().values()) == 1
    assert not first.said("lost") + first.said("refused") + second.said("lost")
    assert await group.bookmarks() == dict.fromkeys(range(4), 2 * COUNT)


async def test_a_rolling_restart_of_static_members_moves_nothing(group):
    await group.fill(6)
    seats = {name: await group.join(name, session_ms=60_000) for name in ("a", "b", "c")}
    for member in seats.values():
        await member.until_held(2)
    before = {name: member.held for name, member in seats.items()}
    assert set().union(*before.values()) == set(range(6))

    for name in list(seats):
        others = [member for other, member in seats.items() if other != name]
        calls = [moves(member) for member in others]
        await seats[name].end()
        again = seats[name] = await group.join(name, session_ms=60_000)
        await again.until_held(2)
        assert again.held == before[name]
        assert [moves(member) for member in others] == calls

    await group.send(6)
    await group.until_committed(6, 2 * COUNT)
    assert set(group.handled()) == everything(6, 2 * COUNT)


def moves(member: Process) -> list[dict[str, Any]]:
    return member.said("assigned") + member.said("revoked") + member.said("lost")
