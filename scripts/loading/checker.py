"""Were all records read as they were sent? Lost, doubled, reordered, damaged: how many, and which.

    lost       acknowledged, and never read
    doubled    read more than once
    reordered  read after a later record of the same producer in the same partition
    damaged    not as it was sent: the checksum over key and value differs

A record that was not acknowledged (its delivery failed) may be there or not: neither is a fault. A
damaged record cannot be told by its own word, so for each one that is damaged, one record that is
missing does not count as lost as well.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal, NamedTuple

from msgspec import Meta, Struct

from scripts.loading.stamps import read_stamp

MAX_FINDINGS: Final = 10
_SATURATED: Final = 255

Fault = Literal["lost", "doubled", "reordered", "damaged"]
FAULTS: Final[tuple[Fault, ...]] = ("lost", "doubled", "reordered", "damaged")


class Finding(Struct, frozen=True):
    """One record that is not as it should be, and where."""

    fault: Fault
    topic: Annotated[str, Meta(description="empty where it is not known")] = ""
    partition: int = -1
    offset: int = -1
    producer: int = -1
    sequence: int = -1
    note: str = ""

    def described(self) -> str:
        where = f"{self.topic}/{self.partition} offset {self.offset}" if self.topic else ""
        who = f"producer {self.producer} sequence {self.sequence}" if self.producer >= 0 else ""
        return ", ".join(part for part in (where, who, self.note) if part)


class Verdict(Struct, frozen=True, kw_only=True):
    """What a checked run found."""

    sent: Annotated[int, Meta(description="records handed to producers")]
    acknowledged: int
    unsure: Annotated[int, Meta(description="records whose delivery failed: may be there, or not")]
    read: Annotated[int, Meta(description="records that were read")]
    lost: int
    doubled: int
    reordered: int
    damaged: int
    findings: Annotated[list[Finding], Meta(description="the first few of each kind")]

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.reordered or self.damaged)

    def described(self) -> str:
        return ", ".join(f"{name} {getattr(self, name):,}" for name in FAULTS)


class SentRecords(Struct, frozen=True):
    """What one producer sent: sequences 0 to `count` - 1, without the ranges that are unsure."""

    producer: int
    count: int
    unsure: list[tuple[int, int]] = []  # first, and one past the last

    @property
    def unsure_count(self) -> int:
        return sum(end - first for first, end in self.unsure)


class PackedSightings(Struct, frozen=True):
    """Sightings on their way to another process."""

    seen: dict[int, str]
    read: int
    counts: dict[str, int]
    findings: list[Finding]


class Sightings:
    """What one reader saw; fed record by record, in the order of reading."""

    def __init__(self) -> None:
        self._seen: dict[int, bytearray] = {}
        self._last: dict[tuple[str, int, int], tuple[int, int]] = {}
        self.read = 0
        self.counts: dict[str, int] = dict.fromkeys(FAULTS, 0)
        self.findings: list[Finding] = []

    def saw(
        self, topic: str, partition: int, offset: int, key: bytes | None, value: bytes | None
    ) -> None:
        self.read += 1
        stamp = read_stamp(value, key)
        if stamp is None:
            self._found(Finding("damaged", topic, partition, offset))
            return
        producer, sequence = stamp
        seen = self._seen.get(producer)
        if seen is None:
            seen = self._seen[producer] = bytearray()
        if sequence >= len(seen):
            seen.extend(bytes(max(sequence + 1, 2 * len(seen)) - len(seen)))
        times = seen[sequence]
        seen[sequence] = min(times + 1, _SATURATED)
        place = (topic, partition, producer)
        last, last_offset = self._last.get(place, (-1, -1))
        if times:
            note = f"read {times + 1} times"
            self._found(Finding("doubled", topic, partition, offset, producer, sequence, note))
        elif sequence < last:
            note = f"after sequence {last} at offset {last_offset}"
            self._found(Finding("reordered", topic, partition, offset, producer, sequence, note))
        else:
            self._last[place] = (sequence, offset)

    def saw_columns(
        self,
        topic: str,
        partition: int,
        offsets: Iterable[int],
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
    ) -> None:
        for offset, key, value in zip(offsets, keys, values, strict=True):
            self.saw(topic, partition, offset, key, value)

    def times_seen(self, producer: int) -> bytearray:
        return self._seen.get(producer, bytearray())

    @property
    def producers(self) -> list[int]:
        return sorted(self._seen)

    def _found(self, finding: Finding) -> None:
        self.counts[finding.fault] += 1
        if self.counts[finding.fault] <= MAX_FINDINGS:
            self.findings.append(finding)

    # --- between processes ---

    def pack(self) -> PackedSightings:
        seen = {
            producer: base64.b85encode(zlib.compress(bytes(times), 1)).decode("ascii")
            for producer, times in self._seen.items()
        }
        return PackedSightings(seen, self.read, self.counts, self.findings)

    def add(self, packed: PackedSightings) -> None:
        """What another reader saw. What both saw was doubled; order is each reader's own affair."""
        self.read += packed.read
        for fault, count in packed.counts.items():
            self.counts[fault] += count
        self.findings += packed.findings
        for producer, text in packed.seen.items():
            theirs = zlib.decompress(base64.b85decode(text))
            mine = self._seen.setdefault(producer, bytearray())
            if len(theirs) > len(mine):
                mine.extend(bytes(len(theirs) - len(mine)))
            if not any(mine):
                mine[: len(theirs)] = theirs
                continue
            for sequence, times in enumerate(theirs):
                if times and mine[sequence]:
                    note = "read by two consumers"
                    self._found(Finding("doubled", producer=producer, sequence=sequence, note=note))
                mine[sequence] = min(mine[sequence] + times, _SATURATED)


class Missing(NamedTuple):
    """Acknowledged records that nobody read: how many, and the first few."""

    total: int
    first: list[tuple[int, int]]  # producer, sequence


def find_missing(sent: Iterable[SentRecords], sightings: Sightings) -> Missing:
    count = 0
    first: list[tuple[int, int]] = []
    for each in sent:
        times = sightings.times_seen(each.producer).ljust(each.count, b"\0")[: each.count]
        for start, end in each.unsure:
            times[start:end] = b"\1" * (end - start)
        missing = times.count(0)
        count += missing
        at = -1
        while missing and len(first) < MAX_FINDINGS:
            at = times.index(0, at + 1)
            first.append((each.producer, at))
            missing -= 1
    return Missing(count, first)


def judge(
    sent: Sequence[SentRecords], sightings: Sightings, missing: Missing, places: Sequence[Finding]
) -> Verdict:
    """`places`: where the first missing ones were acknowledged."""
    damaged = {(f.topic, f.partition, f.offset) for f in sightings.findings if f.fault == "damaged"}
    lost = max(0, missing.total - sightings.counts["damaged"])
    gone = [f for f in places if (f.topic, f.partition, f.offset) not in damaged] if lost else []
    order = {fault: number for number, fault in enumerate(FAULTS)}
    findings = sorted([*gone, *sightings.findings], key=lambda each: order[each.fault])
    total, unsure = sum(s.count for s in sent), sum(s.unsure_count for s in sent)
    return Verdict(
        sent=total,
        acknowledged=total - unsure,
        unsure=unsure,
        read=sightings.read,
        lost=lost,
        doubled=sightings.counts["doubled"],
        reordered=sightings.counts["reordered"],
        damaged=sightings.counts["damaged"],
        findings=findings,
    )
