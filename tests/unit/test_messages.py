"""Every message in the table of APIs: it round-trips, a bad field is refused by its name, and sides
of different age understand each other. All is derived from the types: a new message is covered by
being in the table.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect as kinds

from seglog.protocol import api, messages
from seglog.protocol.api import APIS, Api
from seglog.protocol.errors import BadRequest, UnsupportedApi, UnsupportedVersion
from seglog.protocol.fetch_frame import FetchedPartition, fetch_response_parts
from seglog.protocol.messages import FetchResponse, FetchResult, Message, WireError

#: A share of what the profile says: there are many messages, and each is small.
few_examples = settings(max_examples=settings().max_examples // 5)

each_api = pytest.mark.parametrize("which", APIS.values(), ids=lambda which: which.name)


def all_messages() -> list[type[msgspec.Struct]]:
    found: list[type[msgspec.Struct]] = []

    def visit(kind: kinds.Type) -> None:
        match kind:
            case kinds.StructType(cls=cls, fields=fields):
                if cls not in found:
                    found.append(cls)
                    for field in fields:
                        visit(field.type)
            case kinds.ListType(item_type=item):
                visit(item)
            case kinds.UnionType(types=types):
                for each in types:
                    visit(each)

    for which in APIS.values():
        visit(kinds.type_info(which.request))
        visit(kinds.type_info(which.response))
    return found


each_message = pytest.mark.parametrize("message", all_messages(), ids=lambda each: each.__name__)


# --- values from types ---------------------------------------------------------------------------


def bounds(kind: kinds.IntType) -> tuple[int, int]:
    """The lowest and the highest number: what msgpack can say, where the type does not."""
    low = kind.ge if kind.ge is not None else -(2**63) if kind.gt is None else kind.gt + 1
    high = kind.le if kind.le is not None else 2**64 - 1 if kind.lt is None else kind.lt - 1
    return low, high


def values(kind: kinds.Type) -> st.SearchStrategy[Any]:
    match kind:
        case kinds.IntType():
            low, high = bounds(kind)
            return st.integers(low, high) | st.sampled_from([low, high])
        case kinds.StrType(pattern=str(pattern)):
            return st.from_regex(pattern).filter(lambda text: len(text) <= (kind.max_length or 50))
        case kinds.StrType(min_length=low, max_length=high):
            return st.text(min_size=low or 0, max_size=min(high or 50, 50))
        case kinds.BoolType():
            return st.booleans()
        case kinds.NoneType():
            return st.none()
        case kinds.MemoryViewType():
            return st.binary(max_size=200).map(memoryview)
        case kinds.ListType(item_type=item, min_length=low):
            return st.lists(values(item), min_size=low or 0, max_size=4)
        case kinds.DictType(key_type=key, value_type=value):
            return st.dictionaries(values(key), values(value), max_size=4)
        case kinds.UnionType(types=types):
            return st.one_of(*map(values, types))
        case kinds.StructType(cls=cls, fields=fields):
            return st.builds(cls, *(values(field.type) for field in fields))
    raise TypeError(f"nobody has said how to make a {kind}")


@functools.cache
def any_of(message: type[Message]) -> st.SearchStrategy[Any]:
    return values(kinds.type_info(message))


@each_api
@few_examples
@given(st.data(), st.integers(-(2**63), 2**64 - 1))
def test_a_request_arrives_as_it_was_sent(which: Api, data, correlation_id):
    request = data.draw(any_of(which.request))
    envelope = api.decode_envelope(api.encode_request(which, correlation_id, request))
    assert envelope.correlation_id == correlation_id
    assert api.decode_request(envelope) == (which, request)


@each_api
@few_examples
@given(st.data(), st.integers(-(2**63), 2**64 - 1))
def test_a_response_arrives_as_it_was_sent(which: Api, data, correlation_id):
    response = data.draw(any_of(which.response))
    envelope = api.decode_response_envelope(api.encode_response(correlation_id, response))
    assert (envelope.correlation_id, envelope.error) == (correlation_id, None)
    assert api.decode_response(which, envelope.body) == response


@given(any_of(WireError), st.integers(0, 2**32))
def test_an_error_arrives_as_it_was_sent(error, correlation_id):
    envelope = api.decode_response_envelope(api.encode_error(correlation_id, error))
    assert (envelope.correlation_id, envelope.error) == (correlation_id, error)


# --- what is refused -----------------------------------------------------------------------------

Path = tuple[int, ...]


def example(kind: kinds.Type) -> Any:
    """A small right value, as plain arrays."""
    match kind:
        case kinds.IntType():
            low, high = bounds(kind)
            return min(max(low, 0), high)
        case kinds.StrType():
            return "x"
        case kinds.BoolType():
            return False
        case kinds.MemoryViewType():
            return b"x"
        case kinds.ListType(item_type=item):
            return [example(item)]
        case kinds.DictType(key_type=key, value_type=value):
            return {example(key): example(value)}
        case kinds.UnionType(types=types):
            return example(next(each for each in types if not isinstance(each, kinds.NoneType)))
        case kinds.StructType(fields=fields):
            return [example(field.type) for field in fields]
    raise TypeError(f"nobody has said how to make a {kind}")


def wrong_values(kind: kinds.Type) -> Iterator[Any]:
    """Values on the wrong side of each bound, and one of another type."""
    match kind:
        case kinds.IntType():
            low, high = bounds(kind)
            yield from (each for each in (low - 1, high + 1) if -(2**63) <= each < 2**64)
            yield "1"
        case kinds.StrType(min_length=low, max_length=high, pattern=pattern):
            if pattern:
                yield "a b"
            if low:
                yield "x" * (low - 1)
            if high is not None:
                yield "x" * (high + 1)
            yield 1
        case kinds.BoolType():
            yield 1
        case kinds.MemoryViewType():
            yield "text"
        case kinds.ListType(item_type=item, min_length=low, max_length=high):
            if low:
                yield [example(item)] * (low - 1)
            if high is not None:
                yield [example(item)] * (high + 1)
            yield {}
        case kinds.DictType(value_type=value, max_length=high):
            if high is not None:
                yield {f"{number}": example(value) for number in range(high + 1)}
            yield []
        case kinds.UnionType(types=types):
            yield 1.5
            if kind.includes_none and len(types) == 2:
                yield from wrong_values(types[isinstance(types[0], kinds.NoneType)])
        case _:
            yield {}


def places(kind: kinds.Type, path: Path = (), name: str = "") -> Iterator[tuple[Path, str, Any]]:
    """(where, what people call it, a wrong value) for everything in a request."""
    if path:
        yield from ((path, name, wrong) for wrong in wrong_values(kind))
    match kind:
        case kinds.StructType(fields=fields):
            for number, field in enumerate(fields):
                inner = f"{name}.{field.name}" if name else field.name
                yield from places(field.type, (*path, number), inner)
        case kinds.ListType(item_type=item):
            yield from places(item, (*path, 0), f"{name}[0]")
        case kinds.UnionType(types=types):
            for each in types:
                if isinstance(each, kinds.ListType):
                    yield from places(each.item_type, (*path, 0), f"{name}[0]")


def put(value: Any, path: Path, wrong: Any) -> Any:
    if not path:
        return wrong
    return [put(each, path[1:], wrong) if n == path[0] else each for n, each in enumerate(value)]


def all_wrong_fields() -> list[Any]:
    return [
        pytest.param(which, path, name, wrong, id=f"{which.name}-{name}-{number}")
        for which in APIS.values()
        for number, (path, name, wrong) in enumerate(places(kinds.type_info(which.request)))
    ]


def decode(which: Api, body: Any) -> Any:
    frame = msgspec.msgpack.encode([which.key, which.highest_version, 1, body])
    return api.decode_request(api.decode_envelope(frame))[1]


@pytest.mark.parametrize(("which", "path", "name", "wrong"), all_wrong_fields())
def test_a_wrong_field_is_refused_by_its_name(which: Api, path, name, wrong):
    body = example(kinds.type_info(which.request))
    decode(which, body)  # right but for the one field
    with pytest.raises(BadRequest) as raised:
        decode(which, put(body, path, wrong))
    assert raised.value.what.startswith(f"{which.name}: ")
    assert f"`{name}`" in raised.value.what


@each_api
@pytest.mark.parametrize("body", [None, {}, 1, "text", b"bytes"])
def test_a_body_that_is_none_is_refused(which: Api, body):
    with pytest.raises(BadRequest, match=which.name):
        decode(which, body)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",  # the one byte that msgpack never uses
        b"\x93\x01\x00\x01",  # no body
        b"\x94\x01\x00\x01\x90\x00",  # something behind the end
        b"\x94\xa1x\x00\x01\x90",  # an api that is text
        b"\x94\x01\x00\xcb" + bytes(8) + b"\x90",  # a correlation id that is a float
        b"\x94\x01\x00\x01\xdd\xff\xff\xff\xff",  # an array of four thousand million
        b"\x94\x01\x00\x01\xc6\xff\xff\xff\xff",  # bytes that never come
        b"\x94\x01\x00\x01" + b"\x91" * 100_000 + b"\xc0",  # deeper than anybody reads
        b"\x91" * 1_000_000,
        b"\x81" * 1_000_000,
    ],
    ids=lambda frame: frame[:12].hex() or "nothing",
)
def test_a_frame_that_is_no_request_is_refused(frame):
    with pytest.raises(BadRequest):
        api.decode_request(api.decode_envelope(frame))
    with pytest.raises(BadRequest):
        api.decode_response(api.HELLO, api.decode_response_envelope(frame).body)


def test_text_that_is_not_utf8_is_refused():
    frame = bytes([0x94, api.DELETE_TOPIC.key, 0, 1, 0x91, 0xA2, 0xFF, 0xFE])
    with pytest.raises(BadRequest, match="delete_topic: 'utf-8' codec"):
        api.decode_request(api.decode_envelope(frame))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_refused(frame):
    try:
        api.decode_request(api.decode_envelope(frame))
    except (BadRequest, UnsupportedApi, UnsupportedVersion):
        pass


def test_an_unknown_api_or_version_is_told_apart_from_a_bad_request():
    with pytest.raises(UnsupportedApi, match="no api 9999"):
        api.decode_request(api.RequestEnvelope(9999, 0, 1, msgspec.Raw(b"\x90")))
    with pytest.raises(UnsupportedVersion, match="hello version 99, there are 0 to"):
        api.decode_request(api.RequestEnvelope(api.HELLO.key, 99, 1, msgspec.Raw(b"\x90")))


# --- sides of different age ----------------------------------------------------------------------


def test_keys_and_names_are_each_one_api():
    assert all(key == which.key for key, which in APIS.items())
    assert len({which.name for which in APIS.values()}) == len(APIS)
    assert all(which.lowest_version <= which.highest_version for which in APIS.values())


def test_keys_that_were_given_out_keep_their_meaning():
    given_out = {
        1: "hello", 2: "metadata", 3: "create_topic", 4: "delete_topic", 5: "alter_topic",
        6: "describe_topic", 7: "produce", 8: "fetch", 9: "list_offsets", 10: "delete_records",
        11: "init_producer",
    }  # fmt: skip
    assert given_out.items() <= {key: which.name for key, which in APIS.items()}.items()


@each_message
@few_examples
@given(st.data())
def test_fields_with_defaults_may_be_missing_as_an_older_side_sends_them(message, data):
    whole = data.draw(any_of(message))
    fields = msgspec.structs.fields(message)
    required = sum(field.required for field in fields)
    count = data.draw(st.integers(required, len(fields)))
    array = msgspec.to_builtins(whole, builtin_types=(memoryview,))[:count]
    old = msgspec.msgpack.decode(msgspec.msgpack.encode(array), type=message)
    for number, field in enumerate(fields):
        if number < count:
            assert getattr(old, field.name) == getattr(whole, field.name)
        else:
            expected = (
                field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
            )
            assert getattr(old, field.name) == expected


@each_message
@few_examples
@given(st.data())
def test_fields_that_a_newer_side_adds_are_passed_over(message, data):
    whole = data.draw(any_of(message))
    array = msgspec.to_builtins(whole, builtin_types=(memoryview,))
    newer = msgspec.msgpack.encode([*array, "added later", {"x": [1, 2]}, None])
    assert msgspec.msgpack.decode(newer, type=message) == whole


def test_a_field_added_at_the_end_with_a_default_keeps_both_sides_working():
    class NewerFetch(messages.FetchRequest):
        rack: str = "anywhere"

    old = messages.FetchRequest(100, 1, 1000, [messages.FetchPartition("t", 0, 5, 1000)])
    new = NewerFetch(100, 1, 1000, old.partitions, "here")
    encode, read = msgspec.msgpack.encode, msgspec.msgpack.decode
    assert read(encode(old), type=NewerFetch).rack == "anywhere"
    assert read(encode(new), type=messages.FetchRequest) == old


# --- the fetch response that is put together by hand ---------------------------------------------

results = st.lists(
    st.builds(
        FetchedPartition,
        st.none() | any_of(WireError),
        st.integers(-1, 2**63 - 1),
        st.integers(-1, 2**63 - 1),
        st.binary(max_size=300).map(memoryview),
    ),
    max_size=20,
)


@given(st.integers(0, 2**64 - 1), results)
def test_a_fetch_response_in_parts_says_the_same_as_a_whole_one(correlation_id, rows):
    frame = b"".join(fetch_response_parts(correlation_id, rows))
    plain = FetchResponse([FetchResult(*row) for row in rows])
    by_hand = api.decode_response_envelope(frame)
    whole = api.decode_response_envelope(api.encode_response(correlation_id, plain))
    assert by_hand.correlation_id == whole.correlation_id
    assert by_hand.error is None
    assert api.decode_response(api.FETCH, by_hand.body) == plain
    # As any msgpack reader sees it, not only ours.
    assert msgspec.msgpack.decode(frame) == msgspec.msgpack.decode(
        api.encode_response(correlation_id, plain)
    )


def test_the_batches_of_a_fetch_response_are_not_copied():
    batches = memoryview(bytes(1000))
    parts = fetch_response_parts(1, [FetchedPartition(None, 0, 1, batches)] * 2)
    assert [part for part in parts if part is batches] == [batches] * 2
