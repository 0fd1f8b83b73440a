"""The broker in this process, as tests and notebooks use it."""

# Records are sent here without waiting for each.
# mypy: disable-error-code="unused-awaitable"

import subprocess
import sys

from seglog import Admin, Producer, SyncAdmin, embedded, embedded_blocking

pytest_plugins = ["pytester"]


async def test_it_runs_in_the_callers_loop_and_leaves_nothing_behind():
    async with embedded() as broker:
        async with Admin(broker.bootstrap) as admin:
            await admin.create_topic("t")
        assert list(broker.data.iterdir())
    assert not broker.data.exists()


async def test_a_folder_of_ones_own_keeps_its_records(tmp_path):
    for expected in (0, 1):
        async with (
            embedded(tmp_path, auto_create_topics=True) as broker,
            Producer(broker.bootstrap) as producer,
        ):
            assert (await producer.send_and_wait("t", b"x")).offset == expected


async def test_two_at_once_do_not_meet():
    async with embedded() as first, embedded() as second:
        async with Admin(first.bootstrap) as admin:
            await admin.create_topic("t")
        async with Admin(second.bootstrap) as admin:
            assert await admin.list_topics() == []


def test_it_runs_without_a_loop_too():
    with embedded_blocking() as broker, SyncAdmin(broker.bootstrap) as admin:
        assert admin.list_topics() == []


async def test_the_fixture_serves_async_tests(seglog_broker):
    async with Admin(seglog_broker.bootstrap) as admin:
        assert await admin.list_topics() == []


def test_the_fixture_takes_settings(pytester):
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")
    pytester.makepyfile(
        """
        import pytest
        from seglog import SyncProducer

        @pytest.fixture
        def seglog_broker_settings():
            return {"auto_create_topics": True, "default_partitions": 3}

        def test_topics_are_created(seglog_broker):
            with SyncProducer(seglog_broker.bootstrap) as producer:
                assert producer.send_and_wait("t", b"x", partition=2).partition == 2
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_importing_seglog_loads_neither_client_nor_server():
    code = (
        "import sys, seglog; seglog.Producer;"
        "assert not [m for m in sys.modules if m.startswith('seglog.server')];"
        "assert 'pyarrow' not in sys.modules and 'seglog.client.consumer' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
