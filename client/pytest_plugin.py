"""Loaded by pytest wherever Seglog is installed: the fixture `seglog_broker`, a real broker.

    async def test_orders(seglog_broker):
        async with Admin(seglog_broker.bootstrap) as admin:
            await admin.create_topic("orders")

Each test gets its own, empty. It runs in a thread of its own, so plain and async tests can use it.
To give it settings, define a fixture `seglog_broker_settings` that returns a dict:
{"auto_create_topics": True}.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .embedded import EmbeddedBroker


@pytest.fixture
def seglog_broker_settings() -> dict[str, Any]:
    """Settings of `seglog_broker`; define your own to change them."""
    return {}


@pytest.fixture
def seglog_broker(seglog_broker_settings: dict[str, Any]) -> Iterator[EmbeddedBroker]:
    """A running broker: `.bootstrap` for clients, `.data` its folder."""
    # Here: pytest loads this file in every run of every project that has Seglog installed.
    from .embedded import embedded_blocking  # noqa: PLC0415

    with embedded_blocking(**seglog_broker_settings) as broker:
        yield broker
