"""What the load generator sends: events of exact sizes, keys as often as asked, stamps."""

import json
import random
from collections import Counter

import pytest
import zstandard

from scripts.loading.events import LEAST_EVENT_BYTES, EventMaker
from scripts.loading.records import RecordPool, make_keys
from scripts.loading.sizes import BadSize, Sizes, parse_bytes
from scripts.loading.stamps import (
    CHECKED_BYTES,
    CHECKED_SLICE,
    TIMED_BYTES,
    TIMED_SLICE,
    Stamp,
    checked_value,
    read_stamp,
    timed_prefix,
)
from scripts.loading.supply import Supply
from scripts.loading.workload import BadWorkload, Workload, check_workload

NOW_NS = 1_790_000_000_123_456_789


def test_an_event_is_json_of_exactly_the_size_that_was_asked_for():
    maker = EventMaker()
    for size in [*range(LEAST_EVENT_BYTES, 700), 1024, 5_000, 100_000]:
        event = maker.event(size)
        assert len(event) == size
        assert isinstance(json.loads(event), dict), event


def test_the_same_seed_makes_the_same_records_and_another_seed_others():
    sizes = Sizes.parse("lognormal:200:2000")
    pools = [RecordPool.make(sizes, count=200, seed=seed, keys="zipf") for seed in (7, 7, 8)]
    assert pools[0] == pools[1]
    assert pools[0].values != pools[2].values


def test_events_compress_as_real_ones_do_and_not_as_one_repeated():
    values = RecordPool.make(Sizes.parse("300"), count=800).values
    batch = b"".join(values)
    ratio = len(batch) / len(zstandard.compress(batch, 3))
    assert 2.5 < ratio < 8
    assert len(set(values)) == len(values)


@pytest.mark.parametrize(
    ("text", "low", "high", "half_below"),
    [
        ("100", 100, 100, 100),
        ("1KiB", 1024, 1024, 1024),
        ("uniform:100:300", 100, 300, 200),
        ("lognormal:500:8000", 1, 32_000, 500),
        ("mix:100=90,10KiB=10", 100, 10_240, 100),
    ],
)
def test_sizes_come_from_the_distribution(text, low, high, half_below):
    sizes, chance = Sizes.parse(text), random.Random(1)
    drawn = sorted(sizes.draw(chance) for _ in range(4000))
    assert low <= drawn[0] <= drawn[-1] <= high
    assert drawn[2000] == pytest.approx(half_below, rel=0.1)


def test_one_in_a_hundred_is_above_the_second_number_of_lognormal():
    sizes, chance = Sizes.parse("lognormal:500:8000"), random.Random(1)
    above = sum(sizes.draw(chance) > 8000 for _ in range(20_000))
    assert 120 < above < 300


def test_a_mix_has_its_shares():
    sizes, chance = Sizes.parse("mix:100=90,10KiB=10"), random.Random(1)
    assert Counter(sizes.draw(chance) for _ in range(10_000))[10_240] == pytest.approx(1000, 0.15)


@pytest.mark.parametrize(
    "text",
    ["", "x", "0", "12 apples", "2GiB", "uniform:5", "uniform:9:5", "lognormal:9:5", "mix:100",
     "mix:1=-1,2=3", "mix:1=0", "normal:1:2", "uniform:a:b", "mix:1=nan"],
)  # fmt: skip
def test_a_size_that_cannot_be_read_is_refused_with_what_can(text):
    with pytest.raises(BadSize):
        Sizes.parse(text)


def test_units_are_decimal_or_binary_as_written():
    assert [parse_bytes(t) for t in ("7", "2kB", "2KiB", "1 MB")] == [7, 2000, 2048, 1_000_000]


def test_uniform_keys_are_even_and_zipf_keys_are_not():
    uniform = Counter(make_keys("uniform", key_count=100, count=50_000))
    zipf = Counter(make_keys("zipf", key_count=100, count=50_000))
    assert len(uniform) == len(zipf) == 100
    assert max(uniform.values()) < 1.3 * min(uniform.values())
    # With the exponent 1, the first is 10 times as frequent as the tenth, and so on.
    assert zipf[b"user-%08d" % 0] == pytest.approx(10 * zipf[b"user-%08d" % 9], rel=0.2)
    assert make_keys("none", key_count=1, count=1) is None


# --- stamps --------------------------------------------------------------------------------------


def test_a_timed_record_is_json_of_the_size_asked_for_and_tells_its_time():
    pool = RecordPool.make(Sizes.parse("120"), count=10, prefix_bytes=TIMED_BYTES)
    value = timed_prefix(NOW_NS) + pool.values[0]
    assert len(value) == 120
    assert json.loads(value)["sent_ns"] == NOW_NS == int(value[TIMED_SLICE])


def test_a_checked_record_is_json_of_the_size_asked_for_and_tells_who_sent_it():
    pool = RecordPool.make(Sizes.parse("120"), count=10, prefix_bytes=CHECKED_BYTES)
    value = checked_value(Stamp(42, 123_456), NOW_NS, pool.values[0], b"key")
    assert len(value) == 120
    assert json.loads(value)["sent_ns"] == NOW_NS == int(value[CHECKED_SLICE])
    assert read_stamp(value, b"key") == Stamp(42, 123_456)


def test_every_flipped_bit_of_a_checked_record_is_found():
    value = checked_value(Stamp(1, 2), NOW_NS, b'"a":"some text"}', b"key")
    for position in range(len(value)):
        for bit in range(8):
            damaged = bytearray(value)
            damaged[position] ^= 1 << bit
            assert read_stamp(bytes(damaged), b"key") is None, (position, bit)
    assert read_stamp(value, b"kez") is None
    assert read_stamp(value[:-1], b"key") is None
    assert read_stamp(None, b"key") is None


def make_supply(workload: Workload, producer: int = 3) -> tuple[Supply, RecordPool]:
    pool = RecordPool.make(
        Sizes.parse(workload.size), count=100, keys=workload.keys, key_count=10,
        prefix_bytes=workload.stamp_bytes,
    )  # fmt: skip
    return Supply(workload, pool, producer, 64, clock_offset_ns=0), pool


def test_what_is_not_stamped_is_sent_as_it_is_in_the_pool_and_without_a_gap():
    supply, pool = make_supply(Workload(kind="produce", keys="uniform"))
    taken = [supply.take(64, NOW_NS) for _ in range(10)]
    values = [value for chunk, _ in taken for value in chunk]
    keys = [key for _, chunk in taken for key in chunk or ()]
    first = pool.values.index(values[0])
    assert pool.keys is not None
    assert values == [pool.values[(first + n) % 100] for n in range(640)]
    assert keys == [pool.keys[(first + n) % 100] for n in range(640)]
    assert [supply.key_of(number) for number in range(640)] == keys
    assert any(value is pool.values[0] for value in values)  # not even copied


def test_checked_records_count_up_and_carry_their_keys_checksum():
    supply, _ = make_supply(Workload(kind="produce", check=True, size="150", keys="zipf"))
    stamps = []
    for _ in range(3):
        values, keys = supply.take(50, NOW_NS)
        assert keys is not None
        stamps += [read_stamp(value, key) for value, key in zip(values, keys, strict=True)]
    assert stamps == [Stamp(3, number) for number in range(150)]


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"size": "20", "check": True}, "--size 20: such records have at least"),
        ({"size": "huge"}, "--size 'huge' is not a size"),
        ({"seconds": 0}, "--seconds 0"),
        ({"records": -1}, "--records -1"),
        ({"producers": 2, "producer_processes": 3}, "--producer-processes 3: from 1 to 2"),
        ({"kind": "consume", "consumers": 2}, "--sharing all"),
        ({"kind": "consume", "kill_broker_every_s": 1}, "--kill-broker-every"),
        ({"check": True, "records": 60_000_000}, "--records"),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, dict) else "",
)
def test_options_that_cannot_be_run_are_refused_by_name(options, told):
    with pytest.raises(BadWorkload, match=told):
        check_workload(Workload(**{"kind": "produce", **options}))


def test_what_is_sent_is_bounded_by_count_and_by_bytes():
    assert Workload(kind="produce", records=10).record_limit(100) == 10
    assert Workload(kind="produce", max_bytes=1000).record_limit(100) == 10
    assert Workload(kind="produce", records=50, max_bytes=1000).record_limit(100) == 10
