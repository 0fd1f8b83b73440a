"""Staging and committing through the client: in time, again, and around a broker that goes away."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from seglog import SyncAdmin
from seglog.client.blocking_transactions import SyncTransactions
from seglog.client.transactions import Target, Transactions
from seglog.protocol import errors
from seglog.protocol.batch import encode_batch
from seglog.server.transactions import MAX_PUBLISHING

from tests.broker_server import BrokerServer
from tests.brokers import NOON_US, RawClient, running_broker
from tests.proxy import Plan, running_proxy


def batch(*values: bytes) -> bytearray:
    return encode_batch(values, timestamps=NOON_US)


async def test_a_step_is_staged_in_order_and_committed_once(tmp_path):
    async with (
        running_broker(tmp_path) as broker,
        await RawClient.open(broker.port) as reader,
        Transactions(f"127.0.0.1:{broker.port}") as client,
    ):
        await reader.create("out", 2)
        assert await client.partition_count("out") == 2
        assert await client.last_step("job") == -1
        batches = [Target("out", 0, batch(b"a")), Target("out", 1, batch(b"b")),
                   Target("out", 0, batch(b"c"))]  # fmt: skip
        positions = await client.stage("job", 0, batches)
        assert len(positions) == 3
        assert await client.commit("job", 0, positions) == (False, 0)
        assert await client.commit("job", 0, positions) == (True, 0)
        assert await reader.values("out", 0) == [b"a", b"c"]
        assert await client.last_step("job") == 0
        with pytest.raises(errors.StepCommitted):
            await client.stage("job", 0, batches)
        with pytest.raises(errors.UnknownTopic):
            await client.partition_count("nowhere")
        with pytest.raises(errors.LimitExceeded, match="larger batches, or write to fewer"):
            await client.commit("job", 1, range(100_001))


async def test_answers_that_are_lost_change_nothing(tmp_path):
    """Every connection is cut soon after its hello, at another byte each time."""
    async with running_broker(tmp_path) as broker, await RawClient.open(broker.port) as reader:
        await reader.create("out")
        async with (
            running_proxy(f"127.0.0.1:{broker.port}") as proxy,
            Transactions(proxy.bootstrap) as client,
        ):
            await client.last_step("job")
            hello_bytes = proxy.bytes_to_client
            proxy.plan = lambda number: Plan(to_client=hello_bytes + number % 20)
            proxy.cut_all()
            for step in range(20):
                positions = await client.stage("job", step, [Target("out", 0, batch(b"%d" % step))])
                await client.commit("job", step, positions)
            assert proxy.connections > 20
        assert await reader.values("out") == [b"%d" % step for step in range(20)]


def test_a_blocking_client_waits_for_a_broker_that_comes_back(tmp_path):
    with BrokerServer(tmp_path) as broker, SyncTransactions(broker.bootstrap) as client:
        with SyncAdmin(broker.bootstrap) as admin:
            admin.create_topic("out")
        (first,) = client.stage("job", 0, [Target("out", 0, batch(b"a"))])
        with broker.away(0.5):
            staging = client.begin_stage("job", 0, [Target("out", 0, batch(b"b"))])
            (second,) = staging.result(50)
        with broker.away(0.5):
            assert not client.commit("job", 0, [first, second]).was_done
        assert client.last_step("job") == 0


async def test_a_broker_that_stays_away_is_given_up_in_time(tmp_path):
    async with Transactions("127.0.0.1:1", retry_timeout_s=0.2) as client:
        with pytest.raises(errors.NoBroker):
            await client.last_step("job")


async def test_a_large_step_may_take_longer_than_a_request(tmp_path):
    """The broker is there, and busy with what was decided: the client asks again, and waits."""
    timeouts: dict[str, Any] = {"request_timeout_s": 0.5, "retry_timeout_s": 5}
    async with (
        running_broker(tmp_path) as broker,
        await RawClient.open(broker.port) as reader,
        Transactions(f"127.0.0.1:{broker.port}", **timeouts) as client,
    ):
        await reader.create("out")
        positions = await client.stage("job", 0, [Target("out", 0, batch(b"a"))])
        async with AsyncExitStack() as busy:
            for _ in range(MAX_PUBLISHING):
                await busy.enter_async_context(broker.transactions._publishing)
            committing = asyncio.create_task(client.commit("job", 0, positions))
            while len(broker.transactions._commits) < 5:  # noqa: ASYNC110 - it has no event for it
                await asyncio.sleep(0)
        assert await committing == (True, 0)
        assert await reader.values("out") == [b"a"]


async def test_a_step_that_takes_too_long_is_given_up(tmp_path):
    timeouts: dict[str, Any] = {
        "request_timeout_s": 1,
        "retry_timeout_s": 1,
        "commit_timeout_s": 1.5,
    }
    async with (
        running_broker(tmp_path) as broker,
        await RawClient.open(broker.port) as reader,
        Transactions(f"127.0.0.1:{broker.port}", **timeouts) as client,
    ):
        await reader.create("out")
        async with AsyncExitStack() as busy:
            for _ in range(MAX_PUBLISHING):
                await busy.enter_async_context(broker.transactions._publishing)
            with pytest.raises(errors.RequestTimeout):
                await client.commit("job", 0, [])
