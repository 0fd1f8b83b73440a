"""A query in a process of its own, to be killed: python -m tests.spark_query '{"bootstrap": …}'.

It reads a topic into a foreachBatch that prints one JSON line a micro-batch, and in batch
`hangs_in` waits from there on: whoever started it kills it there. Spark finds the source by the
name of its module.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.spark_session import PATIENCE_S, ROOT, Batches, new_session, source


def main(plan: dict[str, Any]) -> None:
    with TemporaryDirectory() as warehouse:
        # Found by Spark itself, which asks the shell for the interpreter, without quotes.
        spark = new_session(Path(warehouse), registers=" " in sys.executable)
        batches = Batches()

        def show(frame: Any, batch_id: int) -> None:
            batches(frame, batch_id)
            offsets = [row[1:3] for row in batches.rows[batch_id]]
            say({"batch": batch_id, "offsets": offsets})
            if batch_id == plan["hangs_in"]:
                sys.stdin.read()  # never ends: the process is killed here

        frame = source(spark.readStream, plan["bootstrap"], plan["topic"], **plan["options"])
        writer = frame.writeStream.foreachBatch(show)
        query = writer.option("checkpointLocation", plan["checkpoint"]).start()
        say({"started": True})
        query.awaitTermination()


def say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


@contextmanager
def query_process(plan: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """Killed at the end, with its JVM."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.spark_query", json.dumps(plan)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # its own group, so that the JVM is killed with it
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def hear(process: subprocess.Popen[str], what: str) -> dict[str, Any]:
    """The next thing of this kind that it says: "started", or "batch"."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f'{{"{what}"'):
            found: dict[str, Any] = json.loads(line)
            return found
    raise AssertionError("the query ended by itself")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
