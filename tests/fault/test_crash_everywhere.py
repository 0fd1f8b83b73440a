"""A log comes back with all that was acked, and the same twice, whatever moment the power goes.

Two ways to look everywhere: the last segment's file is cut, zeroed or spoiled at every byte; and
`run_with_crash_at_every_step` cuts the power before every file operation of an action, with every
fate for what was not synced. A failure names the byte, or the step and the fate's seed, to replay.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from seglog.protocol.header import hop
from seglog.server.storage.config import LogConfig
from seglog.server.storage.log import Log
from seglog.server.storage.retention import apply_retention

from tests.crashes import (
    Running,
    cut_everywhere,
    holds_its_promises,
    open_twice,
    running,
    some_records,
)
from tests.logs import (
    NOON_US,
    SMALL,
    Stored,
    append_values,
    leave,
    open_in,
    plain,
    read_all,
    sequenced,
    settings,
    stage,
    values_of,
)
from tests.simulated_disk import Crash, run_with_crash_at_every_step

WRITTEN = settings(segment_bytes=700, index_interval_bytes=150, retention_ms=-1, durability="os")


# --- every byte of the last segment --------------------------------------------------------------


@pytest.fixture(params=[SMALL, WRITTEN], ids=["fsync", "os"])
def crashed(request, tmp_path):
    """A folder whose last segment holds several groups, and was never closed or checkpointed."""
    folder = tmp_path / "crashed"
    folder.mkdir()
    config: LogConfig = request.param
    log = open_in(folder, config)
    append_values(log, *[b"sealed %d" % n for n in range(6)])
    log.roll()
    staged = stage(log, [sequenced(0, b"a", b"b"), plain(b"c"), sequenced(2, b"d")])
    log.write(staged)
    log.sync()
    log.publish()
    append_values(log, b"e")
    leave(log)
    return folder, config


def last_segment(folder: Path) -> Path:
    return max(folder.glob("*.log"), key=lambda path: int(path.stem))


def batch_ends(data: bytes) -> list[int]:
    """Where the batches of a segment's file end, up to the preallocated tail."""
    ends, position = [], 0
    while position < len(data) and any(data[position : position + 24]):
        position += hop(data, position).length
        ends.append(position)
    return ends


def records_below(folder: Path, config: LogConfig) -> list[list[Stored]]:
    """What a log holds with 0, 1, 2 … whole batches in its last segment."""
    copy = folder.with_name("whole")
    shutil.copytree(folder, copy)
    log = open_in(copy, config)
    everything = read_all(log)
    base = log.active.base_offset
    view = log.active.view
    offsets = [
        base,
        *(hop(view, end).base_offset for end in batch_ends(bytes(view))[:-1]),
        log.log_end,
    ]
    leave(log)
    return [[record for record in everything if record.offset < end] for end in offsets]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda data, at: data[:at], id="cut"),
        pytest.param(lambda data, at: data[:at] + bytes(len(data) - at), id="zeroed"),
        pytest.param(
            lambda data, at: data[:at] + random.Random(at).randbytes(len(data) - at), id="garbage"
        ),
        pytest.param(lambda data, at: data[:at] + b"\xff" * 90, id="garbage that ends the file"),
    ],
)
def test_a_crash_at_any_byte_of_the_last_segment_leaves_every_whole_batch(
    crashed, tmp_path, spoil: Callable[[bytes, int], bytes]
):
    folder, config = crashed
    segment = last_segment(folder)
    data = segment.read_bytes()
    ends = batch_ends(data)
    expected = records_below(folder, config)
    assert len(ends) == 4
    for at in range(ends[-1] + 1):
        copy = tmp_path / "copy"
        shutil.copytree(folder, copy)
        (copy / segment.name).write_bytes(spoil(data, at))
        whole = sum(end <= at for end in ends)

        log = open_twice(copy, config)

        assert read_all(log) == expected[whole], f"spoiled from byte {at} on"
        if at % 3 and at not in ends:  # the rest takes longer, and differs less
            leave(log)
            shutil.rmtree(copy)
            continue
        again = log.append(sequenced(0, b"a", b"b"), NOON_US)
        assert again.is_duplicate == (whole > 0), f"spoiled from byte {at} on"
        more = append_values(log, b"more")[0]
        leave(log)
        assert read_all(open_twice(copy, config))[-1].offset == more.base_offset
        shutil.rmtree(copy)


# --- every file operation ------------------------------------------------------------------------


def test_a_power_cut_while_appending_loses_nothing_that_was_acked():
    def append(state: Running) -> None:
        for n in range(4):
            state.append(b"first %d" % n, b"second %d" % n)

    cut_everywhere(append)


def test_a_power_cut_while_appending_a_group_leaves_its_first_batches_or_none():
    def append(state: Running) -> None:
        batches = [plain(b"one" * 20), plain(b"two" * 20, b"three"), plain(b"four")]
        base = state.log.log_end
        for n, value in enumerate([b"one" * 20, b"two" * 20, b"three", b"four"]):
            state.asked.append(Stored(base + n, NOON_US, None, value))
        staged = stage(state.log, batches)
        state.log.write(staged)
        state.log.sync()
        state.acked += state.asked[-4:]
        state.log.publish()

    def prepare(state: Running) -> None:
        state.append(b"before")

    config = settings(segment_bytes=4000, index_interval_bytes=150, retention_ms=-1)
    build, promises = running(config, prepare), holds_its_promises(config)

    def check(root: str, crash: Crash[Running]) -> None:
        copy = f"{root}-copy"
        shutil.copytree(root, copy)
        log = open_in(Path(copy) / "partition-0", config)
        values = values_of(log)
        leave(log)
        shutil.rmtree(copy)
        whole = [b"before", b"one" * 20, b"two" * 20, b"three", b"four"]
        assert values in (whole[:1], whole[:2], whole[:4], whole), "part of a batch, or a gap"
        promises(root, crash)

    run_with_crash_at_every_step(build, lambda disk, state: append(state), check, seeds=20)


def test_a_power_cut_with_durability_os_leaves_a_prefix():
    def append(state: Running) -> None:
        for n in range(3):
            state.append(b"first %d" % n, b"second %d" % n)
        state.log.checkpoint()
        state.append(b"last")

    def prefix(root: str, crash: Crash[Running]) -> None:
        log = open_twice(Path(root) / "partition-0", WRITTEN)
        found = read_all(log)
        assert found == crash.state.asked[: len(found)], "not a prefix"
        leave(log)

    build = running(WRITTEN, some_records)
    assert run_with_crash_at_every_step(build, lambda disk, state: append(state), prefix) > 10


@pytest.mark.parametrize(
    "action",
    [Log.roll, Log.checkpoint, Log.close],
    ids=lambda action: action.__name__,
)
def test_a_power_cut_while_saving_a_segment_loses_nothing(action):
    cut_everywhere(lambda state: action(state.log))


def test_nothing_that_was_saved_of_a_tail_outlives_it(tmp_path):
    """The tail is dropped after a checkpoint; other batches take its numbers, past its end."""
    log = open_in(tmp_path, SMALL)
    log.append(sequenced(0, b"kept"), NOON_US)
    log.write(stage(log, [sequenced(1, b"dropped"), sequenced(0, b"dropped", producer=8)]))
    log.checkpoint()
    log.truncate(1)
    append_values(log, b"in its place", b"and further", b"and further")
    leave(log)

    log = open_twice(tmp_path, SMALL)

    assert values_of(log) == [b"kept", b"in its place", b"and further", b"and further"]
    assert not log.append(sequenced(0, b"of 8", producer=8), NOON_US).is_duplicate
    assert not log.append(sequenced(1, b"of 7"), NOON_US).is_duplicate
    leave(log)


def test_a_power_cut_while_records_are_deleted_leaves_the_old_log_start_or_the_new():
    def delete(state: Running) -> None:
        for start in (3, 9, 12):
            state.log_starts.add(start)
            state.log.raise_log_start(start)
            state.log_starts = {start}

    cut_everywhere(delete)


def test_a_power_cut_during_retention_leaves_the_old_log_start_or_the_new():
    config = settings(segment_bytes=300, retention_bytes=300, index_interval_bytes=1)

    def retain(state: Running) -> None:
        state.log_starts = set(range(state.log.active.base_offset + 1))
        apply_retention(state.log, NOON_US)
        state.log_starts = {state.log.log_start}

    cut_everywhere(retain, config)
