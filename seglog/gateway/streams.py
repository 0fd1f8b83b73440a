"""Following a topic: NDJSON lines, or server-sent events that resume exactly where they ended.

A stream has a Consumer of its own with a bounded buffer, and writes only what its client takes: a
client that stalls stops the fetching, costs `http.stream.buffer.bytes` and no more, and is cut off
after `http.slow.reader.timeout.ms` (connection.py). However a stream ends (its range is read, the
client goes, the gateway stops), it ends between two records, and its Consumer is closed.

The id of an event names, for every partition, the offset to go on at: `0:17,1:4`. It comes first
with no event, so that a client that got nothing yet resumes as exactly as any other.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..client.consumer import Consumer
from ..protocol.constants import KIB, MAX_OFFSET
from ..protocol.errors import BadRequest, SeglogError
from ..protocol.records import Record
from .limits import Slot
from .problems import Refused, problem
from .records import Encoding, encode_json, to_json

NDJSON_TYPE: Final = "application/x-ndjson"
EVENT_STREAM_TYPE: Final = "text/event-stream"
CHUNK_BYTES: Final = 64 * KIB
TAKE_RECORDS: Final = 500
RETRY_MS: Final = 1_000  # how soon a browser reconnects
FAREWELL_S: Final = 1.0
_LOOK_AGAIN_S: Final = 0.2

_ID: Final = re.compile(r"[0-9]{1,5}:[0-9]{1,19}(,[0-9]{1,5}:[0-9]{1,19})*")


class Reader:
    """What a stream reads: up to `ends` of each partition, or on and on (None)."""

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        starts: Mapping[int, int],
        ends: Mapping[int, int] | None,
        *,
        quiet_s: float,
        max_records: int | None = None,
    ) -> None:
        self.consumer = consumer
        self.topic = topic
        self.positions = dict(starts)
        self._ends = ends
        self._quiet_s = quiet_s if ends is None else min(quiet_s, _LOOK_AGAIN_S)
        self._left = max_records

    async def __aiter__(self) -> AsyncIterator[list[Record]]:
        """An empty list: nothing came for a while."""
        while not self._is_done():
            count = TAKE_RECORDS if self._left is None else min(TAKE_RECORDS, self._left)
            taken = await self.consumer.getmany(count, self._quiet_s)
            if self._left is not None:
                self._left -= len(taken)
            yield taken if self._ends is None else list(self._before_the_ends(taken))

    def _before_the_ends(self, records: Iterable[Record]) -> Iterator[Record]:
        assert self._ends is not None
        for record in records:
            if record.offset < self._ends[record.partition]:
                yield record

    def _is_done(self) -> bool:
        if self._left is not None and self._left <= 0:
            return True
        if self._ends is None:
            return False
        is_done = True
        for number, end in self._ends.items():
            if self.consumer.position(self.topic, number) >= end:
                self.consumer.pause((self.topic, number))
            else:
                is_done = False
        return is_done


# --- NDJSON --------------------------------------------------------------------------------------


async def ndjson(reader: Reader, encoding: Encoding) -> AsyncGenerator[bytes, None]:
    """A record a line; an error is the last line: `{"error": {…}}`."""
    try:
        async for records in reader:
            lines = (encode_json(to_json(record, encoding)) + b"\n" for record in records)
            for chunk in _chunks(lines):
                yield chunk
    except SeglogError as error:
        yield encode_json({"error": problem(error)}) + b"\n"


# --- server-sent events --------------------------------------------------------------------------


async def events(reader: Reader, encoding: Encoding) -> AsyncGenerator[bytes, None]:
    """Events of the type `message`, a record each; one of the type `error` is the last."""
    ids = {number: b"%d:%d" % (number, at) for number, at in sorted(reader.positions.items())}

    def event(record: Record) -> bytes:
        ids[record.partition] = b"%d:%d" % (record.partition, record.offset + 1)
        data = encode_json(to_json(record, encoding))
        return b"id: " + b",".join(ids.values()) + b"\ndata: " + data + b"\n\n"

    try:
        yield b"retry: %d\nid: %s\n\n" % (RETRY_MS, b",".join(ids.values()))
        async for records in reader:
            if not records:
                yield b": nothing new\n\n"
            for chunk in _chunks(map(event, records)):
                yield chunk
    except SeglogError as error:
        yield b"event: error\ndata: " + encode_json(problem(error)) + b"\n\n"


def parse_event_id(text: str) -> dict[int, int]:
    """The offset to go on at, by partition; refused with 422 where it is no id of ours."""
    if _ID.fullmatch(text):
        pairs = [each.split(":") for each in text.split(",")]
        offsets = {int(number): int(offset) for number, offset in pairs}
        if len(offsets) == len(pairs) and all(each <= MAX_OFFSET for each in offsets.values()):
            return offsets
    raise Refused(422, BadRequest("Last-Event-ID: not an id that an event of this topic had"))


def _chunks(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Whole parts together, of about CHUNK_BYTES."""
    gathered: list[bytes] = []
    size = 0
    for part in parts:
        gathered.append(part)
        size += len(part)
        if size >= CHUNK_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


# --- the answer ----------------------------------------------------------------------------------


class StreamResponse(Response):
    """Owns the consumer, the slot and the tasks of a stream, from when it is made to its end."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        consumer: Consumer,
        slot: Slot,
        *,
        media_type: str,
        stopping: asyncio.Event,
        max_s: float | None,
    ) -> None:
        # A proxy in between must not wait for more before it hands on what is there.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(None, 200, headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._chunks = chunks
        self._consumer = consumer
        self._slot = slot
        self._stopping = stopping
        self._max_s = max_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks: list[asyncio.Task[Any]] = []
        is_gone = False
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            pump = asyncio.create_task(self._pump(send))
            gone = asyncio.create_task(_until_gone(receive))
            stop = asyncio.create_task(self._stopping.wait())
            tasks = [pump, gone, stop]
            await asyncio.wait(tasks, timeout=self._max_s, return_when=asyncio.FIRST_COMPLETED)
            is_gone = gone.done()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._consumer.close()
            self._slot.release()
        if not pump.cancelled() and (error := pump.exception()) is not None:
            raise error
        if not is_gone:
            await _say_farewell(send)

    async def _pump(self, send: Send) -> None:
        async with aclosing(self._chunks):
            async for chunk in self._chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _say_farewell(send: Send) -> None:
    """The end of the body, unless the client takes nothing: then the connection is cut anyway."""
    try:
        async with asyncio.timeout(FAREWELL_S):
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    except TimeoutError:
        pass
