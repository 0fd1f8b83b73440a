"""What the tests of the sink share: where to write, and what is there afterwards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from seglog import Record, SyncAdmin, SyncConsumer


def sink(writer: Any, bootstrap: str, topic: str | None = "out", **options: Any) -> Any:
    """`df.write` or `df.writeStream` to a topic."""
    writer = writer.format(options.pop("format", "seglog"))
    writer = writer.option("seglog.bootstrap.servers", bootstrap)
    if topic is not None:
        writer = writer.option("topic", topic)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), str(value))
    return writer


def records(bootstrap: str, topic: str = "out") -> list[Record]:
    """Everything that can be read now, partition by partition."""
    with SyncAdmin(bootstrap) as admin:
        ends = {n: found.offset for n, found in admin.list_offsets(topic).items()}
    expected = sum(ends.values())
    found: list[Record] = []
    if expected:
        with SyncConsumer(topic, bootstrap=bootstrap, start="earliest") as consumer:
            while len(found) < expected:
                found += consumer.getmany(expected - len(found), timeout=30)
    return sorted(found, key=lambda record: (record.partition, record.offset))


def keys(bootstrap: str, topic: str = "out") -> Counter[bytes | None]:
    """How often each key is there."""
    return Counter(record.key for record in records(bootstrap, topic))


def once(count: int) -> Counter[bytes | None]:
    """The keys 0 to count - 1, each of them once."""
    return Counter(b"%d" % number for number in range(count))


def forget_batches(checkpoint: Path, *, commits_from: int, offsets_from: int | None = None) -> None:
    """Make a checkpoint older: without what Spark wrote from these batches on."""
    for folder, first in (("commits", commits_from), ("offsets", offsets_from)):
        if first is None:
            continue
        for path in (checkpoint / folder).iterdir():
            number = path.name.strip(".").split(".")[0]  # also of the checksum beside it
            if number.isdigit() and int(number) >= first:
                path.unlink()
