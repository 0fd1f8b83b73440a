"""One connection, and the cluster of them: requests in flight, cut off, cancelled, tried again."""

import asyncio

import pytest

from seglog.client.cluster import Cluster
from seglog.client.connection import Connection
from seglog.client.embedded import embedded
from seglog.client.metadata import Address, parse_bootstrap
from seglog.protocol import api, errors
from seglog.protocol import messages as m

from tests.proxy import running_proxy


@pytest.fixture
async def broker():
    async with embedded() as running:
        yield running


def open_connection(bootstrap, **options):
    host, _, port = bootstrap.rpartition(":")
    return Connection.open(host, int(port), **options)


async def test_a_cancelled_request_leaves_the_connection_usable(broker):
    async with running_proxy(broker.bootstrap) as proxy:
        connection = await open_connection(proxy.bootstrap)
        proxy.open_to_client.clear()
        asked = asyncio.ensure_future(connection.request(api.METADATA, m.MetadataRequest()))
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        proxy.open_to_client.set()
        assert await connection.request(api.METADATA, m.MetadataRequest())
        await connection.close()


async def test_every_waiting_request_is_told_that_the_connection_is_lost(broker):
    async with running_proxy(broker.bootstrap) as proxy:
        connection = await open_connection(proxy.bootstrap)
        proxy.open_to_client.clear()
        asked = [connection.request(api.METADATA, m.MetadataRequest()) for _ in range(5)]
        waiting = asyncio.gather(*asked, return_exceptions=True)
        await asyncio.sleep(0)
        proxy.cut_all()
        assert [type(error) for error in await waiting] == [errors.ConnectionLost] * 5
        assert not connection.is_open
        with pytest.raises(errors.ConnectionLost):
            await connection.request(api.METADATA, m.MetadataRequest())
        await connection.close()
        proxy.open_to_client.set()


async def test_a_broker_that_does_not_answer_is_given_up(broker):
    async with running_proxy(broker.bootstrap) as proxy:
        connection = await open_connection(proxy.bootstrap, request_timeout_s=1)
        proxy.open_to_client.clear()
        with pytest.raises(errors.RequestTimeout):
            await connection.request(api.METADATA, m.MetadataRequest())
        assert not connection.is_open
        with pytest.raises(errors.NoBroker):
            await open_connection(proxy.bootstrap, connect_timeout_s=0.05)
        proxy.open_to_client.set()
        await connection.close()


async def test_each_request_has_its_own_time(broker):
    async with running_proxy(broker.bootstrap) as proxy:
        connection = await open_connection(proxy.bootstrap, request_timeout_s=0.05)
        proxy.open_to_client.clear()
        ask = m.MetadataRequest()
        long = asyncio.create_task(connection.request(api.METADATA, ask, extra_s=3600))
        await asyncio.sleep(0)
        with pytest.raises(errors.RequestTimeout, match="list_offsets"):
            await connection.request(api.LIST_OFFSETS, m.ListOffsetsRequest([]))
        with pytest.raises(errors.RequestTimeout):
            await long
        proxy.open_to_client.set()
        await connection.close()


async def test_a_request_that_may_take_long_outlives_the_others_time(broker):
    async with running_proxy(broker.bootstrap) as proxy:
        connection = await open_connection(proxy.bootstrap, request_timeout_s=0.05)
        other = await open_connection(proxy.bootstrap, request_timeout_s=0.05)
        ask = m.MetadataRequest()
        await connection.request(api.METADATA, ask)  # it has set the timer
        proxy.open_to_client.clear()
        long = asyncio.create_task(connection.request(api.METADATA, ask, extra_s=3600))
        for _ in range(2):
            with pytest.raises(errors.RequestTimeout):
                await other.request(api.METADATA, ask)
            await other.close()
            proxy.open_to_client.set()
            other = await open_connection(proxy.bootstrap, request_timeout_s=0.05)
            proxy.open_to_client.clear()
        assert connection.is_open
        proxy.open_to_client.set()
        assert (await long).brokers
        await connection.close()


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\1\xc0", b""])
async def test_what_is_no_broker_is_told(said):
    async def serve(reader, writer):
        await reader.read(10)
        writer.write(said)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    with pytest.raises(errors.NoBroker):
        await open_connection(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    server.close()
    await server.wait_closed()


async def test_another_version_is_refused_by_name():
    async def serve(reader, writer):
        length = int.from_bytes(await reader.readexactly(4), "big")
        asked = api.decode_envelope(await reader.readexactly(length))
        hello = m.HelloResponse("9", 0, "c", [m.ApiVersions(api.FETCH.key, 5, 6)], {})
        content = api.encode_response(asked.correlation_id, hello)
        writer.write(len(content).to_bytes(4, "big") + content)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    with pytest.raises(errors.UnsupportedVersion, match="fetch 5 to 6"):
        await open_connection(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    server.close()
    await server.wait_closed()


async def test_a_refused_connection_says_why(tmp_path):
    async with embedded(tmp_path, max_connections=1) as broker:
        first = await open_connection(broker.bootstrap)
        with pytest.raises(errors.SeglogError, match=r"max\.connections"):
            await open_connection(broker.bootstrap)
        await first.close()


async def test_errors_that_pass_are_tried_again_and_others_are_not(broker):
    async with Cluster(broker.bootstrap, request_timeout_s=60) as cluster:
        left: list[errors.SeglogError | None] = [
            errors.ShuttingDown("a"),
            errors.ConnectionLost("b"),
            None,
        ]

        async def call():
            error = left.pop(0)
            if error is not None:
                raise error
            return "done"

        assert await cluster.retry(call) == "done"
        for first, options in (
            (errors.TopicExists("final"), {}),
            (errors.ConnectionLost("not known"), {"may_repeat": False}),
            (errors.ShuttingDown("no time"), {"timeout_s": 0}),
        ):
            left[:] = [first, None]
            with pytest.raises(type(first)):
                await cluster.retry(call, **options)


async def test_who_asks_at_once_shares_a_connection(broker):
    async with running_proxy(broker.bootstrap) as proxy, Cluster(proxy.bootstrap) as cluster:
        asked = [cluster.request_to_any(api.METADATA, m.MetadataRequest()) for _ in range(10)]
        await asyncio.gather(*asked)
        assert proxy.connections == 1
        proxy.cut_all()
        while cluster._connections[0].is_open:  # noqa: ASYNC110 - nobody is told of it
            await asyncio.sleep(0)
        await asyncio.gather(*(cluster.connection(0) for _ in range(10)))
        assert proxy.connections == 2


def test_addresses_are_read():
    assert parse_bootstrap("a:1, b ,[::1]:5,[::1]") == [
        Address("a", 1),
        Address("b", 7400),
        Address("::1", 5),
        Address("::1", 7400),
    ]
    for wrong in ("", ",", "a:b", ":1", "a:0", "a:70000"):
        with pytest.raises(errors.BadConfig):
            parse_bootstrap(wrong)
