"""The node: requests in turn, a reply to each. It goes on whatever a line holds.

A run of appends is one group: it shares a sync, and its replies come after that. Everything else
is answered one by one; so a read sees each append that came before it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final

from ...protocol.constants import MIB
from ...protocol.errors import OffsetOutOfRange
from ..storage.log import Log
from ..storage.names import LOG, file_name
from . import messages
from .lines import Line
from .logs import Append, NodeLogs, Outcome
from .messages import Message, decode_line, encode_reply, from_value
from .refusals import Code, Refusal, refusal_of

logger = logging.getLogger(__name__)

#: What one poll reads, of all its keys together; the rest comes with the next.
MAX_POLL_BYTES: Final = 4 * MIB

_PAIR_BYTES: Final = 32  # what a reply takes for a message, besides the message
_ONE_BATCH: Final = 1  # a read gives at least one, however few bytes are asked for

Fields = dict[str, Any]


class Node:
    def __init__(self, logs: NodeLogs) -> None:
        self.node_id = ""  # until init: whatever a message is addressed to
        self._logs = logs
        self._next_msg_id = 0

    def answer(self, lines: Iterable[Line]) -> bytes:
        """A line of reply for each line that is not blank."""
        asked = [decode_line(line) for line in lines if line is None or line.strip()]
        replies: list[bytes] = []
        for are_appends, run in groupby(asked, key=_is_append):
            if are_appends:
                replies += self._append(list(run))
            else:
                replies += [self._reply(message, self._handle(message)) for message in run]
        return b"".join(replies)

    def _reply(self, message: Message, result: Fields | Refusal) -> bytes:
        body: Fields = {"type": "error" if isinstance(result, Refusal) else f"{message.type}_ok"}
        if message.msg_id is not None:
            body["in_reply_to"] = message.msg_id
        if isinstance(result, Refusal):
            body |= {"code": int(result.code), "text": result.text}
        else:
            body |= result
        body["msg_id"] = self._next_msg_id
        self._next_msg_id += 1
        return encode_reply(self.node_id or message.dest, message.src, body)

    # --- appends ---------------------------------------------------------------------------------

    def _append(self, run: list[Message]) -> list[bytes]:
        outcomes = self._logs.append([_to_append(message.request) for message in run])
        return [
            self._reply(message, _appended_fields(message, outcome))
            for message, outcome in zip(run, outcomes, strict=True)
        ]

    # --- everything else -------------------------------------------------------------------------

    def _handle(self, message: Message) -> Fields | Refusal:
        if isinstance(message.request, Refusal):
            return message.request
        try:
            return self._fields(message.request)
        except Exception as error:
            return refusal_of(error)

    def _fields(self, request: messages.Request) -> Fields:
        match request:
            case messages.Init():
                return self._init(request)
            case messages.PartitionRead():
                return self._read(request)
            case messages.PartitionInfo():
                return self._info(request)
            case messages.SegmentConfig():
                self._logs.set_max_segment_bytes(request.max_segment_bytes)
                return {"max_segment_bytes": request.max_segment_bytes}
            case messages.SegmentInfo():
                return self._segments(request)
            case messages.Poll():
                return self._poll(request)
            case messages.CommitOffsets():
                self._logs.commit(request.offsets)
                return {}
            case messages.ListCommittedOffsets():
                return {"offsets": self._logs.committed(request.keys)}
        raise Refusal(Code.NOT_SUPPORTED, type(request).__name__)

    def _init(self, request: messages.Init) -> Fields:
        self.node_id = request.node_id
        if len(request.node_ids) > 1:
            logger.warning("a node shares nothing with others: each of them has logs of its own")
        return {}

    def _read(self, request: messages.PartitionRead) -> Fields:
        topic, partition, offset = request.topic, request.partition, request.offset
        found = self._logs.read(topic, partition, offset, _ONE_BATCH)
        if not found:
            raise OffsetOutOfRange(f"offset {offset} is the end: there is no message yet")
        at, value = found[0]
        return {"message": from_value(value), "offset": at, "next_offset": at + 1}

    def _info(self, request: messages.PartitionInfo) -> Fields:
        log = self._logs.log(request.topic, request.partition)
        return {
            "start_offset": log.log_start,
            "end_offset": log.durable_end,  # the offset that the next message gets
            "segments": len(log.segments),
            "total_bytes": log.size_bytes,
        }

    def _segments(self, request: messages.SegmentInfo) -> Fields:
        if request.topic is None:
            log = self._logs.last_used()
        else:
            log = self._logs.log(request.topic, request.partition)
        segments = _segment_fields(log)
        return {"segments": segments, "active_segment": segments[-1]["file"]}

    def _poll(self, request: messages.Poll) -> Fields:
        room_bytes = MAX_POLL_BYTES
        msgs: dict[str, list[list[Any]]] = {}
        for key, offset in request.offsets.items():
            msgs[key] = []
            # Nothing there yet is no error: who polls is there before the messages.
            if room_bytes <= 0 or not self._logs.exists(key):
                continue
            if offset >= self._logs.log(key, 0).durable_end:
                continue
            for at, value in self._logs.read(key, 0, offset, room_bytes):
                msgs[key].append([at, from_value(value)])
                room_bytes -= len(value or b"") + _PAIR_BYTES
        return {"msgs": msgs}


def _is_append(message: Message) -> bool:
    return isinstance(message.request, messages.PartitionAppend | messages.Send)


def _to_append(request: messages.Request | Refusal) -> Append:
    if isinstance(request, messages.Send):
        return Append(request.key, 0, request.key.encode(), bytes(request.msg))
    assert isinstance(request, messages.PartitionAppend)
    return Append(request.topic, request.partition, None, bytes(request.message))


def _appended_fields(message: Message, outcome: Outcome) -> Fields | Refusal:
    if isinstance(outcome, Refusal):
        return outcome
    if isinstance(message.request, messages.Send):
        return {"offset": outcome.offset}
    return {
        "offset": outcome.offset,
        "segment": outcome.segment,
        "timestamp": outcome.append_time_us // 1_000_000,
    }


def _segment_fields(log: Log | None) -> list[Fields]:
    if log is None:  # as a log looks before its first message
        return [_segment(file_name(0, LOG), 0, 0, 0, is_sealed=False)]
    return [_segment(*info[:4], is_sealed=info.is_sealed) for info in log.describe()]


def _segment(file: str, start: int, end: int, size_bytes: int, *, is_sealed: bool) -> Fields:
    return {
        "file": file,
        "start_offset": start,
        "end_offset": end - 1,  # of the last message; one below the start while there is none
        "size_bytes": size_bytes,
        "sealed": is_sealed,
    }
