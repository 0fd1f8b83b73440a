"""What the broker does for each request. `DIRECT` handlers answer by themselves, on the hot path,
without a task; `ORDINARY` ones are coroutines that return the response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...protocol import api
from . import fetch, hello, offsets, produce, topics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ...protocol.messages import Message
    from ..app import Broker
    from ..connection import Connection

DIRECT: dict[int, Callable[[Broker, Connection, int, int, Any], None]] = {
    api.PRODUCE.key: produce.handle_produce,
    api.FETCH.key: fetch.handle_fetch,
}

ORDINARY: dict[int, Callable[[Broker, Connection, Any], Awaitable[Message]]] = {
    api.HELLO.key: hello.handle_hello,
    api.METADATA.key: topics.handle_metadata,
    api.CREATE_TOPIC.key: topics.handle_create_topic,
    api.DELETE_TOPIC.key: topics.handle_delete_topic,
    api.ALTER_TOPIC.key: topics.handle_alter_topic,
    api.DESCRIBE_TOPIC.key: topics.handle_describe_topic,
    api.LIST_OFFSETS.key: offsets.handle_list_offsets,
    api.DELETE_RECORDS.key: offsets.handle_delete_records,
    api.INIT_PRODUCER.key: produce.handle_init_producer,
}
