"""What the node keeps beside its logs: one small checked file, replaced in one step.

    [segment bytes or nil, {topic id: committed offset}]

A topic that is deleted and made again has another id, and so no committed offset.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..storage.checked_file import read_checked, write_checked
from ..storage.filesystem import FileSystem, storage_error

NODE_FILE: Final = "node-state"
_MAGIC: Final = b"SGNS"


class NodeState(NamedTuple):
    """Immutable: changing it makes a new one, which counts once it is saved."""

    segment_bytes: int | None  # None: as each topic has it
    committed: dict[str, int]


def load_state(fs: FileSystem, folder: str) -> NodeState:
    path = f"{folder}/{NODE_FILE}"
    if not fs.exists(path):
        return NodeState(None, {})
    return NodeState(*read_checked(fs, path, _MAGIC))


def save_state(fs: FileSystem, folder: str, state: NodeState) -> None:
    try:
        write_checked(fs, f"{folder}/{NODE_FILE}", _MAGIC, list(state))
    except OSError as error:
        raise storage_error(error, "saving the node's state") from error
