"""The histogram against a plain list of what was observed."""

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.server.metrics import (
    BATCH_BOUNDS,
    BYTE_BOUNDS,
    DURATION_BOUNDS_S,
    PARTITION_BOUNDS,
    Histogram,
    SharedHistogram,
)

bounds_lists = st.lists(
    st.floats(0, 1e9, allow_nan=False), min_size=1, max_size=20, unique=True
).map(sorted)


@given(bounds_lists, st.data())
def test_buckets_count_and_sum_are_those_of_the_plain_list(bounds, data):
    # Values on a bound are drawn on purpose: `le` takes them in.
    value = st.one_of(st.sampled_from(bounds), st.floats(0, 2e9, allow_nan=False))
    values = data.draw(st.lists(value, max_size=200))
    histogram = Histogram(bounds)
    for each in values:
        histogram.observe(each)

    read = histogram.read()

    assert list(read.bounds) == bounds
    assert read.cumulative[:-1] == [sum(v <= bound for v in values) for bound in bounds]
    assert read.cumulative[-1] == histogram.count == len(values)
    assert math.isclose(read.total, math.fsum(values), rel_tol=1e-9)


@given(st.lists(st.integers(0, 1 << 40), max_size=50), st.lists(st.integers(0, 1 << 40)))
def test_a_copy_stays_as_it_was_and_a_later_one_is_nowhere_lower(first, second):
    histogram = Histogram(BYTE_BOUNDS)
    for value in first:
        histogram.observe(value)
    before = histogram.read()
    was = list(before.cumulative)
    for value in second:
        histogram.observe(value)
    after = histogram.read()
    assert before.cumulative == was
    assert all(a >= b for a, b in zip(after.cumulative, before.cumulative, strict=True))
    assert after.total == sum(first) + sum(second)


@pytest.mark.parametrize(
    "bounds",
    [DURATION_BOUNDS_S, BATCH_BOUNDS, BYTE_BOUNDS, PARTITION_BOUNDS],
    ids=["durations", "batches", "bytes", "partitions"],
)
def test_bounds_grow(bounds):
    assert list(bounds) == sorted(set(bounds))
    assert bounds[0] > 0


def test_what_several_threads_observe_is_all_counted():
    histogram = SharedHistogram(DURATION_BOUNDS_S)
    together = threading.Barrier(4)

    def observe() -> None:
        together.wait(10)
        for _ in range(5_000):
            histogram.observe(0.5)

    threads = [threading.Thread(target=observe) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert histogram.count == 20_000
    assert histogram.read().total == 10_000
