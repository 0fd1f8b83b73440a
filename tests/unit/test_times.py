"""Times as microseconds, datetimes and text."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.protocol.times import from_datetime, iso_time, parse_time, to_datetime

FIRST_US = from_datetime(datetime.min.replace(tzinfo=UTC))
LAST_US = from_datetime(datetime.max.replace(tzinfo=UTC))


@given(st.integers(FIRST_US, LAST_US))
def test_a_time_comes_back_from_its_text_to_the_microsecond(time_us):
    text = iso_time(time_us)

    assert text is not None
    assert text.endswith("Z")
    moment = parse_time(text)
    assert moment == to_datetime(time_us)
    assert from_datetime(moment) == time_us


@pytest.mark.parametrize("time_us", [FIRST_US - 1, LAST_US + 1, -(2**63), 2**63 - 1])
def test_a_time_beyond_the_calendar_has_no_text(time_us):
    assert iso_time(time_us) is None


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31 12:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("noon", None),
        ("2026-13-01", None),
        ("", None),
    ],
)
def test_a_time_without_a_zone_is_in_utc(text, moment):
    assert parse_time(text) == moment
