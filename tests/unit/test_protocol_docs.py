"""docs/protocol.md says what the code does: its tables are fresh, its dumps are real frames."""

import re
import struct
from pathlib import Path

import pytest

from scripts import docs_protocol
from seglog.protocol import api, messages
from seglog.protocol.batch import decode_batch, encode_batch
from seglog.protocol.errors import ERRORS, ClientError
from seglog.protocol.fetch_frame import FetchedPartition, fetch_response_parts
from seglog.protocol.frame import pack_frame
from seglog.protocol.header import pack_prefix
from seglog.protocol.produce_frame import encode_produce, produce_target
from seglog.server.settings_table import settings_table

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")

AT_US = 1_700_000_000_000_000
BATCH = encode_batch([b"hi", b"there"], [b"k", None], AT_US, producer_id=12, base_sequence=0)
STORED = pack_prefix(41, AT_US + 1500, len(BATCH), 0) + bytes(BATCH[28:])


def part(name: str) -> str:
    found = re.search(rf"<!-- generated: {name} -->\n(.*?)<!-- /generated -->", TEXT, re.DOTALL)
    assert found, f"docs/protocol.md has no place for {name}"
    return found[1]


def dumped(name: str) -> bytes:
    """The bytes of a dump, as a reader would type them in: the notes stand behind two blanks."""
    lines = part(name).removeprefix("```text\n").partition("```")[0].splitlines()
    return b"".join(bytes.fromhex(re.split(r"  +", line)[0]) for line in lines)


def content(frame: bytes) -> bytes:
    (length,) = struct.unpack_from(">I", frame)
    assert length == len(frame) - 4
    return frame[4:]


@pytest.mark.parametrize("name", docs_protocol.GENERATED)
def test_what_is_made_from_the_code_is_up_to_date(name):
    expected = docs_protocol.GENERATED[name]() + "\n"
    assert part(name) == expected, "run scripts/update-docs"


def test_the_check_of_the_script_says_the_same():
    docs_protocol.main(check=True)
    assert docs_protocol.updated(TEXT) == TEXT
    stale = TEXT.replace("| 7 | [`produce`]", "| 8 | [`produce`]")
    assert docs_protocol.updated(stale) == TEXT


def test_the_dumped_produce_request_is_what_a_client_sends():
    frame = dumped("protocol-produce-request")
    envelope = api.decode_envelope(content(frame))
    which, request = api.decode_request(envelope)
    assert (which, envelope.correlation_id) == (api.PRODUCE, 7)
    assert request.batches == [messages.ProduceBatch("orders", 0, memoryview(BATCH))]
    assert frame == b"".join(pack_frame([api.encode_request(api.PRODUCE, 7, request)]))
    # The producer's own way to encode it takes other forms of the same values.
    by_hand = b"".join(encode_produce(7, [(produce_target("orders", 0), BATCH)]))
    assert api.decode_request(api.decode_envelope(content(by_hand))) == (which, request)


def test_the_dumped_produce_response_is_what_a_broker_sends():
    frame = dumped("protocol-produce-response")
    envelope = api.decode_response_envelope(content(frame))
    response = api.decode_response(api.PRODUCE, envelope.body)
    assert response.results == [messages.ProduceResult(None, 41, AT_US + 1500)]
    assert frame == b"".join(pack_frame([api.encode_response(7, response)]))


def test_the_dumped_fetch_request_is_what_a_client_sends():
    frame = dumped("protocol-fetch-request")
    envelope = api.decode_envelope(content(frame))
    which, request = api.decode_request(envelope)
    assert which is api.FETCH
    place = messages.FetchPartition("orders", 0, 41, 1 << 20, 0)
    assert request == messages.FetchRequest(500, 1, 4 << 20, [place])
    assert frame == b"".join(pack_frame([api.encode_request(api.FETCH, 8, request)]))


def test_the_dumped_fetch_response_is_what_a_broker_sends():
    frame = dumped("protocol-fetch-response")
    found = FetchedPartition(None, 0, 43, STORED)
    assert frame == b"".join(pack_frame(fetch_response_parts(8, [found])))
    (result,) = api.decode_response(
        api.FETCH, api.decode_response_envelope(content(frame)).body
    ).results
    records = decode_batch(result.batches).records()
    assert [(record.offset, record.key, record.value) for record in records] == [
        (41, b"k", b"hi"),
        (42, None, b"there"),
    ]


def test_every_api_every_error_and_every_setting_that_is_named_is_there():
    for each in api.APIS.values():
        assert f"### {each.name} ({each.key})\n" in TEXT
    names = {kind.wire_name() for kind in ERRORS.values() if not issubclass(kind, ClientError)}
    table = part("protocol-errors")
    assert all(f"`{name}`" in table for name in names)
    prose = TEXT.partition("## Errors")[0]
    assert set(re.findall(r"`([A-Z]+_[A-Z_]+)`", prose)) <= names
    settings = {key.removeprefix("topic.") for key in settings_table()}
    assert set(re.findall(r"`((?:max|idle|slow)\.[a-z.]+)`", prose)) <= settings


def test_every_link_leads_somewhere():
    anchors: dict[str, set[str]] = {}
    for path in (ROOT / "docs").glob("*.md"):
        headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        anchors[path.name] = {
            re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
        }
    for file, anchor in re.findall(r"\]\(([\w.]*)#([\w-]+)\)", TEXT):
        assert anchor in anchors[file or "protocol.md"], f"{file}#{anchor}"
