"""Logs: a line to read on a terminal, a JSON object a line elsewhere, and no line that lies."""

import io
import json
import logging
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.server.logs import JsonFormatter, TextFormatter, configure_logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restore_logging(monkeypatch):
    root = logging.getLogger()
    ours = logging.getLogger("seglog")
    before = root.handlers[:], root.level, ours.level
    monkeypatch.delenv("NO_COLOR", raising=False)
    # basicConfig(force=True) would close the handlers that pytest watches the logs with.
    root.handlers[:] = []
    yield
    logging.captureWarnings(False)
    root.handlers[:], root.level = before[0], before[1]
    ours.setLevel(before[2])


def record(message="hello", *arguments, level=logging.INFO, exc_info=None, **extra):
    made = logging.LogRecord("seglog.x", level, "f.py", 1, message, arguments, exc_info)
    vars(made).update(extra)
    return made


def test_elsewhere_than_on_a_terminal_each_line_is_a_json_object():
    stream = io.StringIO()
    configure_logs(stream=stream)

    logging.getLogger("seglog.part").info("cut %d bytes", 5, extra={"path": "a/b", "bytes": 5})
    logging.getLogger("seglog.part").warning("two\nlines")

    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info",
        "logger": "seglog.part",
        "message": "cut 5 bytes",
        "path": "a/b",
        "bytes": 5,
    }
    assert (second["level"], second["message"]) == ("warning", "two\nlines")


def test_on_a_terminal_each_record_is_a_coloured_line():
    stream = Terminal()
    configure_logs(stream=stream)

    logging.getLogger("seglog.part").error("no", extra={"path": "a b"})

    (line,) = stream.getvalue().splitlines()
    assert "\x1b[31mERROR" in line
    assert line.endswith('no  path="a b"')


def test_no_color_is_respected(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    configure_logs(stream=stream)

    logging.getLogger("seglog").error("no")

    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("stream_type", [io.StringIO, Terminal])
def test_the_format_can_be_chosen(stream_type):
    for form, is_json in [("json", True), ("text", False)]:
        stream = stream_type()
        configure_logs(form=form, stream=stream)
        logging.getLogger("seglog").info("x")
        assert stream.getvalue().startswith("{") == is_json


def test_text_elsewhere_than_on_a_terminal_has_no_colours():
    stream = io.StringIO()
    configure_logs(form="text", stream=stream)

    logging.getLogger("seglog").info("x")

    assert stream.getvalue().endswith("INFO    seglog: x\n")
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize(
    ("level", "ours", "theirs"),
    [
        ("debug", ["d", "i", "w", "e"], ["w", "e"]),
        ("info", ["i", "w", "e"], ["w", "e"]),
        ("warning", ["w", "e"], ["w", "e"]),
        ("error", ["e"], ["e"]),
    ],
)
def test_the_level_holds_for_our_logs_and_others_are_never_more_talkative(level, ours, theirs):
    for name, expected in [("seglog.x", ours), ("asyncio", theirs)]:
        stream = io.StringIO()
        configure_logs(level, "json", stream)
        logger = logging.getLogger(name)
        for number, letter in [(10, "d"), (20, "i"), (30, "w"), (40, "e")]:
            logger.log(number, letter)
        assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == expected


def test_configuring_again_replaces_the_former_choice():
    first, second = io.StringIO(), io.StringIO()
    configure_logs(stream=first)
    configure_logs(stream=second)

    logging.getLogger("seglog").info("once")

    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_warnings_of_libraries_are_logged():
    stream = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure_logs(stream=stream)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(False)

    assert "old" in json.loads(stream.getvalue())["message"]


def test_a_traceback_is_a_field_in_json_and_follows_the_line_in_text():
    try:
        raise ValueError("inner")
    except ValueError as error:
        failed = record("failed", exc_info=(type(error), error, error.__traceback__))

    assert "ValueError: inner" in json.loads(JsonFormatter().format(failed))["exception"]
    text = TextFormatter().format(failed).splitlines()
    assert text[0].endswith("failed")
    assert text[-1] == "ValueError: inner"


def test_a_field_cannot_take_the_place_of_the_records_own():
    fields = json.loads(JsonFormatter().format(record("real", level_of=1, logger="fake", time=0)))

    assert (fields["logger"], fields["message"], fields["level_of"]) == ("seglog.x", "real", 1)
    assert fields["time"] != 0


values = st.one_of(
    st.none(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.text()), st.dates()
)


@given(st.text(), st.dictionaries(st.sampled_from(["peer", "topic", "bytes"]), values))
def test_every_record_is_one_line_whatever_a_client_puts_into_it(message, extra):
    made = record("from %s", message, **extra)

    as_json = JsonFormatter().format(made)
    assert as_json.isascii()
    assert len(as_json.splitlines()) == 1
    fields = json.loads(as_json, parse_constant=pytest.fail)
    assert fields["message"] == f"from {message}"
    assert set(extra) <= set(fields)

    as_text = TextFormatter().format(made)
    assert len(as_text.splitlines()) == 1
    assert "\x1b" not in as_text
