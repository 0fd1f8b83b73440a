"""A log beside a plain list, through anything that may happen to a log, power cuts above all.

Hypothesis chooses what happens; `SimulatedDisk` what a cut keeps. A failure prints the steps
and the blob that replay it; a fate in the steps is `keep_nothing`, `keep_everything` or a seed of
`keep_some`, so the same steps give the same files.

`SEGLOG_HYPOTHESIS_PROFILE=thorough` looks longer.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from seglog.protocol.batch import decode_batch
from seglog.protocol.errors import OffsetOutOfRange, StorageFull
from seglog.protocol.header import count_records, split_batches
from seglog.server.storage.compaction import clean, commit
from seglog.server.storage.retention import apply_retention

from tests.log_model import Pass
from tests.log_under_test import Cleaning, LogUnderTest, Spec
from tests.logs import read_all, records_of
from tests.logs import settings as log_settings
from tests.simulated_disk import Fate, PowerCut, keep_everything, keep_nothing, keep_some

SECOND_US: Final = 1_000_000
MAX_HELD: Final = 6
EXAMPLES: Final = 250  # unless the profile asks for more

fates = st.sampled_from(["keep_nothing", "keep_everything"]) | st.integers(0, 1 << 16)
_kinds = ["plain"] * 3 + ["next"] * 4 + ["repeat"] * 2 + ["old", "gap", "fenced", "new epoch"]
specs = st.builds(
    Spec,
    kind=st.sampled_from(_kinds),
    producer=st.integers(0, 2),
    keys=st.lists(st.sampled_from([None, b"a", b"b", b"c"]), min_size=1, max_size=4),
    is_tombstone=st.booleans(),
    padding=st.sampled_from([0, 3, 40, 300]),
    age_us=st.integers(-3, 3).map(lambda seconds: seconds * SECOND_US),
    codec=st.sampled_from([0, 0, 1]),
)
groups = st.lists(specs, min_size=1, max_size=4)
# Small, so that segments are rolled, deleted and merged all the time.
configs = st.fixed_dictionaries(
    {
        "durability": st.sampled_from(["fsync", "os"]),
        "segment_bytes": st.sampled_from([128, 400, 900, 2500]),
        "segment_ms": st.sampled_from([3_000, 10**9]),
        "index_interval_bytes": st.sampled_from([1, 200, 4096]),
        "cleanup_policy": st.sampled_from(["delete", "compact", "compact,delete"]),
        "retention_bytes": st.sampled_from([-1, 0, 1000]),
        "retention_ms": st.sampled_from([-1, 5_000]),
        "delete_retention_ms": st.sampled_from([0, 4_000]),
    }
)


def fate_of(choice: str | int) -> Fate:
    if isinstance(choice, int):
        return keep_some(choice)
    return keep_nothing if choice == "keep_nothing" else keep_everything


def survives_a_cut(method: Callable[..., None]) -> Callable[..., None]:
    """The power may go at any step of this rule, once `cut_in_a_while` has armed it."""

    @functools.wraps(method)
    def run(self: LogMachine, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except PowerCut:
            self.test.recover_from_a_cut(self.test.armed_fate)

    return run


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.test = LogUnderTest()

    @initialize(config=configs)
    def create(self, config: dict[str, Any]) -> None:
        self.test.create(log_settings(**config))

    def teardown(self) -> None:
        self.test.destroy()

    @invariant()
    def check(self) -> None:
        self.test.check()

    @property
    def is_compacted(self) -> bool:
        return self.test.config.is_compacted

    # --- appending -------------------------------------------------------------------------------

    @rule(group=groups)
    @survives_a_cut
    def append(self, group: list[Spec]) -> None:
        self.test.write_group(group, finish=True)

    @rule(group=groups)
    @survives_a_cut
    def write_without_finishing(self, group: list[Spec]) -> None:
        self.test.write_group(group, finish=not self.test.config.syncs_before_ack)

    @rule()
    @survives_a_cut
    def sync_and_publish(self) -> None:
        self.test.finish_group()

    @rule(
        group=groups, operation=st.sampled_from(["allocate", "write"]), partial=st.integers(0, 600)
    )
    @survives_a_cut
    def append_to_a_full_disk(self, group: list[Spec], operation: str, partial: int) -> None:
        test = self.test
        test.finish_group()
        fault = test.disk.fail(operation, "*.log", error=errno.ENOSPC, partial=partial)
        try:
            test.write_group(group, finish=True)
        except StorageFull:
            assert fault.hits
            test.model.cut(test.log.log_end)
            test.note_sealed()
        finally:
            test.disk.heal()

    @rule(group=groups, with_checkpoint=st.booleans(), choice=st.integers(0, 100))
    @survives_a_cut
    def write_and_truncate(self, group: list[Spec], with_checkpoint: bool, choice: int) -> None:
        self.write_without_finishing(group)
        log, model = self.test.log, self.test.model
        if with_checkpoint:
            self.checkpoint()
            log, model = self.test.log, self.test.model
        lowest = max(log.durable_end, log.active.base_offset)
        ends = sorted({lowest} | {end for end in model.batch_ends() if end >= lowest})
        offset = ends[choice % len(ends)]
        log.truncate(offset)
        model.cut(offset)
        model.safe_end = min(model.safe_end, offset)

    # --- segments --------------------------------------------------------------------------------

    @rule()
    @survives_a_cut
    def roll(self) -> None:
        self.test.log.roll()
        self.test.note_sealed()

    @rule()
    @survives_a_cut
    def checkpoint(self) -> None:
        self.test.log.checkpoint()
        self.test.model.safe_end = self.test.log.log_end

    @rule(seconds=st.sampled_from([1, 4, 6, -2]))
    def let_time_pass(self, seconds: int) -> None:
        self.test.now_us += seconds * SECOND_US

    @rule(choice=st.integers(0, 1000))
    @survives_a_cut
    def delete_records(self, choice: int) -> None:
        log, model = self.test.log, self.test.model
        start = log.log_start + choice % (log.durable_end - log.log_start + 1)
        model.log_starts = {log.log_start, start}
        log.raise_log_start(start)
        model.delete_below(start)

    @rule()
    @survives_a_cut
    def apply_retention(self) -> None:
        log, model = self.test.log, self.test.model
        due = self.test.retention_due()
        model.log_starts = {log.log_start, due}
        apply_retention(log, self.test.now_us)
        assert log.log_start == due
        model.delete_below(due)

    @precondition(lambda self: self.is_compacted and self.test.cleaning is None)
    @rule()
    @survives_a_cut
    def clean(self) -> None:
        """The first half of a compaction; before the second, anything may happen to the log."""
        test, model = self.test, self.test.model
        end = max((row.end_offset for row in test.log.describe() if row.is_sealed), default=0)
        before_us = test.now_us - test.config.delete_retention_ms * 1000
        due = model.superseded(end) | model.expired_tombstones(end, before_us, certain=True)
        allowed = due | model.expired_tombstones(end, before_us, certain=False)
        cleaned = clean(test.log, test.now_us)
        if cleaned is not None:
            test.cleaning = Cleaning(cleaned, due, allowed, Pass(end, test.now_us))
        else:
            assert not due, "there are records that compaction removes"

    @precondition(lambda self: self.test.cleaning is not None)
    @rule()
    @survives_a_cut
    def commit(self) -> None:
        test, model = self.test, self.test.model
        assert test.cleaning is not None
        (cleaned, due, allowed, this_pass), test.cleaning = test.cleaning, None
        present = set(test.log.segments)
        is_whole = all(present.issuperset(r.old) for r in cleaned.replacements)
        model.uncertain |= allowed
        if is_whole:  # else retention was quicker, and the pass does not count
            model.passes.append(this_pass)
        commit(test.log, cleaned, this_pass.time_us)
        this_pass.is_certain = True
        test.adopt(read_all(test.log))
        assert not is_whole or not due & model.live.keys(), "there are records that it removes"

    @precondition(lambda self: self.is_compacted and self.test.cleaning is None)
    @rule()
    def compact(self) -> None:
        self.clean()
        if self.test.cleaning is not None:
            self.commit()

    # --- the end of a process --------------------------------------------------------------------

    @rule()
    @survives_a_cut
    def close_and_reopen(self) -> None:
        self.test.log.close()
        self.test.model.safe_end = self.test.log.log_end
        epoch = self.test.log.epoch
        self.test.reopen(least_end=self.test.model.log_end)
        assert self.test.log.epoch == epoch, "a clean close cuts nothing"

    @rule()
    @survives_a_cut
    def kill_and_reopen(self) -> None:
        self.test.reopen(least_end=self.test.model.log_end)

    @rule(fate=fates, steps=st.none() | st.integers(1, 12), again=fates)
    def cut_the_power(self, fate: str | int, steps: int | None, again: str | int) -> None:
        self.test.recover_from_a_cut(fate_of(fate), steps, fate_of(again))

    @rule(steps=st.integers(1, 30), fate=fates)
    def cut_in_a_while(self, steps: int, fate: str | int) -> None:
        disk = self.test.disk
        if disk.crash_at is None:
            disk.crash_at = disk.steps + steps
            self.test.armed_fate = fate_of(fate)

    # --- reading ---------------------------------------------------------------------------------

    @rule(choice=st.integers(0, 1000), max_bytes=st.sampled_from([1, 150, 500, 1 << 20]))
    def read(self, choice: int, max_bytes: int) -> None:
        test, log = self.test, self.test.log
        start, end = log.log_start, log.durable_end
        offset = start + choice % (end - start + 1)
        found, base_offset, next_offset = log.find(offset, max_bytes)
        batches = [decode_batch(batch) for batch in split_batches(found)]
        assert len(found) <= max_bytes or len(batches) == 1
        assert bool(batches) == (offset < end)
        readable = test.model.readable()
        for columns in batches:
            assert columns.next_offset > offset
            expected = [r for r in readable if offset <= r.offset < columns.next_offset]
            assert [r for r in records_of(columns) if r.offset >= offset] == expected
            offset = columns.next_offset
        assert offset <= end
        test.place_bookmark(offset)
        test.held = [*test.held[-MAX_HELD:], (found, bytes(found))]
        if batches:
            first = max(start, batches[0].base_offset)
            assert log.append_time_of(first) == batches[0].header.append_time_us
            assert log.read_if_cached(first, 1) in (None, found[: batches[0].header.length])
            assert base_offset == batches[0].base_offset
            # Behind the last batch there may be a gap that compaction left.
            assert batches[-1].next_offset <= next_offset <= end
            assert count_records(found) == sum(map(len, batches))

    @rule(beyond=st.integers(1, 5), ago=st.integers(-4, 12), microseconds=st.integers(-2, 2))
    def look_up(self, beyond: int, ago: int, microseconds: int) -> None:
        log = self.test.log
        time_us = self.test.now_us - ago * SECOND_US + microseconds
        readable = self.test.model.readable()
        expected = next((record for record in readable if record.timestamp_us >= time_us), None)
        assert log.offset_for_time(time_us) == (
            expected and (expected.offset, expected.timestamp_us)
        )
        for offset in (log.log_start - beyond, log.durable_end + beyond):
            with pytest.raises(OffsetOutOfRange) as refused:
                log.read(offset, 100)
            ends = refused.value.log_start, refused.value.durable_end
            assert ends == (log.log_start, log.durable_end)


TestLogMachine = pytest.mark.timeout(7200)(LogMachine.TestCase)
TestLogMachine.settings = settings(
    max_examples=max(EXAMPLES, settings().max_examples),
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
