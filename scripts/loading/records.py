"""Pools of records, made before the load begins so that making them does not limit it.

A pool is passed through again and again. It is much larger than a batch, so that a batch never
holds a record twice and compression finds what it would find in real events.

    pool = RecordPool.make(Sizes.parse("1KiB"), count=10_000)
    pool.values, pool.mean_bytes
    keys = make_keys("zipf", key_count=10_000, count=len(pool.values))
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate
from typing import Final, Literal, NamedTuple

from scripts.loading.events import LEAST_EVENT_BYTES, EventMaker
from scripts.loading.sizes import Sizes

KeyKind = Literal["none", "uniform", "zipf"]

#: A pool holds this many records, or fewer of large ones.
POOL_RECORDS: Final = 10_000
POOL_BYTES: Final = 16 << 20
LEAST_POOL_RECORDS: Final = 64
MAX_KEYS: Final = 10_000_000
DEFAULT_ZIPF_EXPONENT: Final = 1.0


class RecordPool(NamedTuple):
    """Values to send, in their order; `mean_bytes` counts values and keys."""

    values: list[bytes]
    keys: list[bytes] | None
    mean_bytes: float

    @classmethod
    def make(
        cls,
        sizes: Sizes,
        *,
        count: int = POOL_RECORDS,
        seed: int = 1,
        keys: KeyKind = "none",
        key_count: int = 10_000,
        zipf_exponent: float = DEFAULT_ZIPF_EXPONENT,
        prefix_bytes: int = 0,
    ) -> RecordPool:
        """JSON events. With `prefix_bytes` each is that much shorter and lacks its first `{`: the
        sender puts a prefix of its own before it, and sizes come out as asked."""
        least = LEAST_EVENT_BYTES + prefix_bytes
        sizes = sizes.at_least(least) if sizes.least_bytes < least else sizes
        chance, maker = random.Random(seed), EventMaker(seed)
        make: Callable[[int], bytes] = maker.fields if prefix_bytes else maker.event
        values: list[bytes] = []
        room = POOL_BYTES
        while len(values) < count and (room > 0 or len(values) < LEAST_POOL_RECORDS):
            values.append(make(sizes.draw(chance) - prefix_bytes))
            room -= len(values[-1])
        chosen = make_keys(
            keys, key_count=key_count, count=len(values), seed=seed, zipf_exponent=zipf_exponent
        )
        total = sum(map(len, values)) + sum(map(len, chosen or ())) + prefix_bytes * len(values)
        return cls(values, chosen, total / len(values))


def make_keys(
    kind: KeyKind,
    *,
    key_count: int,
    count: int,
    seed: int = 1,
    zipf_exponent: float = DEFAULT_ZIPF_EXPONENT,
) -> list[bytes] | None:
    """`count` keys out of `key_count`: each as often, or the n-th as often as 1 / n^exponent."""
    if kind == "none":
        return None
    chance = random.Random(seed)
    if kind == "uniform":
        numbers = chance.choices(range(key_count), k=count)
    else:
        weights = list(accumulate((rank + 1) ** -zipf_exponent for rank in range(key_count)))
        numbers = chance.choices(range(key_count), cum_weights=weights, k=count)
    return [b"user-%08d" % number for number in numbers]
