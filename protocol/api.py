"""The one table of APIs: key, name, versions, request, response. Nothing else knows the numbers.

    request   [api, version, correlation_id, body]
    response  [correlation_id, error or nil, body]      error: [code, message, details]

A key is never reused. A new API is a row here, its messages, a handler and a line in
docs/protocol.md.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple, get_args

import msgspec

from . import group_messages as g
from . import messages as m
from .errors import BadRequest, UnsupportedApi, UnsupportedVersion
from .frame import Buffer


class Api(NamedTuple):
    """One row."""

    key: int
    name: str
    request: type[m.Message]
    response: type[m.Message]
    lowest_version: int = 0
    highest_version: int = 0


HELLO: Final = Api(1, "hello", m.HelloRequest, m.HelloResponse)
METADATA: Final = Api(2, "metadata", m.MetadataRequest, m.MetadataResponse)
CREATE_TOPIC: Final = Api(3, "create_topic", m.CreateTopicRequest, m.CreateTopicResponse)
DELETE_TOPIC: Final = Api(4, "delete_topic", m.DeleteTopicRequest, m.Empty)
ALTER_TOPIC: Final = Api(5, "alter_topic", m.AlterTopicRequest, m.Empty)
DESCRIBE_TOPIC: Final = Api(6, "describe_topic", m.DescribeTopicRequest, m.DescribeTopicResponse)
PRODUCE: Final = Api(7, "produce", m.ProduceRequest, m.ProduceResponse)
FETCH: Final = Api(8, "fetch", m.FetchRequest, m.FetchResponse)
LIST_OFFSETS: Final = Api(9, "list_offsets", m.ListOffsetsRequest, m.ListOffsetsResponse)
DELETE_RECORDS: Final = Api(10, "delete_records", m.DeleteRecordsRequest, m.DeleteRecordsResponse)
INIT_PRODUCER: Final = Api(11, "init_producer", m.InitProducerRequest, m.InitProducerResponse)
GROUP_HEARTBEAT: Final = Api(
    20, "group_heartbeat", g.GroupHeartbeatRequest, g.GroupHeartbeatResponse
)
GROUP_LEAVE: Final = Api(21, "group_leave", g.GroupLeaveRequest, m.Empty)
COMMIT_OFFSETS: Final = Api(22, "commit_offsets", g.CommitOffsetsRequest, g.CommitOffsetsResponse)
FETCH_OFFSETS: Final = Api(23, "fetch_offsets", g.FetchOffsetsRequest, g.FetchOffsetsResponse)
LIST_GROUPS: Final = Api(24, "list_groups", g.ListGroupsRequest, g.ListGroupsResponse)
DESCRIBE_GROUP: Final = Api(25, "describe_group", g.DescribeGroupRequest, g.DescribeGroupResponse)
DELETE_GROUP: Final = Api(26, "delete_group", g.DeleteGroupRequest, m.Empty)
STAGE: Final = Api(30, "stage", m.StageRequest, m.StageResponse)
COMMIT_STAGED: Final = Api(31, "commit_staged", m.CommitStagedRequest, m.CommitStagedResponse)
DESCRIBE_TRANSACTION: Final = Api(
    32, "describe_transaction", m.DescribeTransactionRequest, m.DescribeTransactionResponse
)

APIS: Final[dict[int, Api]] = {
    api.key: api
    for api in (
        HELLO,
        METADATA,
        CREATE_TOPIC,
        DELETE_TOPIC,
        ALTER_TOPIC,
        DESCRIBE_TOPIC,
        PRODUCE,
        FETCH,
        LIST_OFFSETS,
        DELETE_RECORDS,
        INIT_PRODUCER,
        GROUP_HEARTBEAT,
        GROUP_LEAVE,
        COMMIT_OFFSETS,
        FETCH_OFFSETS,
        LIST_GROUPS,
        DESCRIBE_GROUP,
        DELETE_GROUP,
        STAGE,
        COMMIT_STAGED,
        DESCRIBE_TRANSACTION,
    )
}


class RequestEnvelope(msgspec.Struct, array_like=True, gc=False):
    """The outside of a request; the body is decoded once the api is known."""

    api: int
    version: int
    correlation_id: int
    body: msgspec.Raw


class ResponseEnvelope(msgspec.Struct, array_like=True, gc=False):
    """The outside of a response."""

    correlation_id: int
    error: m.WireError | None
    body: msgspec.Raw


_decode_request = msgspec.msgpack.Decoder(RequestEnvelope).decode
_decode_response = msgspec.msgpack.Decoder(ResponseEnvelope).decode
_request_bodies = {api.key: msgspec.msgpack.Decoder(api.request).decode for api in APIS.values()}
_response_bodies = {api.key: msgspec.msgpack.Decoder(api.response).decode for api in APIS.values()}
_encode = msgspec.msgpack.Encoder().encode
# Text that is not UTF-8 is not a msgspec error.
_MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_envelope(frame: bytes | bytearray) -> RequestEnvelope:
    """The outside of a request frame; BadRequest where it has none."""
    try:
        return _decode_request(frame)
    except _MALFORMED as error:
        raise BadRequest(f"not a request: {error}") from None


def decode_request(envelope: RequestEnvelope) -> tuple[Api, Any]:
    """The api that is asked for and its typed request."""
    api = APIS.get(envelope.api)
    if api is None:
        raise UnsupportedApi(f"no api {envelope.api}")
    if not api.lowest_version <= envelope.version <= api.highest_version:
        raise UnsupportedVersion(
            f"{api.name} version {envelope.version}, there are {api.lowest_version} to "
            f"{api.highest_version}"
        )
    try:
        return api, _request_bodies[api.key](envelope.body)
    except _MALFORMED as error:
        raise BadRequest(f"{api.name}: {_named(api.request, str(error))}") from None


def decode_response_envelope(frame: Buffer) -> ResponseEnvelope:
    """The outside of a response frame."""
    try:
        return _decode_response(frame)
    except _MALFORMED as error:
        raise BadRequest(f"not a response: {error}") from None


def decode_response(api: Api, body: msgspec.Raw) -> Any:
    """The typed response of `api`."""
    try:
        return _response_bodies[api.key](body)
    except _MALFORMED as error:
        raise BadRequest(f"{api.name}: {_named(api.response, str(error))}") from None


def encode_request(api: Api, correlation_id: int, request: m.Message) -> bytes:
    """A request frame's content."""
    return _encode([api.key, api.highest_version, correlation_id, request])


def encode_response(correlation_id: int, response: m.Message) -> bytes:
    return _encode([correlation_id, None, response])


def encode_error(correlation_id: int, error: m.WireError) -> bytes:
    return _encode([correlation_id, error, None])


def told_errors(api: Api, response: m.Message) -> list[int]:
    """The codes of the errors that single entries of a response carry: of one topic, one
    partition. The response as a whole succeeded.
    """
    return [
        entry.error.code
        for field in _ENTRY_FIELDS[api.key]
        for entry in getattr(response, field)
        if entry.error is not None
    ]


def _entry_fields(response: type[m.Message]) -> list[str]:
    """The lists of a response whose entries may carry an error."""
    found = []
    for field in msgspec.structs.fields(response):
        entry = _message_in(field.type)
        if entry is not None and "error" in entry.__struct_fields__:
            found.append(field.name)
    return found


def _named(message: type[m.Message], reason: str) -> str:
    """msgspec says `$[3][0][2]`; people say `partitions[0].offset`."""
    return _PATH.sub(lambda path: f"`{_field_names(message, path[1])}`", reason)


_PATH: Final = re.compile(r"`\$((?:\[[^]]*\])+)`")


def _field_names(message: type[m.Message] | None, path: str) -> str:
    names = ""
    inside_list = False
    for step in re.findall(r"\[([^]]*)\]", path):
        fields = msgspec.structs.fields(message) if message and not inside_list else ()
        if step.isdigit() and int(step) < len(fields):
            field = fields[int(step)]
            names += f".{field.name}" if names else field.name
            message, inside_list = _message_in(field.type), True
        else:
            names += f"[{step}]"
            inside_list = False
    return names


def _message_in(kind: Any) -> type[m.Message] | None:
    """The message that a field is a list of, if it is one."""
    if isinstance(kind, type) and issubclass(kind, m.Message):
        return kind
    return next(filter(None, map(_message_in, get_args(kind))), None)


_ENTRY_FIELDS: Final = {api.key: _entry_fields(api.response) for api in APIS.values()}
