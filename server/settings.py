"""Where a broker's settings come from: defaults < TOML file < environment < flags.

Each source is a layer of `Given` values that know where they were written. A value that is unknown
or out of its range is refused wherever it stands, even if a stronger layer would replace it: a
mistake in a file should not wait for the day when the flag that hides it is dropped. All bad values
are told together, in one `BadConfig`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, overload

import msgspec

from ..protocol.errors import BadConfig
from .config import BrokerConfig
from .settings_table import VARIABLE_PREFIX, Setting, SettingsTable, sections, settings_table

#: Variables that are not settings of the broker: the command line's, the client's, the developers'.
OTHER_VARIABLES: Final = frozenset(
    {
        "SEGLOG_BOOTSTRAP",
        "SEGLOG_CONFIG",
        "SEGLOG_HYPOTHESIS_PROFILE",
        "SEGLOG_LOG_FORMAT",
        "SEGLOG_LOG_LEVEL",
        "SEGLOG_PYTHON",
    }
)
OTHER_VARIABLE_PREFIX: Final = "SEGLOG_TEST_"

MAX_CONFIG_FILE_BYTES: Final = 1024 * 1024
MAX_SHOWN_VALUE: Final = 60  # characters of a refused value that the message repeats

Config = TypeVar("Config", bound=BrokerConfig)

_AMOUNT = re.compile(r"(\d{1,18}) ?([A-Za-z]+)", re.ASCII)


class Given(NamedTuple):
    """A value that somebody gave, and where: a file and its key, a variable, a flag."""

    key: str
    value: object
    source: str


@overload
def load_settings(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Iterable[Given] = (),
) -> BrokerConfig: ...
@overload
def load_settings(
    file: Path | None,
    environment: Mapping[str, str] | None,
    flags: Iterable[Given],
    kind: type[Config],
) -> Config: ...
def load_settings(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Iterable[Given] = (),
    kind: type[BrokerConfig] = BrokerConfig,
) -> BrokerConfig:
    """The settings of one broker, from every layer; `BadConfig` tells all that is wrong.

    `kind`: what the settings are, where a program runs more than a broker.
    """
    table = settings_table(kind)
    layers = [
        file_layer(file, table) if file is not None else [],
        environment_layer(environment or {}, table),
        list(flags),
    ]
    chosen: dict[str, Any] = {}
    mistakes: list[str] = []
    for layer in layers:
        seen: dict[str, str] = {}
        for given in layer:
            try:
                if given.key in seen:
                    raise BadConfig(f"{given.source}: given before, as {seen[given.key]}")
                seen[given.key] = given.source
                chosen[given.key] = checked(given, table)
            except BadConfig as mistake:
                mistakes.append(mistake.what)
    if mistakes:
        raise BadConfig("; ".join(mistakes))
    try:
        return msgspec.convert(_nested(chosen, sections(kind)), kind)
    except msgspec.ValidationError as error:  # settings that are right alone, but not together
        raise BadConfig(str(error)) from None


# --- the layers ----------------------------------------------------------------------------------


def file_layer(path: Path, table: SettingsTable) -> list[Given]:
    """What a TOML file sets. Dotted keys, quoted keys and tables name the same settings."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_FILE_BYTES + 1)
        if len(data) > MAX_CONFIG_FILE_BYTES:
            raise BadConfig(f"{path}: larger than {MAX_CONFIG_FILE_BYTES} bytes")
        tables = tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise BadConfig(f"settings file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadConfig(f"{path}: not valid TOML: it must be UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        hint = ""
        if "overwrite" in str(error):  # max.connections and max.connections.per.address
            hint = '; where one key begins another, quote both: "max.connections" = 100'
        raise BadConfig(f"{path}: not valid TOML: {error}{hint}") from None
    return [Given(key, value, f"{path}, key {key}") for key, value in _flat(tables, table)]


def _flat(
    values: Mapping[str, Any], known: SettingsTable, prefix: str = ""
) -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        key = prefix + name
        begins_a_key = any(other.startswith(key + ".") for other in known)
        if isinstance(value, dict) and (value or begins_a_key):
            yield from _flat(value, known, key + ".")
        else:
            yield key, value


def _nested(values: Mapping[str, Any], levels: Iterable[str]) -> dict[str, Any]:
    """Only `topic.` and its like are levels; the other dots are part of a setting's name."""
    nested: dict[str, Any] = {level: {} for level in levels}
    for key, value in values.items():
        level, _, rest = key.partition(".")
        if level in nested and rest:
            nested[level][rest] = value
        else:
            nested[key] = value
    return nested


def environment_layer(environment: Mapping[str, str], table: SettingsTable) -> list[Given]:
    """What `SEGLOG_…` variables set. A variable that nobody reads is a mistake too."""
    by_variable = {setting.variable: setting.key for setting in table.values()}
    return [
        Given(by_variable.get(name, name), value, f"variable {name}")
        for name, value in sorted(environment.items())
        if name.startswith(VARIABLE_PREFIX)
        and name not in OTHER_VARIABLES
        and not name.startswith(OTHER_VARIABLE_PREFIX)
    ]


def flag(name: str, key: str, value: object) -> Given:
    """A setting with a flag of its own, such as `--port`."""
    return Given(key, value, f"flag {name}")


def set_flag(text: str) -> Given:
    """A setting from `--set KEY=VALUE`."""
    key, equals, value = text.partition("=")
    if not equals:
        raise BadConfig(f"flag --set {_shown(text)}: it must be KEY=VALUE")
    return Given(key.strip(), value, f"flag --set {key.strip()}")


# --- one value -----------------------------------------------------------------------------------


def checked(given: Given, table: SettingsTable | None = None) -> int | str | bool:
    """The value in its setting's own type; refused by its source, its key and what is allowed."""
    table = settings_table() if table is None else table
    setting = table.get(given.key)
    if setting is None:
        raise BadConfig(f"{given.source}: no such setting{_hint(given, table)}")
    try:
        value: int | str | bool = msgspec.convert(
            _in_plain_units(given.value, setting), setting.type, strict=False
        )
    except msgspec.ValidationError:
        allowed = setting.allowed
        if setting.units:
            short = " or ".join(f"5{unit}" for unit in list(setting.units)[-2:])
            allowed += f" (a number, or such as {short})"
        raise BadConfig(
            f"{given.source}: {setting.key} must be {allowed}, not {_shown(given.value)}"
            f"{_hint(given, table)}"
        ) from None
    return value


def _in_plain_units(value: object, setting: Setting) -> object:
    """`64MiB` or `7d` as the plain number that the key's unit asks for; all else as it is."""
    if not isinstance(value, str) or isinstance(setting.default, str):
        return value
    value = value.strip()
    amount = _AMOUNT.fullmatch(value)
    if amount and amount[2] in setting.units:
        return int(amount[1]) * setting.units[amount[2]]
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_VALUE else text[: MAX_SHOWN_VALUE - 1] + "…"


def _hint(given: Given, table: SettingsTable) -> str:
    """What was probably meant, if anything is likely."""
    if str(given.value).startswith("tcp://") or given.key.startswith("SEGLOG_SERVICE_"):
        # A Kubernetes service called "seglog" puts SEGLOG_PORT=tcp://… into every pod.
        return (
            "; if Kubernetes made it for a service called seglog, set enableServiceLinks: false"
            " in the pod"
        )
    if given.key in table:
        return ""
    import difflib  # noqa: PLC0415 - only a mistake needs it

    known = [*table]
    if given.key.startswith(VARIABLE_PREFIX):
        known = [*(setting.variable for setting in table.values()), *OTHER_VARIABLES]
    spelled = {name.casefold().replace("_", "."): name for name in known}
    wanted = given.key.casefold().replace("_", ".").replace("-", ".")
    # A topic's setting without its prefix is the likeliest mistake of all.
    close = [wanted.replace("seglog.", "seglog.topic.", 1), f"topic.{wanted}"]
    close = [name for name in close if name in spelled]
    close += difflib.get_close_matches(wanted, spelled, n=1)
    return f"; did you mean {spelled[close[0]]}?" if close else ""


# --- the way back --------------------------------------------------------------------------------


def print_config(config: BrokerConfig) -> str:
    """The settings as a TOML file, explained; read back, it gives the same settings."""
    parts = ["# The settings of a Seglog broker: seglog serve --config FILE\n"]
    for setting in settings_table(type(config)).values():
        value = _value_of(config, setting)
        notes = [f"default: {_toml(setting.default)}"] if value != setting.default else []
        if isinstance(value, int) and not isinstance(value, bool):
            notes = [note for note in [setting.short(value)] if note != str(value)] + notes
        line = f"{_toml_key(setting.key)} = {_toml(value)}"
        parts.append(
            f"# {setting.explanation} ({setting.allowed})\n"
            f"{line}{'  # ' + '; '.join(notes) if notes else ''}\n"
        )
    return "\n".join(parts)


def _value_of(config: BrokerConfig, setting: Setting) -> int | str | bool:
    owners = [config, *(getattr(config, name) for name in sections(type(config)))]
    (owner,) = [each for each in owners if isinstance(each, setting.owner)]
    value: int | str | bool = getattr(owner, setting.field)
    return value


def _toml_key(key: str) -> str:
    # Quoted, since max.connections cannot be a number and a table (…per.address) at once.
    return f'"{key}"' if "." in key else key


def _toml(value: int | str | bool) -> str:
    # A JSON string is a TOML string, but for DEL, which TOML wants escaped, and for escapes of
    # surrogate pairs, which it refuses: so other characters stay as they are.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
