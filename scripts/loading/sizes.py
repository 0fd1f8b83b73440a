"""How large records are: one size, or a distribution, written as one word.

1024, 1KiB                 every record
uniform:100:2000           each size from 100 to 2000 bytes as often
lognormal:500:8000         half below 500 bytes, one in a hundred above 8000; the usual shape of
                           events and messages
mix:100=90,10KiB=10        90 of 100 records have 100 bytes, the others 10 KiB
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from typing import Final

KIB: Final = 1024
MAX_SIZE_BYTES: Final = 1 << 20
_UNITS: Final = {"": 1, "b": 1, "kb": 1000, "kib": KIB, "mb": 1_000_000, "mib": KIB * KIB}
_UNITS_OF_MANY: Final = {**_UNITS, "gb": 1_000_000_000, "gib": KIB**3}
#: Where the normal distribution has 99 % below.
_P99_SIGMAS: Final = 2.326


class BadSize(ValueError):
    """A size that cannot be read; says what can."""


def parse_bytes(text: str, most: int = MAX_SIZE_BYTES) -> int:
    """`100`, `1KiB`, `2MB` as bytes."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in _UNITS_OF_MANY:
        raise BadSize(f"{text!r} is not a size: write it as 100, 1KiB or 2MB")
    size = int(found[1]) * _UNITS_OF_MANY[found[2]]
    if not 1 <= size <= most:
        raise BadSize(f"{text!r}: sizes go from 1 to {most:,} bytes")
    return size


class Sizes:
    """A distribution of sizes; the same seed draws the same ones."""

    def __init__(self, text: str, draw: Callable[[random.Random], int], least: int) -> None:
        self.text = text
        self.least_bytes = least
        self._draw = draw

    @classmethod
    def parse(cls, text: str) -> Sizes:
        """As written above; BadSize where it is not."""
        kind, _, rest = text.partition(":")
        if not rest:
            return cls._fixed(text)
        try:
            return {"uniform": cls._uniform, "lognormal": cls._lognormal, "mix": cls._mix}[kind](
                text, rest
            )
        except (KeyError, ValueError) as error:
            if isinstance(error, BadSize):
                raise
            raise BadSize(
                f"{text!r}: a size is 1KiB, uniform:100:2000, lognormal:500:8000 (half below, 99 % "
                f"below) or mix:100=90,10KiB=10"
            ) from None

    def draw(self, chance: random.Random) -> int:
        return self._draw(chance)

    def at_least(self, size_bytes: int) -> Sizes:
        """The same, with what would be smaller made that large."""
        draw = self._draw
        return Sizes(self.text, lambda chance: max(size_bytes, draw(chance)), size_bytes)

    @classmethod
    def _fixed(cls, text: str) -> Sizes:
        size = parse_bytes(text)
        return cls(text, lambda _: size, size)

    @classmethod
    def _uniform(cls, text: str, rest: str) -> Sizes:
        low, high = map(parse_bytes, rest.split(":"))
        if low > high:
            raise BadSize(f"{text!r}: the smaller size comes first")
        return cls(text, lambda chance: chance.randint(low, high), low)

    @classmethod
    def _lognormal(cls, text: str, rest: str) -> Sizes:
        middle, high = map(parse_bytes, rest.split(":"))
        if middle >= high:
            raise BadSize(f"{text!r}: the size that half are below comes first")
        mu, sigma = math.log(middle), math.log(high / middle) / _P99_SIGMAS
        # Cut at the 99.9th percentile or so: one record in a million must not be a gigabyte.
        most = min(MAX_SIZE_BYTES, 4 * high)
        return cls(
            text, lambda chance: min(most, max(1, round(chance.lognormvariate(mu, sigma)))), 1
        )

    @classmethod
    def _mix(cls, text: str, rest: str) -> Sizes:
        parts = [part.split("=") for part in rest.split(",")]
        sizes = [parse_bytes(size) for size, _ in parts]
        weights = [float(weight) for _, weight in parts]
        if min(weights) < 0 or not 0 < sum(weights) < math.inf:
            raise BadSize(f"{text!r}: the shares are numbers, and not all zero")
        return cls(text, lambda chance: chance.choices(sizes, weights)[0], min(sizes))
