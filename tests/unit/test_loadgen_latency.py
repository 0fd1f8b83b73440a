"""Histograms that merge without loss, a pace that keeps its rate, latency from the due time."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.loading.histogram import HIGHEST_US, Latencies
from scripts.loading.messages import Report
from scripts.loading.meter import Meter
from scripts.loading.pacing import SLOT_NS, Pace, Waker
from scripts.loading.tally import SideTally, timeline

nanoseconds = st.integers(0, 2 * HIGHEST_US * 1000)


@given(st.lists(nanoseconds, max_size=200))
def test_many_at_once_are_counted_as_one_by_one_by_the_library(values):
    many, each = Latencies(), Latencies()
    many.record_many(values)
    for value in values:
        each.record(value)
    assert many.encode() == each.encode()
    assert (many.count, many.max_us, many.mean_us) == (each.count, each.max_us, each.mean_us)


@given(st.lists(st.tuples(nanoseconds, st.integers(1, 1000)), max_size=50))
def test_counts_stand_for_as_many_records(pairs):
    many, each = Latencies(), Latencies()
    many.record_many([value for value, _ in pairs], [count for _, count in pairs])
    for value, count in pairs:
        each.record(value, count)
    assert many.encode() == each.encode()


@given(st.lists(st.lists(nanoseconds, max_size=50), max_size=5))
def test_merging_what_processes_encoded_is_the_histogram_of_all(parts):
    total, whole = Latencies(), Latencies()
    for part in parts:
        measured = Latencies()
        measured.record_many(part)
        total.add(Latencies.decode(measured.encode()))
        whole.record_many(part)
    assert total.encode() == whole.encode()
    assert total.percentiles_us([50, 99, 100]) == whole.percentiles_us([50, 99, 100])


def test_percentiles_are_the_librarys_and_true_to_three_digits():
    latencies = Latencies()
    latencies.record_many([n * 1000 for n in range(1, 10_001)])
    for percentile in (1, 50, 90, 99, 99.9, 100):
        assert latencies.percentile_us(percentile) == pytest.approx(100 * percentile, rel=0.001)
        assert latencies.percentile_us(percentile) == latencies._histogram.get_value_at_percentile(
            percentile
        )
    assert latencies.mean_us == latencies._histogram.get_mean_value()
    summary = latencies.summary()
    assert (summary.count, summary.p50_us) == (10_000, latencies.percentile_us(50))


def test_an_emptied_histogram_is_as_new():
    latencies = Latencies()
    latencies.record_many([5_000, 7_000_000])
    latencies.reset()
    assert latencies.summary() == Latencies().summary()
    latencies.record(1_000_000)
    assert (latencies.count, latencies.max_us, latencies.mean_us) == (1, 1000, 1000)


def test_clocks_that_do_not_agree_are_an_error_and_not_a_latency():
    with pytest.raises(ValueError, match="clocks"):
        Latencies().record(-1)
    with pytest.raises(ValueError, match="clocks"):
        Latencies().record_many([5, -1])


@pytest.mark.parametrize("text", ["", "nonsense", "HISTFAAAAB"])
def test_a_damaged_histogram_is_refused(text):
    with pytest.raises(ValueError, match="histogram"):
        Latencies.decode(text)


# --- pace ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.5, 1, 7, 999, 1000, 1234.5, 20_000, 3_333_333])
def test_after_any_number_of_slots_as_many_are_due_as_the_rate_says(rate):
    pace = Pace(rate, start_ns=10)
    due = 0
    for slot in range(3000):
        due += pace.records_in(slot)
        passed_s = (pace.due_ns(slot + 1) - 10) / 1e9
        assert abs(due - rate * passed_s) <= 1
    assert pace.slot_ns >= SLOT_NS


async def test_the_waker_never_wakes_before_the_time_and_does_not_miss_it():
    start = time.monotonic_ns()
    with Waker(start, SLOT_NS) as waker:
        for slot in range(1, 40):
            await waker.until(start + slot * SLOT_NS)
            assert time.monotonic_ns() >= start + slot * SLOT_NS
        await waker.until(start)  # past: at once


async def test_the_waker_serves_many_and_survives_a_busy_loop():
    start = time.monotonic_ns()
    with Waker(start, SLOT_NS) as waker:
        waits = [waker.until(start + slot * SLOT_NS) for slot in range(20)]
        gathered = asyncio.gather(*waits)
        await asyncio.sleep(0)
        while time.monotonic_ns() < start + 30 * SLOT_NS:
            pass  # the loop does not run meanwhile, and no wake-ups gather up
        assert await gathered == [None] * 20


# --- adding up -----------------------------------------------------------------------------------


def test_a_meter_reports_what_came_since_the_last_report_and_nothing_twice():
    meter = Meter()
    meter.done(2_000_000, 10, now_ns=5)
    meter.latencies_ns += [1_000_000] * 3
    meter.failed["DeliveryTimeout"] += 2
    meter.late(3_000, 7)
    report = meter.report()
    assert (report.records, report.failed, report.last_ns) == (13, {"DeliveryTimeout": 2}, 5)
    assert Latencies.decode(report.latency).count == 13
    assert Latencies.decode(report.lateness).count == 7
    empty = meter.report()
    assert (empty.records, empty.failed, empty.latency, empty.lateness) == (0, {}, "", "")


def report_at(second: float, records: int, latency_us: int = 1000) -> Report:
    latencies = Latencies()
    latencies.record(latency_us * 1000, records)
    return Report(
        at_ns=int(second * 1e9), records=records, last_ns=int(second * 1e9), failed={},
        latency=latencies.encode(), lateness="", cpu_s=0.0,
    )  # fmt: skip


def test_reports_of_many_processes_are_added_up_by_the_second():
    tally = SideTally()
    for second in range(1, 11):
        for process in range(3):
            tally.add(report_at(second + 0.01 * process, 100, 1000 * second))
    tally.add(report_at(10.5, 5))
    seconds = timeline(tally, None)
    assert [each.produced for each in seconds] == [300] * 10 + [5]
    assert [each.consumed for each in seconds] == [0] * 11
    assert seconds[3].produce_p50_us == pytest.approx(4000, rel=0.001)
    assert (tally.records, tally.latency.count) == (3005, 3005)


def test_a_report_that_comes_very_late_still_counts():
    tally = SideTally()
    for second in range(1, 9):
        tally.add(report_at(second, 100))
    tally.add(report_at(1.0, 50))
    tally.add(report_at(9.0, 1))
    assert timeline(tally, None)[0].produced == 150
    assert tally.side(100.0, []).records == 851
