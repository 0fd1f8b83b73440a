"""What one run does, as options that were checked; a result keeps them as they were."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from scripts.loading.records import MAX_KEYS, KeyKind
from scripts.loading.sizes import BadSize, Sizes
from scripts.loading.stamps import CHECKED_BYTES, TIMED_BYTES

Kind = Literal["produce", "consume", "end-to-end"]
Mode = Literal["send", "await", "batch"]
Reading = Literal["batches", "records"]
Sharing = Literal["deal", "all", "group"]

#: Nothing runs for longer, or sends more.
MAX_SECONDS: Final = 24 * 3600
MAX_RECORDS: Final = 10_000_000_000
#: A checked run remembers some bytes of each record.
MAX_CHECKED_RECORDS: Final = 50_000_000
MAX_TASKS: Final = 1000
MAX_PROCESSES: Final = 64
MAX_PARTITIONS: Final = 10_000
#: The smallest event of the pools, with what stands before it.
_LEAST_FIELDS_BYTES: Final = 16


class BadWorkload(ValueError):
    """Options that do not fit together; says which, and what to do."""


def _about(description: str) -> Meta:
    return Meta(description=description)


class Workload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every option that decides what is measured."""

    kind: Annotated[Kind, _about("what is measured")]
    seconds: Annotated[float, _about("the time limit")] = 10.0
    records: Annotated[int, _about("the count limit; 0: none but `max_bytes`")] = 0
    max_bytes: Annotated[int, _about("no more than this is sent, before compression")] = 4 << 30
    fill: Annotated[int, _about("of `consume`: records written before it begins")] = 500_000
    rate: Annotated[float, _about("records/s in all; 0: as fast as it goes")] = 0.0
    size: Annotated[str, _about("of values, stamps included")] = "100"
    keys: Annotated[KeyKind, _about("which keys")] = "none"
    key_count: Annotated[int, _about("how many different ones")] = 10_000
    zipf_exponent: Annotated[float, _about("how uneven")] = 1.0
    mode: Annotated[Mode, _about("how producers send")] = "send"
    batch_records: Annotated[int, _about("of mode `batch`: records a call")] = 1_000
    in_flight: Annotated[int, _about("of mode `await`: callers of one producer")] = 1
    batch_bytes: Annotated[int, _about("of the producer")] = 256 * 1024
    linger_ms: Annotated[float, _about("of the producer")] = 5.0
    compression: Annotated[Literal["none", "zstd", "lz4"], _about("of the producer")] = "none"
    delivery_timeout_s: Annotated[float, _about("of the producer")] = 60.0
    producers: Annotated[int, _about("tasks with a client each")] = 1
    producer_processes: Annotated[int, _about("that these are spread over")] = 1
    consumers: Annotated[int, _about("tasks with a client each")] = 1
    consumer_processes: Annotated[int, _about("that these are spread over")] = 1
    reading: Annotated[Reading, _about("how consumers read")] = "batches"
    sharing: Annotated[Sharing, _about("who reads what")] = "deal"
    topics: Annotated[int, _about("made for the run")] = 1
    partitions: Annotated[int, _about("of each topic")] = 1
    durability: Annotated[Literal["fsync", "os"], _about("of the topics")] = "fsync"
    check: Annotated[bool, _about("whether every record was stamped and looked for")] = False
    kill_broker_every_s: Annotated[float, _about("0: never")] = 0.0
    seed: Annotated[int, _about("of records and keys")] = 1

    @property
    def produces(self) -> bool:
        return self.kind != "consume"

    @property
    def consumes(self) -> bool:
        return self.kind != "produce"

    @property
    def stamp_bytes(self) -> int:
        """What stands before the fields of each record."""
        if self.check:
            return CHECKED_BYTES
        return TIMED_BYTES if self.kind == "end-to-end" else 0

    @property
    def partition_count(self) -> int:
        return self.topics * self.partitions

    def record_limit(self, mean_bytes: float) -> int:
        """How many records are sent at most."""
        most = max(1, int(self.max_bytes / mean_bytes))
        return min(most, self.records) if self.records else most

    def described(self) -> str:
        """In a few words, for headings."""
        unit = " B" if self.size.isdigit() else ""
        parts = [self.kind, f"{self.size}{unit} records"]
        if self.produces:
            how = {"send": "send", "await": "send and await", "batch": "send_batch"}[self.mode]
            parts += [f"{self.producers} × {how}", self.durability]
            parts.append(f"{self.rate:,.0f}/s" if self.rate else "closed loop")
        if self.consumes:
            parts.append(f"{self.consumers} × {self.reading}")
        parts += [self.compression] * (self.compression != "none")
        parts += [f"{self.keys} keys"] * (self.keys != "none")
        parts += [f"{self.partition_count} partitions"] * (self.partition_count > 1)
        return ", ".join(parts) + (", checked" if self.check else "")


def check_workload(workload: Workload) -> Workload:
    """The same; BadWorkload where it cannot be run."""
    w = workload
    try:
        sizes = Sizes.parse(w.size)
    except BadSize as error:
        raise BadWorkload(f"--size {error}") from None
    least = _LEAST_FIELDS_BYTES + w.stamp_bytes
    if ":" not in w.size and sizes.least_bytes < least:
        raise BadWorkload(f"--size {w.size}: such records have at least {least} bytes")
    limits: list[tuple[str, float, float, float]] = [
        ("--seconds", w.seconds, 0.05, MAX_SECONDS),
        ("--records", w.records, 0, MAX_CHECKED_RECORDS if w.check else MAX_RECORDS),
        ("--fill", w.fill, 1, MAX_CHECKED_RECORDS if w.check else MAX_RECORDS),
        ("--rate", w.rate, 0, 1e9),
        ("--key-count", w.key_count, 1, MAX_KEYS),
        ("--zipf-exponent", w.zipf_exponent, 0, 10),
        ("--batch-records", w.batch_records, 1, 100_000),
        ("--in-flight", w.in_flight, 1, 100_000),
        ("--linger-ms", w.linger_ms, 0, 60_000),
        ("--delivery-timeout", w.delivery_timeout_s, 1, 3600),
        ("--producers", w.producers, 1, MAX_TASKS),
        ("--producer-processes", w.producer_processes, 1, min(w.producers, MAX_PROCESSES)),
        ("--consumers", w.consumers, 1, MAX_TASKS),
        ("--consumer-processes", w.consumer_processes, 1, min(w.consumers, MAX_PROCESSES)),
        ("--topics", w.topics, 1, 1000),
        ("--partitions", w.partitions, 1, MAX_PARTITIONS),
        ("--kill-broker-every", w.kill_broker_every_s, 0, MAX_SECONDS),
    ]
    for name, value, low, high in limits:
        if not low <= value <= high:
            raise BadWorkload(f"{name} {value:g}: from {low:g} to {high:g}")
    if w.consumes and w.sharing == "deal" and w.consumers > w.partition_count:
        raise BadWorkload(
            f"--consumers {w.consumers}: {w.partition_count} partition(s) are dealt to them, so "
            "some would have none. Use more --partitions, or --sharing all"
        )
    if w.kind == "consume" and w.kill_broker_every_s:
        raise BadWorkload("--kill-broker-every goes with produce and end-to-end")
    return workload
