"""The settings of a topic."""

import msgspec
import pytest

from seglog.protocol.errors import BadConfig
from seglog.server.storage.config import LogConfig, config_values, make_config


def test_settings_have_dots_outside_and_defaults_that_keep_the_promises():
    values = config_values(make_config())

    assert values["durability"] == "fsync"
    assert values["segment.bytes"] == 64 * 1024 * 1024
    assert values["index.interval.bytes"] == 4096
    assert all("_" not in name for name in values)
    assert make_config(values) == make_config(None) == LogConfig()


def test_numbers_may_come_as_text_as_from_a_command_line():
    config = make_config({"segment.bytes": "1000", "retention.ms": "-1", "durability": "os"})
    assert (config.segment_bytes, config.retention_ms, config.durability) == (1000, -1, "os")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"segment.byte": 1000}, "segment.byte: no such setting"),
        ({"segment_bytes": 1000}, "segment_bytes: no such setting"),
        ({"": 1}, ": no such setting"),
        ({"segment.bytes": 127}, "segment.bytes: "),
        ({"segment.bytes": (1 << 30) + 1}, "segment.bytes: "),
        ({"segment.bytes": "many"}, "segment.bytes: "),
        ({"segment.bytes": None}, "segment.bytes: "),
        ({"segment.bytes": [1]}, "segment.bytes: "),
        ({"retention.ms": -2}, "retention.ms: "),
        ({"delete.retention.ms": -1}, "delete.retention.ms: "),
        ({"durability": "maybe"}, "durability: "),
        ({"cleanup.policy": "delete,compact"}, "cleanup.policy: "),
        ({"max.batch.bytes": 1 << 40}, "max.batch.bytes: "),
    ],
)
def test_a_wrong_setting_is_refused_by_name(settings, named):
    with pytest.raises(BadConfig) as raised:
        make_config(settings)
    assert raised.value.what.startswith(named)


def test_an_unknown_setting_is_answered_with_the_known_ones():
    with pytest.raises(BadConfig, match=r"cleanup\.policy, delete\.retention\.ms, durability"):
        make_config({"retention": 1})


def test_changes_keep_the_rest_and_are_checked_alike():
    config = make_config({"segment.bytes": 1000, "durability": "os"})

    changed = config.with_changes({"segment.bytes": 2000})

    assert (changed.segment_bytes, changed.durability) == (2000, "os")
    assert config.segment_bytes == 1000
    with pytest.raises(BadConfig, match="no such setting"):
        config.with_changes({"segment.size": 1})
    with pytest.raises(BadConfig):
        config.with_changes({"segment.bytes": 0})


@pytest.mark.parametrize(
    ("policy", "is_compacted", "deletes"),
    [("delete", False, True), ("compact", True, False), ("compact,delete", True, True)],
)
def test_a_cleanup_policy_says_what_happens(policy, is_compacted, deletes):
    config = make_config({"cleanup.policy": policy})
    assert (config.is_compacted, config.deletes_segments) == (is_compacted, deletes)


def test_a_configuration_cannot_be_changed_in_place():
    with pytest.raises(AttributeError):
        make_config().segment_bytes = 1  # type: ignore[misc]
    assert all(field.required is False for field in msgspec.structs.fields(LogConfig))
