"""Latencies in an HDR histogram: microseconds to an hour, three significant digits, any number.

    latencies = Latencies()
    latencies.record(due_to_done_ns)          one; or how many took the same
    latencies.record_many([…])                many at once: some 50 ns each, where the library's own
                                              record_value takes 1,500
    total.add(Latencies.decode(text))         what another process measured
    latencies.percentile_us(99.9)

Nothing is lost by merging: the sum of histograms is the histogram of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Self

import numpy as np
from hdrh.histogram import HdrHistogram
from msgspec import Meta, Struct

LOWEST_US: Final = 1
HIGHEST_US: Final = 3_600_000_000
DIGITS: Final = 3
PERCENTILES: Final = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99)

Microseconds = Annotated[float, Meta(description="microseconds")]


class LatencySummary(Struct, frozen=True, kw_only=True):
    """A histogram in a result: the usual figures, and all of it."""

    count: Annotated[int, Meta(description="how many were measured: each record counts")]
    mean_us: Microseconds
    p50_us: Microseconds
    p75_us: Microseconds
    p90_us: Microseconds
    p95_us: Microseconds
    p99_us: Microseconds
    p999_us: Annotated[float, Meta(description="the 99.9th percentile, microseconds")]
    p9999_us: Annotated[float, Meta(description="the 99.99th percentile, microseconds")]
    max_us: Microseconds
    histogram: Annotated[
        str, Meta(description="all of it, HdrHistogram V2, compressed, base64; microseconds")
    ]


class Latencies:
    """Records nanoseconds, tells microseconds."""

    def __init__(self) -> None:
        self._take(HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS))

    def _take(self, histogram: HdrHistogram) -> None:
        self._histogram = histogram
        self._counts = np.frombuffer(histogram.counts, dtype=np.uint64)

    # --- recording ---

    def record(self, nanoseconds: int, count: int = 1) -> None:
        """One latency of `count` records; what takes longer than an hour counts as an hour."""
        if nanoseconds < 0:
            raise ValueError(f"a latency of {nanoseconds} ns: the clocks do not agree")
        self._histogram.record_value(min(nanoseconds // 1000, HIGHEST_US), count)

    def record_many(self, nanoseconds: Sequence[int], counts: Sequence[int] | None = None) -> None:
        """Many at once; with `counts`, how many records each stands for."""
        if not len(nanoseconds):
            return
        values = np.asarray(nanoseconds, dtype=np.int64) // 1000
        if values.min() < 0:
            raise ValueError(f"a latency of {min(nanoseconds)} ns: the clocks do not agree")
        np.minimum(values, HIGHEST_US, out=values)
        weights = None if counts is None else np.asarray(counts, dtype=np.int64)
        total = len(values) if weights is None else int(weights.sum())
        added = np.bincount(_indexes(self._histogram, values), weights=weights)
        self._counts[: len(added)] += added.astype(np.uint64)
        histogram = self._histogram
        histogram.total_count += total
        histogram.min_value = min(histogram.min_value, int(values.min()))
        histogram.max_value = max(histogram.max_value, int(values.max()))

    def add(self, other: Latencies) -> None:
        """All that `other` has, too."""
        if not other.count:
            return
        mine, theirs = self._histogram, other._histogram
        self._counts += other._counts
        mine.total_count += theirs.total_count
        mine.min_value = min(mine.min_value, theirs.min_value)
        mine.max_value = max(mine.max_value, theirs.max_value)

    def reset(self) -> None:
        """Empty again."""
        self._histogram.reset()

    # --- telling ---

    @property
    def count(self) -> int:
        return int(self._histogram.total_count)

    @property
    def max_us(self) -> int:
        """To three digits, as everything."""
        return int(self._histogram.get_max_value()) if self.count else 0

    @property
    def mean_us(self) -> float:
        return float(self._histogram.get_mean_value()) if self.count else 0.0

    def percentile_us(self, percentile: float) -> float:
        """So many percent took this long or less; 0 where nothing was recorded."""
        return self.percentiles_us([percentile])[0]

    def percentiles_us(self, percentiles: Iterable[float]) -> list[float]:
        """The same for several."""
        if not self.count:
            return [0.0 for _ in percentiles]
        wanted = np.array([max(1, int(p * self.count / 100 + 0.5)) for p in percentiles])
        places = np.searchsorted(np.cumsum(self._counts), wanted.astype(np.uint64))
        histogram = self._histogram
        return [
            float(
                histogram.get_highest_equivalent_value(histogram.get_value_from_index(int(place)))
            )
            for place in places
        ]

    def summary(self) -> LatencySummary:
        values = self.percentiles_us(PERCENTILES)
        names = ("p50_us", "p75_us", "p90_us", "p95_us", "p99_us", "p999_us", "p9999_us")
        return LatencySummary(
            count=self.count,
            mean_us=self.mean_us,
            **dict(zip(names, values, strict=True)),
            max_us=self.max_us,
            histogram=self.encode(),
        )

    # --- between processes, and in files ---

    def encode(self) -> str:
        """The format that every HdrHistogram library reads."""
        encoded: bytes = self._histogram.encode()
        return encoded.decode("ascii")

    @classmethod
    def decode(cls, text: str) -> Self:
        """ValueError where `text` is not a histogram of this range and precision."""
        latencies = cls()
        try:
            decoded = HdrHistogram.decode(text.encode("ascii"))
        except Exception as error:
            # The library tells damage in many ways: base64, zlib and its own errors among them.
            raise ValueError(f"not an encoded histogram: {text[:40]!r}…") from error
        mine = latencies._histogram
        fits = all(
            getattr(decoded, name) == getattr(mine, name)
            for name in ("lowest_trackable_value", "highest_trackable_value", "significant_figures")
        )
        if not fits:
            raise ValueError("a histogram of another range or precision")
        mine.add(decoded)
        return latencies


def _indexes(
    histogram: HdrHistogram, values: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Where the library counts each value: its `_counts_index_for`, for many at once."""
    half_magnitude: int = histogram.sub_bucket_half_count_magnitude
    # The exponent of a float is the bit length of an integer; exact below 2^53.
    _, bits = np.frexp((values | histogram.sub_bucket_mask).astype(np.float64))
    buckets = bits.astype(np.int64) - (half_magnitude + 1)
    inner = (values >> buckets) - histogram.sub_bucket_half_count
    indexes: np.ndarray[tuple[int], np.dtype[np.int64]] = ((buckets + 1) << half_magnitude) + inner
    return indexes
