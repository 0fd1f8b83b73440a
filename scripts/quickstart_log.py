"""The quickstart's first half: the log engine by itself. Append, roll, read, crash, recover.

The crash is a real one: another process appends, each record acknowledged only after it is on disk,
and is killed in the middle. Everything that it was told is safe must be there afterwards.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from scripts.checks import Check
from seglog.protocol.batch import decode_batch, encode_batch
from seglog.protocol.header import split_batches
from seglog.protocol.records import Record
from seglog.server.storage.filesystem import FileSystem
from seglog.server.storage.folder import DataFolder
from seglog.server.storage.log import Log

TOPIC: Final = "orders"
SETTINGS: Final = {"segment.bytes": 20_000}  # small, so that there is something to see
ACKS_BEFORE_THE_KILL: Final = 300


def now_us() -> int:
    return time.time_ns() // 1000


def append(log: Log, *values: bytes) -> int:
    """Append records as one batch. When this returns they are on disk; gives the first offset."""
    return log.append(encode_batch(values, timestamps=now_us()), now_us()).base_offset


def read(log: Log, offset: int, most: int | None = None) -> list[Record]:
    """The records from `offset`, the reader's bookmark, on. Reading removes nothing."""
    records: list[Record] = []
    while (most is None or len(records) < most) and (found := log.read(offset, 64_000)):
        for batch in split_batches(found):
            columns = decode_batch(batch, topic=TOPIC)
            records += columns.between(offset, columns.next_offset)
            offset = columns.next_offset
    return records[:most]


def order(number: int) -> bytes:
    return b"order %06d: one coffee, one croissant" % number


# --- the process that is killed ------------------------------------------------------------------


def append_until_killed(folder: str) -> None:
    """Append for ever, and say after each record that it was acknowledged."""
    log = DataFolder(FileSystem(), folder).open_log(TOPIC, 0)
    while True:
        print(append(log, order(log.log_end)), flush=True)


def kill_a_writer(folder: Path) -> list[int]:
    """Start a process that appends, kill it, and return the offsets that it had acknowledged."""
    with subprocess.Popen(
        [sys.executable, "-m", "scripts.quickstart_log", str(folder)],
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
    ) as writer:
        assert writer.stdout is not None
        acked = [int(writer.stdout.readline()) for _ in range(ACKS_BEFORE_THE_KILL)]
        writer.kill()  # SIGKILL: it cannot clean up
        acked += [int(line) for line in writer.stdout if line.endswith(b"\n")]
    return acked


# --- the tour ------------------------------------------------------------------------------------


def show_segments(console: Console, log: Log) -> None:
    table = Table(title="The log is a folder of segment files, named by their first offset")
    for heading in ("file", "offsets", "bytes", ""):
        table.add_column(heading, justify="left" if heading in {"file", ""} else "right")
    for info in log.describe():
        table.add_row(
            info.file,
            f"{info.start_offset} – {info.end_offset - 1}",
            f"{info.size_bytes:,}",
            "sealed, never changes again" if info.is_sealed else "active, takes the appends",
        )
    console.print(table)


def tour(console: Console, folder: Path) -> list[Check]:
    """Everything in turn; what was promised, and whether it was kept."""
    data = DataFolder(FileSystem(), str(folder))
    data.create_topic(TOPIC, settings=dict(SETTINGS))
    log = data.open_log(TOPIC, 0)

    started = time.perf_counter()
    for number in range(0, 1000, 10):
        append(log, *[order(number + i) for i in range(10)])
    took_ms = (time.perf_counter() - started) * 1000
    console.print(f"\n[bold]1. Append.[/] 1,000 records in 100 batches, each on disk before its "
                  f"answer: {took_ms:.0f} ms.\n")  # fmt: skip
    show_segments(console, log)

    console.print(
        "\n[bold]2. Read.[/] Two readers, each with its own bookmark; nothing is removed."
    )
    for name, bookmark in (("billing", 0), ("shipping", 640)):
        first = read(log, bookmark, most=1)[0]
        console.print(f"   {name} reads offset {first.offset}: {first.value!r}")
    log.close()
    data.close()

    console.print(
        "\n[bold]3. Crash.[/] Another process goes on appending, and is killed (SIGKILL)."
    )
    acked = kill_a_writer(folder)
    console.print(f"   It had been told of {len(acked)} records that they are on disk.")

    started = time.perf_counter()
    data = DataFolder(FileSystem(), str(folder))
    log = data.open_log(TOPIC, 0)
    took_ms = (time.perf_counter() - started) * 1000
    console.print(f"\n[bold]4. Recover.[/] The log is open again after {took_ms:.1f} ms.\n")
    records = read(log, 0)
    log.close()
    data.close()
    return check(acked, records)


def check(acked: list[int], records: list[Record]) -> list[Check]:
    found = {record.offset: record.value for record in records}
    kept = [offset for offset in acked if found.get(offset) == order(offset)]
    in_order = [record.offset for record in records] == list(range(len(records)))
    return [
        Check("log: acknowledged before the kill", f"{len(acked)}", bool(acked)),
        Check("log: of these, there after it", f"{len(kept)}", kept == acked),
        Check("log: offsets without a gap", f"0 – {len(records) - 1}", in_order),
    ]


if __name__ == "__main__":
    append_until_killed(sys.argv[1])  # the process that is killed
