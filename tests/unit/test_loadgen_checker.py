"""The checker finds every kind of fault, tells which record it was, and is silent where there is
none.
"""

import random

import msgspec
import pytest

from scripts.loading.acks import ranges
from scripts.loading.checker import (
    Finding,
    PackedSightings,
    SentRecords,
    Sightings,
    Verdict,
    find_missing,
    judge,
)
from scripts.loading.stamps import Stamp, checked_value

NOW_NS = 1_790_000_000_000_000_000
Log = list[tuple[str, int, bytes | None, bytes]]


def record(producer: int, sequence: int, key: bytes | None = None) -> bytes:
    return checked_value(Stamp(producer, sequence), NOW_NS, b'"type":"click"}', key)


def a_log(producers: int = 2, count: int = 50, partitions: int = 3) -> Log:
    """(topic, partition, key, value) as producers in turn would have written them."""
    return [
        ("t", (producer + sequence) % partitions, None, record(producer, sequence))
        for sequence in range(count)
        for producer in range(producers)
    ]


def verdict_on(log: Log, sent: list[SentRecords] | None = None) -> Verdict:
    """Offsets are given as the log has the records."""
    sightings, offsets = Sightings(), dict.fromkeys(range(10), 0)
    for topic, partition, key, value in log:
        sightings.saw(topic, partition, offsets[partition], key, value)
        offsets[partition] += 1
    return verdict_of(sightings, sent or [SentRecords(0, 50), SentRecords(1, 50)])


def verdict_of(sightings: Sightings, sent: list[SentRecords]) -> Verdict:
    missing = find_missing(sent, sightings)
    places = [
        Finding("lost", "t", 0, 1000 + sequence, producer, sequence)
        for producer, sequence in missing.first
    ]
    return judge(sent, sightings, missing, places)


def counts(verdict: Verdict) -> tuple[int, int, int, int]:
    return verdict.lost, verdict.doubled, verdict.reordered, verdict.damaged


def test_a_log_as_it_was_sent_has_no_fault():
    verdict = verdict_on(a_log())
    assert counts(verdict) == (0, 0, 0, 0)
    assert verdict.is_clean
    assert (verdict.sent, verdict.acknowledged, verdict.read) == (100, 100, 100)
    assert verdict.findings == []


def test_a_lost_record_is_found_and_named():
    log = a_log()
    del log[10]
    verdict = verdict_on(log)
    assert counts(verdict) == (1, 0, 0, 0)
    assert not verdict.is_clean
    assert verdict.findings == [Finding("lost", "t", 0, 1005, 0, 5)]


@pytest.mark.parametrize("keep", [0, 1, 37], ids=lambda n: f"keep{n}")
def test_a_tail_that_is_missing_is_lost(keep):
    verdict = verdict_on(a_log()[:keep])
    assert counts(verdict) == (100 - keep, 0, 0, 0)
    assert len(verdict.findings) == 10  # only the first few


def test_a_doubled_record_is_found_with_partition_and_offset():
    log = a_log()
    log.insert(11, log[10])
    verdict = verdict_on(log)
    assert counts(verdict) == (0, 1, 0, 0)
    (finding,) = verdict.findings
    assert (finding.topic, finding.partition, finding.producer, finding.sequence) == ("t", 2, 0, 5)
    assert finding.offset == sum(partition == 2 for _, partition, *_ in log[:11])


def test_a_record_in_another_partition_too_is_doubled():
    log = a_log()
    log.append(("t", 0, None, record(0, 5)))
    assert counts(verdict_on(log)) == (0, 1, 0, 0)


def test_a_reordered_record_is_found_with_what_came_before_it():
    log = a_log(producers=1, partitions=1)
    log[20], log[21] = log[21], log[20]
    verdict = verdict_on(log, [SentRecords(0, 50)])
    assert counts(verdict) == (0, 0, 1, 0)
    (finding,) = verdict.findings
    assert (finding.partition, finding.offset, finding.sequence) == (0, 21, 20)
    assert "after sequence 21 at offset 20" in finding.described()


def test_order_counts_only_within_a_partition_and_a_producer():
    log = a_log(producers=1, partitions=2)
    log.sort(key=lambda each: each[1])  # one partition after the other
    assert counts(verdict_on(log, [SentRecords(0, 50)])) == (0, 0, 0, 0)


def test_a_damaged_record_is_found_and_not_counted_as_lost_too():
    log = a_log()
    topic, partition, key, value = log[10]
    log[10] = (topic, partition, key, value[:-3] + b"x" + value[-2:])
    verdict = verdict_on(log)
    assert counts(verdict) == (0, 0, 0, 1)
    assert [finding.fault for finding in verdict.findings] == ["damaged"]
    assert (verdict.findings[0].partition, verdict.findings[0].topic) == (2, "t")


def test_a_record_under_another_key_is_damaged():
    sightings = Sightings()
    sightings.saw("t", 0, 0, b"other", record(0, 0, b"key"))
    assert counts(verdict_of(sightings, [SentRecords(0, 1)])) == (0, 0, 0, 1)


def test_one_damaged_and_one_lost_are_one_each():
    log = a_log()
    log[10] = ("t", 2, None, b"nothing like it")
    del log[50]
    verdict = verdict_on(log)
    assert counts(verdict) == (1, 0, 0, 1)


def test_all_kinds_at_once_are_told_apart():
    chance = random.Random(3)
    log = a_log(producers=1, count=1000, partitions=1)
    log[100] = ("t", 0, None, b"{}")
    log[200], log[201] = log[201], log[200]
    log.insert(301, log[300])
    del log[chance.randrange(400, 900)]
    verdict = verdict_on(log, [SentRecords(0, 1000)])
    assert counts(verdict) == (1, 1, 1, 1)
    assert [f.fault for f in verdict.findings if f.fault != "lost"] == [
        "doubled", "reordered", "damaged",
    ]  # fmt: skip


def test_a_record_that_was_not_acknowledged_may_be_there_or_not():
    log = a_log(producers=1, partitions=1)
    sent = [SentRecords(0, 50, [(10, 12), (49, 50)])]
    assert counts(verdict_on(log, sent)) == (0, 0, 0, 0)
    del log[10:12], log[-1]
    verdict = verdict_on(log, sent)
    assert counts(verdict) == (0, 0, 0, 0)
    assert (verdict.sent, verdict.acknowledged, verdict.unsure) == (50, 47, 3)
    del log[5]
    assert counts(verdict_on(log, sent)) == (1, 0, 0, 0)


def test_what_several_readers_saw_adds_up_over_processes():
    readers = [Sightings(), Sightings()]
    for offset, (topic, partition, key, value) in enumerate(a_log()):
        readers[partition % 2].saw(topic, partition, offset, key, value)
    assert counts(together(readers)) == (0, 0, 0, 0)
    readers[0].saw("t", 9, 0, None, record(1, 7))
    readers[1].saw("t", 9, 0, None, record(1, 7))
    verdict = together(readers)
    assert verdict.lost == verdict.damaged == verdict.reordered == 0
    # Each record is in one partition: one of these two is seen twice within its reader, too.
    assert verdict.doubled == 2


def together(readers: list[Sightings]) -> Verdict:
    everything = Sightings()
    for reader in readers:
        sent = msgspec.json.encode(reader.pack())  # as it travels
        everything.add(msgspec.json.decode(sent, type=PackedSightings))
    return verdict_of(everything, [SentRecords(0, 50), SentRecords(1, 50)])


def test_ranges_join_what_touches():
    assert ranges([3, 1, 2, 7, 2]) == [(1, 4), (7, 8)]
    assert ranges([]) == []
