"""Results of `scripts/bench peers`: ratios, the file, and the page made from it."""

import pytest

from scripts.bench_peers import repeatable
from scripts.docs_benchmarks import sections
from scripts.peers.reasons import reason_for
from scripts.peers.report import NO_REASON, RESULT, loss_lines, number
from scripts.peers.results import (
    SEGLOG,
    Absent,
    Described,
    Machine,
    Ratio,
    Result,
    Row,
    load,
    save,
)


def result_of(*rows: Row) -> Result:
    machine = Machine("a CPU", 2, 8.0, "Linux", "ext4", 0.2, "CPython")
    systems = {
        name: Described(name.title(), "1", "2", {"durable": ["synced"], "client": ["batches"]})
        for name in (SEGLOG, "redis", "nats")
    }
    absent = [Absent("Kafka", "durable", "no Java", "apt-get install java")]
    return Result("scripts/bench peers", "2026", 60, False, 3, 1, machine, systems, absent, [*rows])


def row_of(rounds: dict[str, list[float]], *, more_is_better: bool = True, **more) -> Row:
    return Row("durable/x", "durable", "x", "records/s", more_is_better, rounds, **more)


def test_a_ratio_says_how_many_times_better_seglog_is():
    more = row_of({SEGLOG: [200.0, 100, 300], "redis": [100.0, 100, 100]})
    less = row_of({SEGLOG: [2.0, 2, 2], "redis": [1.0, 4, 1]}, more_is_better=False)

    assert more.ratio("redis") == Ratio(2, 1, 3)
    assert less.ratio("redis") == Ratio(0.5, 0.5, 2)
    assert more.ratio(SEGLOG) is None
    assert more.ratio("nats") is None


def test_a_latency_is_compared_at_the_peers_own_rate():
    row = row_of({"redis": [4.0]}, more_is_better=False, beside={"redis": [2.0]})

    assert row.ratio("redis") == Ratio(2, 2, 2)


def test_a_result_comes_back_from_its_file_as_it_was(tmp_path):
    result = result_of(row_of({SEGLOG: [1.5], "redis": [2.0]}, notes={"nats": "failed: gone"}))

    save(result, tmp_path / "result.json")

    assert load(tmp_path / "result.json") == result


def test_the_page_shows_every_row_every_loss_and_what_is_missing():
    result = result_of(
        row_of({SEGLOG: [123_456.0], "redis": [246_912.0]}, notes={"nats": "failed: it died"})
    )

    text = "\n".join(sections(result))

    assert "| x, records/s | 123,000 | 247,000 · 0.5× | failed: it died |" in text
    assert "Kafka, durable: not measured: no Java. To have it: apt-get install java" in text
    assert f"x (durable), Redis, 0.5×: {NO_REASON}" in text
    assert "x (durable), nats: failed: it died" in text


def test_the_page_says_when_the_machine_was_busy_with_something_else():
    result = result_of(row_of({SEGLOG: [1.0]}))

    assert "busy" not in "\n".join(sections(result))
    result.machine.load_average = 1.5
    assert "load average 1.5" in "\n".join(sections(result))


def test_the_command_names_no_file_of_one_machine():
    words = ["peers", "--quick", "--json", "/tmp/a.json", "--folder=/data", "--peer", "redis"]

    assert repeatable(words) == "scripts/bench peers --quick --peer redis"


def test_a_loss_that_the_rounds_do_not_agree_on_is_called_noise():
    assert "noise" in (reason_for("durable/x", "redis", Ratio(0.9, 0.8, 1.1)) or "")
    assert reason_for("durable/no-such-row", "redis", Ratio(0.9, 0.8, 0.95)) is None


def test_every_loss_of_the_published_result_has_its_reason():
    unexplained = [line for line in loss_lines(load(RESULT)) if NO_REASON in line]

    assert not unexplained


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.01234, "0.0123"),
        (12.345, "12.3"),
        (999.4, "999"),
        (1234, "1,230"),
        (1_999_999, "2,000,000"),
    ],
)
def test_numbers_have_three_digits(value, shown):
    assert number(value) == shown
