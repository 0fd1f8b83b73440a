"""Where a query begins and ends: `startingOffsets` and its kin, made into offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..client.metadata import TopicPartition
from .broker_view import BrokerView
from .offsets import Positions
from .options import InvalidOption, Option, Options
from .read_options import (
    ENDING_OFFSETS,
    ENDING_OFFSETS_BY_TIMESTAMP,
    ENDING_TIMESTAMP,
    GROUP_ID,
    STARTING_OFFSETS,
    STARTING_OFFSETS_BY_TIMESTAMP,
    STARTING_TIMESTAMP,
    TIMESTAMP_STRATEGY,
    Place,
)

_LATEST, _EARLIEST = -1, -2  # in JSON, as in the Kafka source


def starting_positions(
    view: BrokerView, options: Options, names: Sequence[TopicPartition], default: str
) -> Positions:
    """Where each partition is begun with."""
    times = _times(options, names, STARTING_TIMESTAMP, STARTING_OFFSETS_BY_TIMESTAMP)
    if times is None:
        return _places(
            view, options, names, options.get(STARTING_OFFSETS) or default, STARTING_OFFSETS
        )
    found = view.at_times(times)
    late = [name for name, offset in found.items() if offset < 0]
    if late and options[TIMESTAMP_STRATEGY] == "error":
        raise InvalidOption(
            f"no record of {late[0].topic}/{late[0].partition} has the starting time or a later"
            " one; to begin at the latest there, set startingOffsetsByTimestampStrategy=latest"
        )
    return found | _ends(view, late)


def ending_positions(
    view: BrokerView, options: Options, names: Sequence[TopicPartition]
) -> Positions:
    """Up to where a batch reads each partition."""
    times = _times(options, names, ENDING_TIMESTAMP, ENDING_OFFSETS_BY_TIMESTAMP)
    if times is None:
        return _places(view, options, names, options[ENDING_OFFSETS], ENDING_OFFSETS)
    found = view.at_times(times)
    return found | _ends(view, [name for name, offset in found.items() if offset < 0])


def _ends(view: BrokerView, names: Sequence[TopicPartition]) -> Positions:
    return {name: each.durable_end for name, each in view.ends(names).items()}


def _times(
    options: Options,
    names: Sequence[TopicPartition],
    one: Option[int],
    each: Option[dict[TopicPartition, int]],
) -> dict[TopicPartition, int] | None:
    """In milliseconds; None where nobody asked for a time."""
    time_ms = options.get(one)
    if time_ms is not None:
        return dict.fromkeys(names, time_ms)
    times = options.get(each)
    if times is not None:
        _check_complete(each.name, times, names)
    return times


def _places(
    view: BrokerView,
    options: Options,
    names: Sequence[TopicPartition],
    place: Place,
    option: Option[Place],
) -> Positions:
    ends = view.ends(names)
    if isinstance(place, dict):
        _check_complete(option.name, place, names)
        return {
            name: {_LATEST: ends[name].durable_end, _EARLIEST: ends[name].log_start}.get(
                place[name], place[name]
            )
            for name in names
        }
    if place == "committed":
        bookmarks = view.bookmarks(options[GROUP_ID], names)
        return {name: bookmarks.get(name, ends[name].log_start) for name in names}
    if place == "latest":
        return {name: ends[name].durable_end for name in names}
    return {name: ends[name].log_start for name in names}


def _check_complete(
    option: str, given: Mapping[TopicPartition, int], names: Sequence[TopicPartition]
) -> None:
    missing = sorted(set(names) - set(given))
    extra = sorted(set(given) - set(names))
    if missing:
        raise InvalidOption(
            f"option {option} does not name {missing[0].topic}/{missing[0].partition}: name every"
            " partition that is read (-2: the earliest, -1: the latest)"
        )
    if extra:
        raise InvalidOption(
            f"option {option} names {extra[0].topic}/{extra[0].partition}, which is not read"
        )
