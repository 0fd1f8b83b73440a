"""Records for one producer, taken from its pool in turn; stamped where the workload asks for it."""

from __future__ import annotations

from scripts.loading.records import RecordPool
from scripts.loading.stamps import Stamp, checked_value, timed_prefix
from scripts.loading.workload import Workload

Keys = list[bytes | None] | None


class Supply:
    """`take` gives the next records, and only slices lists where nothing is stamped."""

    def __init__(
        self, workload: Workload, pool: RecordPool, producer: int, most: int, clock_offset_ns: int
    ) -> None:
        self.taken = 0
        self._length = len(pool.values)
        self._producer = producer
        self._clock_offset_ns = clock_offset_ns
        # Each producer begins elsewhere; and any `most` records in turn are one slice.
        self._at = producer * 7919 % self._length
        repeats = 1 + -(-most // self._length)
        self._values: list[bytes] = pool.values * repeats
        self._keys: Keys = None if pool.keys is None else [*pool.keys] * repeats
        self._is_checked = workload.check
        self._is_timed = workload.stamp_bytes > 0

    def take(self, count: int, due_ns: int) -> tuple[list[bytes], Keys]:
        """The next `count` records, at most as many as were said to be the most."""
        at = self._at
        values = self._values[at : at + count]
        keys = None if self._keys is None else self._keys[at : at + count]
        if self._is_checked:
            values = self._checked(values, keys, due_ns + self._clock_offset_ns)
        elif self._is_timed:
            prefix = timed_prefix(due_ns + self._clock_offset_ns)
            values = [prefix + fields for fields in values]
        self._at = (at + count) % self._length
        self.taken += count
        return values, keys

    @property
    def has_keys(self) -> bool:
        return self._keys is not None

    def key_of(self, sequence: int) -> bytes | None:
        """The key that the record with this number had."""
        if self._keys is None:
            return None
        return self._keys[(self._producer * 7919 + sequence) % self._length]

    def _checked(self, fields: list[bytes], keys: Keys, sent_ns: int) -> list[bytes]:
        first, producer = self.taken, self._producer
        return [
            checked_value(
                Stamp(producer, first + number),
                sent_ns,
                each,
                None if keys is None else keys[number],
            )
            for number, each in enumerate(fields)
        ]
