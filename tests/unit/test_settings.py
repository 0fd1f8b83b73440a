"""Settings: which source wins, how each mistake is named, and that printed settings read back."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.protocol.errors import BadConfig
from seglog.server.config import BrokerConfig
from seglog.server.settings import (
    MAX_CONFIG_FILE_BYTES,
    OTHER_VARIABLES,
    Given,
    flag,
    load_settings,
    print_config,
    set_flag,
)
from seglog.server.settings_table import Setting, field_comments, settings_table

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def write(tmp_path: Path):
    """Writes a settings file and returns its path."""

    def write_file(text: str | bytes) -> Path:
        path = tmp_path / "seglog.toml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write_file


def refusal(*arguments, **named) -> str:
    with pytest.raises(BadConfig) as caught:
        load_settings(*arguments, **named)
    return str(caught.value)


# --- which source wins ---------------------------------------------------------------------------


def test_without_any_source_the_defaults_hold():
    assert load_settings() == BrokerConfig()


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("in_environment", [False, True])
@pytest.mark.parametrize("in_flags", [False, True])
def test_flags_beat_variables_beat_the_file_beats_the_defaults(
    write, in_file, in_environment, in_flags
):
    path = write("port = 1\ntopic.segment.ms = 1") if in_file else None
    variables = {"SEGLOG_PORT": "2", "SEGLOG_TOPIC_SEGMENT_MS": "2"} if in_environment else {}
    flags = [flag("--port", "port", "3"), set_flag("topic.segment.ms=3")] if in_flags else []

    config = load_settings(path, variables, flags)

    default = BrokerConfig()
    expected = 3 if in_flags else 2 if in_environment else 1 if in_file else None
    assert config.port == (expected or default.port)
    assert config.topic.segment_ms == (expected or default.topic.segment_ms)


def test_each_source_adds_to_the_others(write):
    config = load_settings(
        write("[topic]\nretention.ms = 5\nsegment.ms = 6"),
        {"SEGLOG_MAX_TOPICS": "7"},
        [set_flag("topic.retention.bytes=8")],
    )

    assert (config.topic.retention_ms, config.topic.segment_ms) == (5, 6)
    assert (config.max_topics, config.topic.retention_bytes) == (7, 8)


# --- how values are written ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        'topic.retention.ms = 5\nmax.connections = 7\ndata = "d"',
        '"topic.retention.ms" = 5\n"max.connections" = 7\n"data" = "d"',
        '"max.connections" = 7\ndata = "d"\n[topic]\nretention.ms = 5',
        'data = "d"\n[max]\nconnections = 7\n[topic.retention]\nms = 5',
        'data = "d"\nmax = {connections = 7}\ntopic = {"retention.ms" = 5}\n[reader]',
    ],
)
def test_dotted_keys_quoted_keys_and_tables_mean_the_same(write, text):
    config = load_settings(write(text))

    assert (config.topic.retention_ms, config.max_connections, config.data) == (5, 7, "d")


@pytest.mark.parametrize(
    ("key", "text", "number"),
    [
        ("topic.retention.ms", "7d", 7 * 86_400_000),
        ("topic.retention.ms", "36h", 36 * 3_600_000),
        ("topic.retention.ms", "-1", -1),
        ("idle.timeout.ms", "5m", 300_000),
        ("idle.timeout.ms", "30s", 30_000),
        ("idle.timeout.ms", "30 s", 30_000),
        ("idle.timeout.ms", "250ms", 250),
        ("max.frame.bytes", "64MiB", 64 << 20),
        ("max.frame.bytes", "64KiB", 64 << 10),
        ("max.frame.bytes", "1GiB", 1 << 30),
        ("port", "80", 80),
    ],
)
def test_sizes_and_times_may_be_written_with_a_unit(write, key, text, number):
    by_flag = load_settings(flags=[set_flag(f"{key}={text}")])
    by_file = load_settings(write(f'"{key}" = "{text}"'))

    assert by_flag == by_file == load_settings(flags=[Given(key, number, "")])


@pytest.mark.parametrize(
    "text",
    ["idle.timeout.ms=5x", "idle.timeout.ms=5MiB", "max.frame.bytes=5s", "max.frame.bytes=64MB",
     "max.topics=5s", "idle.timeout.ms=s", "idle.timeout.ms=1.5s", "max.frame.bytes=٣MiB"],
)  # fmt: skip
def test_a_unit_that_is_not_the_settings_own_is_refused(text):
    assert "must be" in refusal(flags=[set_flag(text)])


def test_text_settings_are_taken_as_they_are():
    config = load_settings(
        environment={"SEGLOG_DATA": "7d", "SEGLOG_ADVERTISED_HOST": ""}, flags=[set_flag("host= ")]
    )

    assert (config.data, config.advertised_host, config.host) == ("7d", "", " ")


# --- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("max.connections = 0", "max.connections"),
        ('"max.connections" = "many"', "max.connections"),
        ("max.connections = true", "max.connections"),
        ("max.connections = [1]", "max.connections"),
        ("[topic]\nsegment.bytes = 1", "topic.segment.bytes"),
        ('topic.durability = "maybe"', "topic.durability"),
        ("data = 5", "data"),
    ],
)
def test_a_bad_value_in_a_file_is_named_with_file_key_and_range(write, text, key):
    path = write(text)

    message = refusal(path)

    assert f"{path}, key {key}: {key} must be {settings_table()[key].allowed}" in message


def test_a_bad_variable_is_named_with_its_range():
    message = refusal(environment={"SEGLOG_PORT": "70000"})

    assert "variable SEGLOG_PORT: port must be 0 to 65535, not '70000'" in message


def test_a_bad_flag_is_named_with_its_range():
    assert "flag --port: port must be 0 to 65535, not 'x'" in refusal(
        flags=[flag("--port", "port", "x")]
    )
    assert "flag --set topic.durability: topic.durability must be fsync or os" in refusal(
        flags=[set_flag("topic.durability=no")]
    )


@pytest.mark.parametrize("name", ["SEGLOG_HOST", "SEGLOG_DATA"])
def test_an_empty_host_or_folder_is_refused_rather_than_meaning_everywhere(name):
    assert f"variable {name}" in refusal(environment={name: ""})


@pytest.mark.parametrize(
    ("given_key", "meant"),
    [
        ("max.conections", "max.connections"),
        ("max_connections", "max.connections"),
        ("Max-Connections", "max.connections"),
        ("retention.ms", "topic.retention.ms"),
        ("topic.retention.m", "topic.retention.ms"),
        ("topics.durability", "topic.durability"),
    ],
)
def test_an_unknown_key_is_refused_with_the_one_that_was_meant(write, given_key, meant):
    path = write(f'"{given_key}" = 5')

    assert f"{path}, key {given_key}: no such setting; did you mean {meant}?" in refusal(path)
    assert f"flag --set {given_key}: no such setting; did you mean {meant}?" in refusal(
        flags=[set_flag(f"{given_key}=5")]
    )


def test_an_unknown_key_that_resembles_nothing_gets_no_suggestion(write):
    message = refusal(write("[zzz]"))

    assert "key zzz: no such setting." in message
    assert "did you mean" not in message


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("SEGLOG_MAX_CONECTIONS", "SEGLOG_MAX_CONNECTIONS"),
        ("SEGLOG_RETENTION_MS", "SEGLOG_TOPIC_RETENTION_MS"),
        ("SEGLOG_LOGLEVEL", "SEGLOG_LOG_LEVEL"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_one_that_was_meant(name, meant):
    message = refusal(environment={name: "5"})

    assert f"variable {name}: no such setting; did you mean {meant}?" in message


def test_variables_of_others_are_left_alone():
    others = dict.fromkeys([*OTHER_VARIABLES, "SEGLOG_TEST_ANYTHING", "PATH", "seglog_x"], "x")

    assert load_settings(environment=others) == BrokerConfig()


@pytest.mark.parametrize(
    ("name", "value"),
    [("SEGLOG_PORT", "tcp://10.0.0.1:7400"), ("SEGLOG_SERVICE_HOST", "10.0.0.1")],
)
def test_variables_of_a_kubernetes_service_are_explained(name, value):
    message = refusal(environment={name: value})

    assert f"variable {name}" in message
    assert "enableServiceLinks" in message


def test_all_bad_values_of_all_sources_are_told_together(write):
    message = refusal(
        write("port = -1\nmax.topics = 0"),
        {"SEGLOG_PORT": "x", "SEGLOG_NONSENSE": "1"},
        [set_flag("port=5"), set_flag("nonsense=1")],
    )

    for part in ["key port", "key max.topics", "SEGLOG_PORT", "SEGLOG_NONSENSE", "--set nonsense"]:
        assert part in message
    assert "\n" not in message


def test_a_bad_value_is_refused_even_where_a_later_source_replaces_it(write):
    assert "key port" in refusal(write("port = -1"), flags=[set_flag("port=5")])


def test_a_setting_given_twice_in_one_source_is_refused(write):
    assert "flag --set port: given before, as flag --port" in refusal(
        flags=[flag("--port", "port", "1"), set_flag("port=2")]
    )
    assert "given before" in refusal(write('"topic.segment.ms" = 1\n[topic]\nsegment.ms = 2'))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("port = ", "not valid TOML"),
        ("port 5", "line 1"),
        (b"data = '\xff'", "UTF-8"),
        ("max.connections = 5\nmax.connections.per.address = 5", '"max.connections" = 100'),
        (b"#" * (MAX_CONFIG_FILE_BYTES + 1), "larger than"),
    ],
)
def test_a_file_that_is_not_toml_is_refused_by_its_name(write, content, reason):
    path = write(content)

    message = refusal(path)

    assert str(path) in message
    assert reason in message


def test_a_file_that_cannot_be_read_is_refused_by_its_name(tmp_path):
    assert str(tmp_path / "none") in refusal(tmp_path / "none")
    assert str(tmp_path) in refusal(tmp_path)


def test_set_needs_a_key_and_a_value():
    with pytest.raises(BadConfig, match=r"flag --set 'port': it must be KEY=VALUE"):
        set_flag("port")


def test_a_long_value_is_not_repeated_in_full():
    assert len(refusal(flags=[set_flag("port=" + "9" * 10_000)])) < 300


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=12), max_size=4))
def test_whatever_is_given_the_answer_is_settings_or_a_refusal(given_texts):
    flags = [Given(key, value, "flag") for key, value in given_texts.items()]
    variables = {f"SEGLOG_{key}": value for key, value in given_texts.items()}
    for arguments in ({"flags": flags}, {"environment": variables}):
        try:
            assert isinstance(load_settings(**arguments), BrokerConfig)
        except BadConfig:
            pass


# --- the way back --------------------------------------------------------------------------------


def values_of(setting: Setting) -> st.SearchStrategy:
    """Every value that a setting takes."""
    match msgspec.inspect.type_info(setting.type):
        case msgspec.inspect.IntType(ge=low, le=high):
            return st.integers(low, high if high is not None else 1 << 62)
        case msgspec.inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.StrType():
            return st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
        case other:
            raise AssertionError(f"{setting.key}: what does {other} take?")


LONGEST, SHORTEST = "group.max.session.timeout.ms", "group.min.session.timeout.ms"


def load_chosen(chosen: dict[str, Any]) -> BrokerConfig:
    # The one pair that must agree: the longest is never shorter than the shortest.
    if SHORTEST in chosen or LONGEST in chosen:
        table = settings_table()
        pair = [chosen.get(key, table[key].default) for key in (SHORTEST, LONGEST)]
        chosen = {**chosen, SHORTEST: min(pair), LONGEST: max(pair)}
    return load_settings(flags=[Given(key, value, "") for key, value in chosen.items()])


configs = st.fixed_dictionaries(
    {}, optional={key: values_of(setting) for key, setting in settings_table().items()}
).map(load_chosen)


def test_a_shortest_session_beyond_the_longest_is_refused():
    with pytest.raises(BadConfig, match=SHORTEST):
        load_settings(flags=[set_flag(f"{SHORTEST}=5000"), set_flag(f"{LONGEST}=4000")])


@given(configs)
def test_printed_settings_read_back_as_the_same(tmp_path_factory, config):
    path = tmp_path_factory.getbasetemp() / "printed.toml"
    path.write_text(print_config(config), encoding="utf-8", newline="")

    assert load_settings(path) == config


@given(configs)
def test_any_settings_can_be_given_as_variables(config):
    values = tomllib.loads(print_config(config))
    variables = {settings_table()[key].variable: str(value) for key, value in values.items()}

    # A variable cannot hold a NUL, but here nothing needs to know.
    assert load_settings(environment=variables) == config


def test_printed_settings_explain_each_and_mark_what_differs():
    printed = print_config(load_settings(flags=[set_flag("port=1"), set_flag("max.topics=5")]))

    marked = [line for line in printed.splitlines() if "default:" in line]
    assert marked == ["port = 1  # default: 7400", '"max.topics" = 5  # default: 10000']
    assert "# The address to listen on." in printed
    assert '"idle.timeout.ms" = 600000  # 10m' in printed
    assert list(tomllib.loads(printed)) == list(settings_table())


# --- the table -----------------------------------------------------------------------------------


def test_every_setting_is_explained_and_has_a_variable_of_its_own():
    settings = settings_table().values()

    assert all(setting.explanation.endswith(".") for setting in settings)
    assert all(setting.allowed for setting in settings)
    assert len({setting.variable for setting in settings} - OTHER_VARIABLES) == len(settings)


def test_the_table_has_every_field():
    keys = set(settings_table())

    assert {"data", "max.connections.per.address", "topic.cleanup.policy"} <= keys
    assert len(keys) == len(BrokerConfig.__struct_fields__) - 1 + len(
        BrokerConfig().topic.__struct_fields__
    )


def test_a_comment_of_several_lines_is_joined_and_a_plain_one_is_not_taken():
    class Example:
        #: First line,
        #: second line.
        one: int = 1
        # Not this.
        two: int = 2

    assert field_comments(Example) == {"one": "First line, second line.", "two": ""}


def test_the_reference_in_the_docs_is_up_to_date():
    check = subprocess.run(
        [sys.executable, ROOT / "scripts/update_docs.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stderr
