"""What the broker does for each request. `DIRECT` handlers answer by themselves, on the hot path,
without a task; `ORDINARY` ones are coroutines that return the response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...protocol import api
from . import fetch, groups, hello, offsets, produce, topics, transactions

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
    api.GROUP_HEARTBEAT.key: groups.handle_group_heartbeat,
    api.GROUP_LEAVE.key: groups.handle_group_leave,
    api.COMMIT_OFFSETS.key: groups.handle_commit_offsets,
    api.FETCH_OFFSETS.key: groups.handle_fetch_offsets,
    api.LIST_GROUPS.key: groups.handle_list_groups,
    api.DESCRIBE_GROUP.key: groups.handle_describe_group,
    api.DELETE_GROUP.key: groups.handle_delete_group,
    api.STAGE.key: transactions.handle_stage,
    api.COMMIT_STAGED.key: transactions.handle_commit_staged,
    api.DESCRIBE_TRANSACTION.key: transactions.handle_describe_transaction,
}
