"""The settings of one topic, as its logs see them. Outside they are written with dots:
`segment.bytes`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ...protocol.constants import GIB, KIB, MAX_BATCH_BYTES, MIB
from ...protocol.errors import BadConfig

UNLIMITED = -1

DAY_MS = 24 * 60 * 60 * 1000

Limit = Annotated[int, Meta(ge=-1)]


class LogConfig(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename=lambda name: name.replace("_", "."),
):
    """Each setting with its default and its range; -1 means without limit where that is allowed."""

    #: `fsync`: acked means on disk. `os`: acked means written; flushed every `flush.interval.ms`.
    durability: Literal["fsync", "os"] = "fsync"
    #: How often a topic with `durability=os` is flushed to disk.
    flush_interval_ms: Annotated[int, Meta(ge=1, le=DAY_MS)] = 1000
    #: A segment is sealed before it would pass this size.
    segment_bytes: Annotated[int, Meta(ge=128, le=1 * GIB)] = 64 * MIB
    #: A segment is sealed this long after its first batch.
    segment_ms: Annotated[int, Meta(ge=1)] = 7 * DAY_MS
    #: One index entry every so many bytes: smaller finds faster, larger takes less memory.
    index_interval_bytes: Annotated[int, Meta(ge=1, le=64 * MIB)] = 4 * KIB
    #: The oldest sealed segments go while a partition is larger than this.
    retention_bytes: Limit = UNLIMITED
    #: A sealed segment goes once its last batch is older than this.
    retention_ms: Limit = 7 * DAY_MS
    #: `delete`: old segments go. `compact`: the last record of each key stays. Or both.
    cleanup_policy: Literal["delete", "compact", "compact,delete"] = "delete"
    #: A tombstone stays this long after the records it deletes are gone.
    delete_retention_ms: Annotated[int, Meta(ge=0)] = DAY_MS
    #: The largest batch taken, header included.
    max_batch_bytes: Annotated[int, Meta(ge=128, le=MAX_BATCH_BYTES)] = 4 * MIB
    #: A producer that was silent this long is forgotten.
    producer_expiry_ms: Annotated[int, Meta(ge=1)] = 7 * DAY_MS

    @property
    def is_compacted(self) -> bool:
        return self.cleanup_policy != "delete"

    @property
    def deletes_segments(self) -> bool:
        return self.cleanup_policy != "compact"

    @property
    def syncs_before_ack(self) -> bool:
        return self.durability == "fsync"

    def with_changes(self, changes: dict[str, Any]) -> LogConfig:
        """This configuration with some settings changed, by their dotted names."""
        return make_config({**msgspec.to_builtins(self), **changes})


def make_config(settings: dict[str, Any] | None = None) -> LogConfig:
    """Check settings by their dotted names; numbers may come as text, as from a command line."""
    known = {field.encode_name for field in msgspec.structs.fields(LogConfig)}
    for name in settings or {}:
        if name not in known:
            raise BadConfig(f"{name}: no such setting (there are {', '.join(sorted(known))})")
    try:
        return msgspec.convert(settings or {}, LogConfig, strict=False)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        raise BadConfig(f"{path.rstrip('`') or 'settings'}: {reason}") from None


def config_values(config: LogConfig) -> dict[str, int | str]:
    """The settings by their dotted names."""
    values: dict[str, int | str] = msgspec.to_builtins(config)
    return values
