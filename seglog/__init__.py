"""A durable, partitioned, append-only log with a broker, for Python and Spark.

    Producer, Consumer, Admin                    asynchronous
    SyncProducer, SyncConsumer, SyncAdmin        for code without an event loop
    embedded, embedded_blocking                  a real broker in this process
    Record, Columns, RecordMetadata, …           what they give
    Shift, SameAs                                where a group's bookmarks can be moved to
    errors                                       all that they raise

Each name is loaded when it is first used: `import seglog` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client.admin import Admin
    from .client.blocking import SyncAdmin, SyncConsumer, SyncProducer
    from .client.consumer import Consumer
    from .client.delivery import BatchMetadata, BulkDelivery, Delivery, RecordMetadata
    from .client.embedded import embedded, embedded_blocking
    from .client.group_lag import GroupDescription, Lag, PartitionLag
    from .client.group_offsets import Bookmark
    from .client.group_reset import OffsetChange, SameAs, Shift
    from .client.metadata import TopicPartition
    from .client.producer import Producer
    from .protocol import errors
    from .protocol.records import Columns, Record

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "BatchMetadata",
    "Bookmark",
    "BulkDelivery",
    "Columns",
    "Consumer",
    "Delivery",
    "GroupDescription",
    "Lag",
    "OffsetChange",
    "PartitionLag",
    "Producer",
    "Record",
    "RecordMetadata",
    "SameAs",
    "Shift",
    "SyncAdmin",
    "SyncConsumer",
    "SyncProducer",
    "TopicPartition",
    "__version__",
    "embedded",
    "embedded_blocking",
    "errors",
]

_HOMES = {
    "Admin": "client.admin",
    "BatchMetadata": "client.delivery",
    "Bookmark": "client.group_offsets",
    "BulkDelivery": "client.delivery",
    "Columns": "protocol.records",
    "Consumer": "client.consumer",
    "Delivery": "client.delivery",
    "GroupDescription": "client.group_lag",
    "Lag": "client.group_lag",
    "OffsetChange": "client.group_reset",
    "PartitionLag": "client.group_lag",
    "Producer": "client.producer",
    "Record": "protocol.records",
    "RecordMetadata": "client.delivery",
    "SameAs": "client.group_reset",
    "Shift": "client.group_reset",
    "SyncAdmin": "client.blocking",
    "SyncConsumer": "client.blocking",
    "SyncProducer": "client.blocking",
    "TopicPartition": "client.metadata",
    "embedded": "client.embedded",
    "embedded_blocking": "client.embedded",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module(".protocol.errors", __name__)
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
