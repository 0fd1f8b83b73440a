"""What the node is asked and what it says: one JSON object a line.

    {"src": "c1", "dest": "n1", "body": {"type": "partition_read", "msg_id": 3, …}}
    {"src": "n1", "dest": "c1", "body": {"type": "partition_read_ok", "in_reply_to": 3, …}}

A message that goes into a log is kept as the JSON text it came as, without the spaces between its
parts; so a number of any size and an object's order of names come back as they were.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Raw

from ...protocol.constants import MAX_PARTITIONS_PER_TOPIC
from .lines import Line
from .refusals import Code, Refusal

Partition = Annotated[int, Meta(ge=0, lt=MAX_PARTITIONS_PER_TOPIC)]
Offset = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]

# --- requests ------------------------------------------------------------------------------------


class Request(msgspec.Struct, tag_field="type"):
    """A body; fields that are not named here are left alone."""


class Init(Request, tag="init"):
    node_id: str
    node_ids: list[str] = []


class PartitionAppend(Request, tag="partition_append"):
    topic: str
    partition: Partition
    message: Raw

    def __post_init__(self) -> None:
        self.message = _compact(self.message)


class PartitionRead(Request, tag="partition_read"):
    topic: str
    partition: Partition
    offset: Offset


class PartitionInfo(Request, tag="partition_info"):
    topic: str
    partition: Partition


class SegmentConfig(Request, tag="wal_segment_config"):
    max_segment_bytes: Annotated[int, Meta(ge=1)]


class SegmentInfo(Request, tag="wal_segment_info"):
    topic: str | None = None  # None: the log that was used last
    partition: Partition = 0


class Send(Request, tag="send"):
    key: str
    msg: Raw

    def __post_init__(self) -> None:
        self.msg = _compact(self.msg)


class Poll(Request, tag="poll"):
    offsets: dict[str, Offset]


class CommitOffsets(Request, tag="commit_offsets"):
    offsets: dict[str, Offset]


class ListCommittedOffsets(Request, tag="list_committed_offsets"):
    keys: list[str]


REQUESTS: Final[dict[str, type[Request]]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (
        Init,
        PartitionAppend,
        PartitionRead,
        PartitionInfo,
        SegmentConfig,
        SegmentInfo,
        Send,
        Poll,
        CommitOffsets,
        ListCommittedOffsets,
    )
}

# --- a line in -----------------------------------------------------------------------------------


class _Envelope(msgspec.Struct):
    src: str
    dest: str
    body: Raw


class _Head(msgspec.Struct):
    type: str
    msg_id: int | None = None


class Message(NamedTuple):
    """A line, as far as it could be understood."""

    src: str
    dest: str
    msg_id: int | None
    type: str
    request: Request | Refusal


def decode_line(line: Line) -> Message:
    """Never raises: what is wrong with the line is its refusal."""
    if line is None:
        return Message("", "", None, "", _malformed("the line is too long"))
    src = dest = type_ = ""
    msg_id: int | None = None
    try:
        line.decode()  # what is kept as text is not looked into again
        envelope = msgspec.json.decode(line, type=_Envelope)
        src, dest = envelope.src, envelope.dest
        head = msgspec.json.decode(envelope.body, type=_Head)
        type_, msg_id = head.type, head.msg_id
        kind = REQUESTS.get(type_)
        if kind is None:
            unknown = Refusal(Code.NOT_SUPPORTED, f"there is no request {type_[:64]!r}")
            return Message(src, dest, msg_id, type_, unknown)
        return Message(src, dest, msg_id, type_, msgspec.json.decode(envelope.body, type=kind))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if not type_:
            src, dest, msg_id = _find_sender(line)
        return Message(src, dest, msg_id, type_, _malformed(str(error)))


def _find_sender(line: bytes) -> tuple[str, str, int | None]:
    """Whom to tell that a line is wrong, where it says so at all."""
    try:
        found = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "", "", None
    fields = found if isinstance(found, dict) else {}
    src, dest, body = fields.get("src"), fields.get("dest"), fields.get("body")
    msg_id = body.get("msg_id") if isinstance(body, dict) else None
    return (
        src if isinstance(src, str) else "",
        dest if isinstance(dest, str) else "",
        msg_id if type(msg_id) is int else None,
    )


def _malformed(text: str) -> Refusal:
    return Refusal(Code.MALFORMED_REQUEST, text)


# --- messages in a log ---------------------------------------------------------------------------


_SPARE_LEVELS: Final = 64  # of nesting, and so of the stack, beyond what a message takes


def _compact(message: Raw) -> Raw:
    """A message as it is kept. RecursionError where it is nested so deep that reading it back,
    from another place in the program, might find no room on the stack.
    """
    nested = b"[" * _SPARE_LEVELS + bytes(message) + b"]" * _SPARE_LEVELS
    return Raw(msgspec.json.format(nested, indent=-1)[_SPARE_LEVELS:-_SPARE_LEVELS])


def from_value(value: bytes | None) -> Raw:
    """A record's value as JSON. One that a producer of another kind wrote becomes a string."""
    if value is None:
        return Raw(b"null")
    try:
        value.decode()
        return Raw(msgspec.json.format(value, indent=-1))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Raw(msgspec.json.encode(value.decode("utf-8", "replace")))


# --- a line out ----------------------------------------------------------------------------------

# Line ends to some readers (such as Python's str.splitlines), though not to JSON. They can only
# stand inside a string, where an escape means the same.
_ESCAPED: Final = (
    ("\u0085".encode(), rb"\u0085"),
    ("\u2028".encode(), rb"\u2028"),
    ("\u2029".encode(), rb"\u2029"),
)


def encode_reply(src: str, dest: str, body: dict[str, Any]) -> bytes:
    line = msgspec.json.encode({"src": src, "dest": dest, "body": body})
    for character, escape in _ESCAPED:
        line = line.replace(character, escape)
    return line + b"\n"
