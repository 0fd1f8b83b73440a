"""One real Spark for all tests that use it, and a real broker process for each test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from seglog import SyncAdmin, SyncProducer

from tests.broker_server import BrokerServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What runs in a JVM stays in one process: a machine has room for one."""
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker("spark")
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session that knows `format("seglog")`; about ten seconds, once a run."""
    from tests.spark_session import new_session

    subprocess.run([ROOT / "scripts" / "java"], check=True)
    if "pyspark" in sys.modules:
        from pyspark import SparkContext

        assert SparkContext._active_spark_context is None, "another test left a session behind"
    session = new_session(tmp_path_factory.mktemp("warehouse"))
    yield session
    session.stop()


@pytest.fixture
def admin(broker: BrokerServer) -> Iterator[SyncAdmin]:
    with SyncAdmin(broker.bootstrap) as client:
        yield client


@pytest.fixture
def producer(broker: BrokerServer) -> Iterator[SyncProducer]:
    with SyncProducer(broker.bootstrap) as client:
        yield client


@pytest.fixture
def broker_settings() -> tuple[str, ...]:
    """Of `broker`, as `name=value`; a test may give its own."""
    return ()


@pytest.fixture
def broker(tmp_path: Path, broker_settings: tuple[str, ...]) -> Iterator[BrokerServer]:
    """`seglog serve` in a process of its own; it may be killed and started again."""
    with BrokerServer(tmp_path / "broker", *broker_settings) as server:
        yield server
