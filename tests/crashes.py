"""A log whose power is cut at every step of an action, and what must be there after each cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from seglog.server.storage.config import LogConfig
from seglog.server.storage.log import Log
from seglog.server.storage.names import LOG_STATE

from tests.logs import (
    NOON_US,
    SMALL,
    Stored,
    append_values,
    files_in,
    leave,
    open_in,
    open_on,
    plain,
    read_all,
)
from tests.simulated_disk import Crash, SimulatedDisk, run_with_crash_at_every_step


def open_twice(folder: str | Path, config: LogConfig) -> Log:
    """Open, leave, and open again: both times the same files and records."""
    first = open_in(folder, config)
    files, records, start = files_in(folder), read_all(first), first.log_start
    leave(first)
    log = open_in(folder, config)
    again = files_in(folder)
    if not config.syncs_before_ack:  # each start after a crash is a new epoch
        files.pop(LOG_STATE, None), again.pop(LOG_STATE, None)
    assert again == files, "opening twice leaves other files"
    assert (read_all(log), log.log_start) == (records, start), "opening twice gives other records"
    return log


@dataclass
class Running:
    """A log, and what its producers and operators were told so far."""

    log: Log
    acked: list[Stored] = field(default_factory=list)
    asked: list[Stored] = field(default_factory=list)  # of these some may be there
    log_starts: set[int] = field(default_factory=lambda: {0})
    removable: set[int] = field(default_factory=set)  # offsets that compaction may have taken

    def append(self, *values: bytes | None, key: bytes | None = None) -> None:
        base = self.log.log_end
        records = [Stored(base + n, NOON_US, key, value) for n, value in enumerate(values)]
        self.asked += records
        self.log.append(plain(*values, key=key), NOON_US)
        self.acked += records

    def put(self, *pairs: tuple[bytes, bytes | None]) -> None:
        for key, value in pairs:
            self.append(value, key=key)


def running(config: LogConfig, prepare: Callable[[Running], object] = lambda state: None):
    """For `run_with_crash_at_every_step`: a log on the disk, with something in it."""

    def build(disk: SimulatedDisk) -> Running:
        state = Running(open_on(disk, config))
        prepare(state)
        return state

    return build


def holds_its_promises(config: LogConfig) -> Callable[[str, Crash[Running]], None]:
    """The check after a cut: acked records are there, in order, and nothing else."""

    def check(root: str, crash: Crash[Running]) -> None:
        state = crash.state
        log = open_twice(Path(root) / "partition-0", config)
        assert log.log_start in state.log_starts
        if crash.completed and len(state.log_starts) > 1:
            assert log.log_start == max(state.log_starts)
        found = read_all(log)
        assert len({record.offset for record in found}) == len(found)
        assert found == [record for record in state.asked if record in found], "out of order"
        missing = {r.offset for r in state.acked if r.offset >= log.log_start} - {
            record.offset for record in found
        }
        if config.syncs_before_ack:
            assert missing <= state.removable, f"acked offsets {sorted(missing)} are gone"
        if crash.completed:
            assert not state.removable & {record.offset for record in found}
        append_values(log, b"goes on")
        assert read_all(log)[-1].value == b"goes on"
        leave(log)

    return check


def some_records(state: Running) -> None:
    for n in range(7):
        state.append(b"%d" % n, b"%d again" % n)


def cut_everywhere(
    action: Callable[[Running], object],
    config: LogConfig = SMALL,
    prepare: Callable[[Running], object] = some_records,
) -> None:
    checks = run_with_crash_at_every_step(
        running(config, prepare), lambda disk, state: action(state), holds_its_promises(config)
    )
    assert checks > 10
