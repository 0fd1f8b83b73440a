"""The gateway's parts that need no socket: statuses, places, cells as JSON, event ids."""

import base64
import json
import subprocess
import sys
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.gateway.figures import Figures
from seglog.gateway.models import ProduceIn
from seglog.gateway.places import parse_place
from seglog.gateway.problems import STATUS, Problem, Refused, problem, status_of
from seglog.gateway.records import Encoding, encode_json, to_json
from seglog.gateway.settings import GatewaySettings
from seglog.gateway.streams import parse_event_id
from seglog.protocol.errors import ERRORS, OffsetOutOfRange, SeglogError, UnknownTopic
from seglog.protocol.records import Record
from seglog.serve_config import ServeConfig
from seglog.server.settings import load_settings, print_config, set_flag
from seglog.server.settings_table import settings_table

# --- errors --------------------------------------------------------------------------------------


def test_every_error_of_the_table_has_a_status_of_its_own():
    assert set(STATUS) == set(ERRORS.values())


@pytest.mark.parametrize("kind", ERRORS.values(), ids=lambda kind: kind.__name__)
def test_what_may_pass_is_never_the_clients_fault(kind):
    assert not (kind.retriable and status_of(kind("x")) < 429)


@pytest.mark.parametrize("kind", ERRORS.values(), ids=lambda kind: kind.__name__)
def test_every_error_is_a_problem_as_the_specification_has_it(kind):
    body = problem(kind("what happened"))

    found = Problem.model_validate(body)
    assert (found.name, found.code) == (kind.wire_name(), kind.code)
    assert found.status == STATUS[kind]
    assert found.advice or kind in (SeglogError, ERRORS[900])  # the roots, which nobody raises
    assert json.loads(msgspec.json.encode(body)) == body


def test_an_error_that_the_table_does_not_have_counts_as_its_parent():
    class Newer(UnknownTopic):
        code = 9999

    assert status_of(Newer("x")) == 404


def test_the_numbers_of_an_error_travel_with_it():
    body = problem(OffsetOutOfRange("gone", 5, 9))

    assert body["details"] == {"log_start": 5, "durable_end": 9}


# --- places --------------------------------------------------------------------------------------


def test_a_plus_that_nobody_escaped_is_still_a_zone():
    place = parse_place("from", "2026-01-31T12:00:00 02:00")
    assert place == datetime(2026, 1, 31, 10, tzinfo=UTC)


def test_a_large_number_stays_an_offset():
    assert parse_place("from", "1700000000000") == 1_700_000_000_000


def test_what_is_no_place_is_refused_by_name():
    with pytest.raises(Refused) as caught:
        parse_place("from", "2026-13-01")
    assert caught.value.status_code == 422
    assert caught.value.detail.startswith("from: ")


# --- cells ---------------------------------------------------------------------------------------

cells = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)
records = st.builds(
    Record,
    st.just("t"),
    st.integers(0, 9999),
    st.integers(0, 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
    cells,
    cells,
    st.lists(st.tuples(st.text(max_size=5), cells), max_size=3).map(tuple),
)


def sent_again(shown: dict) -> ProduceIn:
    """What a client that copies a record sends: the same cells, in the same fields."""
    kept = {name: each for name, each in shown.items() if name[:3] in {"key", "val", "hea"}}
    return ProduceIn.model_validate({"records": [kept]})


@given(records, st.sampled_from([Encoding.auto, Encoding.base64]))
def test_cells_that_are_read_and_sent_again_are_the_same(record, encoding):
    shown = json.loads(encode_json(to_json(record, encoding)))

    again = sent_again(shown).records[0].outgoing
    assert (again.key, again.value, again.headers or ()) == (
        record.key,
        record.value,
        record.headers,
    )


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=9))
def test_a_document_is_shown_as_it_was_sent_and_on_one_line(document):
    value = json.dumps(document, indent=3).encode()
    line = encode_json(to_json(Record("t", 0, 0, 0, None, value), Encoding.json))

    assert json.loads(line)["value_json"] == document
    assert b"\n" not in line


@pytest.mark.parametrize("value", [b"", b"{", b"nan", b"[1", b"\xff", b'"\xff"', b"1 2"])
def test_what_is_no_document_is_shown_as_bytes(value):
    shown = to_json(Record("t", 0, 0, 0, None, value), Encoding.json)

    assert "value_json" not in shown
    found = shown["value"].encode() if "value" in shown else base64.b64decode(shown["value_base64"])
    assert found == value


def test_a_time_beyond_the_calendar_is_only_a_number():
    shown = to_json(Record("t", 0, 0, 2**62, None, None), Encoding.auto)
    assert (shown["timestamp"], shown["timestamp_us"]) == (None, 2**62)


@pytest.mark.parametrize("text", ["1969-12-31T23:59:59.999999Z", "noon", ""])
def test_a_record_is_never_given_another_time_than_it_has(text):
    with pytest.raises(ValueError, match="timestamp is "):
        ProduceIn.model_validate({"records": [{"value": "x", "timestamp": text}]})


# --- event ids -----------------------------------------------------------------------------------


@given(st.dictionaries(st.integers(0, 9999), st.integers(0, 2**63 - 1), min_size=1))
def test_an_event_id_is_read_back(offsets):
    text = ",".join(f"{number}:{offset}" for number, offset in offsets.items())
    assert parse_event_id(text) == offsets


@pytest.mark.parametrize(
    "text", ["", ":", "0", "0:", "0:1,", "0:1,0:2", "0:-1", "a:1", "0:1 ", "٣:1"]
)
def test_what_is_no_event_id_is_refused(text):
    with pytest.raises(Refused):
        parse_event_id(text)


# --- settings ------------------------------------------------------------------------------------


def test_the_gateways_settings_stand_beside_the_brokers(tmp_path):
    file = tmp_path / "seglog.toml"
    file.write_text('port = 1\n[http]\nport = 2\nmax.body.bytes = "1MiB"\n[topic]\nsegment.ms = 5')
    variables = {"SEGLOG_HTTP_MAX_RECORDS": "7"}

    config = load_settings(file, variables, [set_flag("http.heartbeat.ms=2s")], ServeConfig)

    assert (config.port, config.topic.segment_ms) == (1, 5)
    assert config.http == GatewaySettings(
        port=2, max_body_bytes=1 << 20, max_records=7, heartbeat_ms=2000
    )
    file.write_text(print_config(config))
    assert load_settings(file, {}, [], ServeConfig) == config


def test_every_setting_of_the_gateway_is_explained():
    rows = [row for row in settings_table(ServeConfig).values() if row.key.startswith("http.")]

    assert len(rows) == len(GatewaySettings.__struct_fields__)
    assert all(row.explanation.endswith(".") and row.allowed for row in rows)
    assert set(settings_table()) < set(settings_table(ServeConfig))


# --- figures and imports -------------------------------------------------------------------------


def test_the_brokers_figures_and_the_gateways_are_shown_together():
    body, content_type = Figures(lambda: (b"broker_up 1.0\n", "text/plain; version=0.0.4")).expose()

    assert body.startswith(b"broker_up 1.0\n")
    assert b"seglog_http_streams 0.0" in body
    assert b"process_resident" not in body  # the broker shows its process itself
    assert content_type == "text/plain; version=0.0.4"


def test_the_command_line_and_a_broker_load_no_http_library():
    code = (
        "import sys, seglog.cli, seglog.serve_config, seglog.server.app;"
        "print([m for m in ('fastapi', 'pydantic', 'starlette', 'uvicorn') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
