"""The table of errors: one code each, for ever, and each the same on both sides of the wire."""

import msgspec
import pytest

from seglog.protocol import api, errors
from seglog.protocol.errors import ERRORS, ClientError, SeglogError, error_from_wire
from seglog.protocol.messages import WireError

#: What brokers and clients in use know. Lines are only ever added.
GIVEN_OUT = {
    1: "SEGLOG_ERROR", 2: "INTERNAL_ERROR",
    10: "BAD_REQUEST", 11: "UNSUPPORTED_API", 12: "UNSUPPORTED_VERSION", 13: "LIMIT_EXCEEDED",
    14: "TOO_MANY_CONNECTIONS", 15: "HELLO_REQUIRED", 16: "SHUTTING_DOWN",
    20: "UNKNOWN_TOPIC", 21: "TOPIC_EXISTS", 22: "BAD_TOPIC_NAME", 23: "BAD_CONFIG",
    24: "UNKNOWN_PARTITION", 25: "PROTECTED_TOPIC",
    40: "BAD_BATCH", 41: "DAMAGED_BATCH", 42: "BATCH_TOO_LARGE", 43: "UNSUPPORTED_CODEC",
    60: "OFFSET_OUT_OF_RANGE", 61: "LOG_TRUNCATED", 62: "STORAGE_FULL", 63: "PARTITION_OFFLINE",
    64: "DAMAGED_LOG", 65: "FOLDER_LOCKED", 66: "STORAGE_ERROR",
    80: "SEQUENCE_GAP", 81: "DUPLICATE_SEQUENCE", 82: "PRODUCER_FENCED", 83: "UNKNOWN_PRODUCER",
    900: "CLIENT_ERROR", 901: "CONNECTION_LOST", 902: "REQUEST_TIMEOUT", 903: "DELIVERY_TIMEOUT",
    904: "CLIENT_CLOSED", 905: "NO_BROKER", 906: "CALLBACK_FAILED",
}  # fmt: skip


def all_errors() -> list[type[SeglogError]]:
    return [
        found
        for found in vars(errors).values()
        if isinstance(found, type) and issubclass(found, SeglogError)
    ]


each_error = pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)


def over_the_wire(error: SeglogError) -> SeglogError:
    frame = api.encode_error(7, WireError.of(error))
    envelope = api.decode_response_envelope(frame)
    assert envelope.error is not None
    return envelope.error.to_exception()


def test_a_code_names_one_error():
    kinds = all_errors()
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert len({kind.wire_name() for kind in kinds}) == len(kinds)
    assert {kind.code: kind for kind in kinds} == ERRORS


def test_a_code_that_was_given_out_keeps_its_meaning():
    assert GIVEN_OUT.items() <= {code: kind.wire_name() for code, kind in ERRORS.items()}.items()


@each_error
def test_every_error_has_a_code_of_its_own_and_says_what_it_is(kind):
    assert "code" in vars(kind)
    assert (kind.__doc__ or "").strip().endswith(".")


@each_error
def test_every_error_says_what_to_do_next(kind):
    if kind not in (SeglogError, ClientError):
        assert kind.advice
        assert not kind.advice.endswith("."), "the advice ends a message, which may go on"
        assert str(kind("something happened")) == f"something happened. {kind.advice}"


@each_error
def test_every_error_is_the_same_on_the_other_side(kind):
    error = kind("what happened: äöü")
    arrived = over_the_wire(error)
    assert type(arrived) is kind
    assert arrived.what == "what happened: äöü"
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)


@pytest.mark.parametrize(
    "error",
    [
        errors.OffsetOutOfRange("x", log_start=2**40, durable_end=2**63 - 1),
        errors.LogTruncated("x", cut_offset=17),
        errors.DamagedLog("x", resume_offset=0),
    ],
)
def test_the_numbers_travel_with_the_message(error):
    arrived = over_the_wire(error)
    assert arrived.details() == error.details() != {}
    assert vars(arrived) == vars(error)


def test_a_message_without_words_falls_back_to_the_name():
    assert over_the_wire(errors.UnknownTopic()).what == "UnknownTopic"


def test_an_error_of_a_newer_side_is_a_plain_one_that_keeps_its_message():
    arrived = error_from_wire(60_000, "too many frobs", {"frobs": 3})
    assert type(arrived) is SeglogError
    assert arrived.what == "too many frobs"
    assert arrived.details() == {"frobs": 3}
    assert not arrived.retriable


def test_an_error_without_details_as_an_older_side_sends_it_is_read():
    old = msgspec.msgpack.decode(msgspec.msgpack.encode([20, "no topic x"]), type=WireError)
    assert isinstance(old.to_exception(), errors.UnknownTopic)


def test_what_a_client_finds_out_by_itself_has_codes_of_its_own():
    for kind in all_errors():
        assert issubclass(kind, ClientError) == (900 <= kind.code < 1000), kind
