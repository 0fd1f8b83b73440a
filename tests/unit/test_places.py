"""Places in a topic: from text to offsets, and what the command line makes of large numbers."""

from datetime import UTC, datetime

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from seglog.client.log_ends import LogEnds
from seglog.client.offsets import FoundOffset
from seglog.commands import places as on_the_command_line
from seglog.places import Last, offsets_at, out_of_range, parse_place
from seglog.protocol.times import EPOCH

ENDS = {0: LogEnds(5, 20), 3: LogEnds(0, 0), 7: LogEnds(10, 12)}
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)

# --- text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("0", 0),
        ("007", 7),
        ("1700000000000", 1_700_000_000_000),
        ("9223372036854775807", 2**63 - 1),
        ("-5", Last(5)),
        ("-0", Last(0)),
        ("2026-01-31T12:00:00Z", NOON),
        ("2026-01-31T14:00:00+02:00", NOON),
        ("1969-12-31T23:59:59.999999Z", EPOCH),
        ("0001-01-01T00:00:00+14:00", EPOCH),
    ],
)
def test_a_place_is_read(text, place):
    assert parse_place(text) == place


@pytest.mark.parametrize(
    "text", ["", "first", "-", "--5", "+5", " 5", "9223372036854775808", "1e3", "٣", "2026-13-01"]
)
def test_what_is_no_place_is_none(text):
    assert parse_place(text) is None


@given(st.text())
def test_any_text_is_a_place_or_none(text):
    place = parse_place(text)

    assert place is None or isinstance(place, str | int | Last | datetime)
    assert not isinstance(place, int) or 0 <= place < 2**63
    assert not isinstance(place, datetime) or place >= EPOCH


# --- offsets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "offsets"),
    [
        ("earliest", {0: 5, 3: 0, 7: 10}),
        ("latest", {0: 20, 3: 0, 7: 12}),
        (Last(4), {0: 16, 3: 0, 7: 10}),
        (Last(0), {0: 20, 3: 0, 7: 12}),
        (11, {0: 11, 3: 11, 7: 11}),
    ],
)
def test_a_place_is_an_offset_of_each_partition(place, offsets):
    assert offsets_at(place, ENDS, {}) == offsets


def test_a_time_is_where_the_broker_found_it_or_else_the_end():
    by_time = {0: FoundOffset(8, 1), 3: FoundOffset(-1, -1), 7: FoundOffset(13, 1)}

    # The record at 13 came after the ends were looked at.
    assert offsets_at(NOON, ENDS, by_time) == {0: 8, 3: 0, 7: 13}


def test_an_offset_that_is_not_there_is_told_with_those_that_are():
    error = out_of_range("t", 0, 99, ENDS[0])

    assert error.what == "t/0 has offsets 5 to 20, there is no 99"
    assert (error.log_start, error.durable_end) == (5, 20)


# --- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("999999999999", 10**12 - 1),
        ("1000000000000", datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)),
        ("1700000000123", datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)),
        ("-1000000000000", Last(10**12)),
    ],
)
def test_a_large_number_on_the_command_line_is_milliseconds(text, place):
    assert on_the_command_line.parse_place(text, "--from") == place


@pytest.mark.parametrize("text", ["noon", "253402300800000", "999999999999999999"])
def test_what_is_no_place_on_the_command_line_is_refused_by_its_flag(text):
    with pytest.raises(typer.BadParameter, match="neither earliest") as caught:
        on_the_command_line.parse_place(text, "--from")
    assert caught.value.param_hint == "--from"
