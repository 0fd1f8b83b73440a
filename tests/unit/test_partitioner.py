"""Which partition a record goes to is fixed for ever: other clients and older data rely on it."""

import hashlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.client.partitioner import StickyTurn, crc32, find_partitioner, md5
from seglog.protocol.errors import BadConfig


@pytest.mark.parametrize(
    ("key", "by_crc32", "by_md5"), [(b"", 0, 6), (b"a", 7, 7), (b"customer-7", 0, 4)]
)
def test_known_keys_stay_where_they_are(key, by_crc32, by_md5):
    assert (crc32(key, 10), md5(key, 10)) == (by_crc32, by_md5)


@given(st.binary(), st.integers(1, 10_000))
def test_a_key_has_one_partition_of_those_that_are_there(key, count):
    assert crc32(key, count) == zlib.crc32(key) % count
    assert md5(key, count) == int(hashlib.md5(key).hexdigest(), 16) % count


def test_partitioners_are_found_by_name_or_are_functions():
    assert find_partitioner("crc32") is crc32
    assert find_partitioner("md5") is md5
    assert find_partitioner(lambda key, count: 0)(b"x", 3) == 0
    with pytest.raises(BadConfig, match="crc32, md5"):
        find_partitioner("murmur")  # type: ignore[arg-type]


def test_turns_go_round():
    turn = StickyTurn()
    taken = [turn.next(3) for _ in range(9)]
    assert sorted(taken[:3]) == [0, 1, 2]
    assert taken == taken[:3] * 3
