"""What one log must remember besides its batches: a small file, replaced in one step.

- `log_start`: offsets below are deleted, whatever files may still lie there;
- `epochs`: where each log epoch begins. The log epoch is raised when a restart may have cut away
  what a reader had seen, so that the reader can be told;
- `compactions`: up to which offset the log was compacted, and when: a tombstone may go once its
  older records have been gone for `delete.retention.ms`.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from .checked_file import read_checked, write_checked
from .filesystem import FileSystem
from .names import LOG_STATE

_MAGIC: Final = b"SGLS"
MAX_EPOCHS: Final = 64
MAX_COMPACTIONS: Final = 64


class Epoch(NamedTuple):
    epoch: int
    start_offset: int


class Compaction(NamedTuple):
    end_offset: int
    time_us: int
    kept_tombstones: int


class LogState(NamedTuple):
    """Immutable: changing it makes a new one, which counts once it is saved."""

    log_start: int = 0
    epochs: tuple[Epoch, ...] = (Epoch(0, 0),)
    compactions: tuple[Compaction, ...] = ()

    @property
    def epoch(self) -> int:
        return self.epochs[-1].epoch

    @property
    def compacted_end(self) -> int:
        return self.compactions[-1].end_offset if self.compactions else 0

    def with_epoch(self, epoch: int, start_offset: int) -> LogState:
        """A new epoch from `start_offset` on; epochs that hold no offset any more are dropped."""
        kept = [old for old in self.epochs if old.start_offset < start_offset]
        epochs = (*kept, Epoch(epoch, start_offset))[-MAX_EPOCHS:]
        return self._replace(epochs=epochs)

    def with_compaction(
        self, end_offset: int, time_us: int, kept_tombstones: int, delete_retention_us: int
    ) -> LogState:
        """Note a finished pass; it removed the tombstones that were due, with their passes."""
        waiting = [c for c in self.compactions if c.time_us > time_us - delete_retention_us]
        # Too many: a later pass stands for an earlier one, which keeps tombstones longer, not
        # shorter.
        waiting = waiting[-(MAX_COMPACTIONS - 1) :]
        return self._replace(
            compactions=(*waiting, Compaction(end_offset, time_us, kept_tombstones))
        )

    def has_due_tombstones(self, now_us: int, delete_retention_us: int) -> bool:
        """Whether a pass would find tombstones to remove, even with nothing new in the log."""
        due = [c for c in self.compactions if c.time_us <= now_us - delete_retention_us]
        return any(c.kept_tombstones for c in due)

    def tombstone_horizon(self, now_us: int, delete_retention_us: int) -> int:
        """Tombstones below this offset have done their work."""
        ends = [c.end_offset for c in self.compactions if c.time_us <= now_us - delete_retention_us]
        return max(ends, default=0)

    def cut_since(self, epoch: int, offset: int) -> int | None:
        """Where the log was cut below `offset`, reached by a reader in `epoch`; None: nowhere."""
        cuts = [e.start_offset for e in self.epochs if e.epoch > epoch and e.start_offset < offset]
        return min(cuts, default=None)


def save_log_state(fs: FileSystem, folder: str, state: LogState) -> None:
    write_checked(fs, os.path.join(folder, LOG_STATE), _MAGIC, list(state))


def load_log_state(fs: FileSystem, folder: str) -> LogState | None:
    """The saved state; None where none was ever saved; DamagedLog where it cannot be trusted."""
    path = os.path.join(folder, LOG_STATE)
    if not fs.exists(path):
        return None
    log_start, epochs, compactions = read_checked(fs, path, _MAGIC)
    return LogState(
        log_start,
        tuple(Epoch._make(epoch) for epoch in epochs),
        tuple(Compaction._make(compaction) for compaction in compactions),
    )
