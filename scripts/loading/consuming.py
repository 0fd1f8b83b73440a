"""One consumer under load: reads batches or records, and counts, times or checks them.

consume      a backlog, from its begin to its end and again, until the run is over; once where
             it is checked
end-to-end   what comes, each record's age counted from when it was due to be sent
"""

from __future__ import annotations

import time
from typing import Final

from scripts.loading.checker import Sightings
from scripts.loading.meter import GATHERED, Meter
from scripts.loading.stamps import CHECKED_SLICE, TIMED_SLICE
from scripts.loading.workload import Workload
from seglog import Columns, Consumer

#: Records read one by one between two looks at the clock.
CHUNK: Final = 1000
UNKNOWN_COUNT: Final = 1 << 62


class ConsumerTask:
    """A Consumer of its own, the `number`th of the run."""

    def __init__(
        self,
        number: int,
        workload: Workload,
        bootstrap: str,
        topics: list[str],
        group: str,
        meter: Meter,
        clock_offset_ns: int,
    ) -> None:
        self._workload = workload
        self._meter = meter
        self._clock_offset_ns = clock_offset_ns
        self._slice = CHECKED_SLICE if workload.check else TIMED_SLICE
        self.sightings = Sightings() if workload.check else None
        self.why = "time"
        self._left_to_read = workload.records or workload.fill * 1_000_000
        name = f"loadgen-consumer-{number}"
        if workload.sharing == "group":
            self.consumer = Consumer(
                topics, bootstrap=bootstrap, start="earliest", group=group, client_name=name
            )
        else:
            places = [(topic, p) for topic in topics for p in range(workload.partitions)]
            mine = places[number :: workload.consumers] if workload.sharing == "deal" else places
            self.consumer = Consumer(
                assign=mine, bootstrap=bootstrap, start="earliest", client_name=name
            )

    async def open(self) -> None:
        await self.consumer.start()

    async def close(self) -> None:
        await self.consumer.close()

    def positions(self) -> list[tuple[str, int, int]]:
        """Of each partition the offset of the next record to be read."""
        places = self.consumer.assignment
        return [(*place, self.consumer.position(*place)) for place in places]

    async def run(self, start_ns: int) -> None:
        """Until time or count is over, or it is cancelled: nothing that was taken is left out."""
        try:
            if self._workload.kind == "end-to-end":
                await self._follow()
            else:
                await self._read_backlog(start_ns + int(self._workload.seconds * 1e9))
        finally:
            self._meter.settle()

    # --- end to end ---

    async def _follow(self) -> None:
        if self._workload.reading == "batches":
            async for batch in self.consumer.batches():
                self._time(batch)
                if self.sightings is not None:
                    see(self.sightings, batch)
            return
        latencies = self._meter.latencies_ns
        where, sightings, offset_ns = self._slice, self.sightings, self._clock_offset_ns
        async for record in self.consumer:
            now = time.monotonic_ns()
            latencies.append(now + offset_ns - int((record.value or b"")[where]))
            self._meter.last_ns = now
            if len(latencies) >= GATHERED:
                self._meter.settle()
            if sightings is not None:
                sightings.saw(
                    record.topic, record.partition, record.offset, record.key, record.value
                )

    def _time(self, batch: Columns) -> None:
        now = time.monotonic_ns()
        here, where = now + self._clock_offset_ns, self._slice
        latencies = self._meter.latencies_ns
        latencies += [here - int((value or b"")[where]) for value in batch.values]
        self._meter.last_ns = now
        if len(latencies) >= GATHERED:
            self._meter.settle()

    # --- a backlog ---

    async def _read_backlog(self, stop_ns: int) -> None:
        if self._workload.sharing == "group":
            # What it will be given is not known here: it reads until it is told that all is read.
            await self._read(UNKNOWN_COUNT, stop_ns)
            return
        while True:
            ends = await self.consumer.end_offsets()
            count = sum(end - self.consumer.position(*place) for place, end in ends.items())
            if await self._read(count, stop_ns):
                return
            if self.sightings is not None:
                self.why = "count"  # a second time, every record would count as doubled
                return
            await self.consumer.seek_to_start()

    async def _read(self, count: int, stop_ns: int) -> bool:
        """So many records; whether the run is over."""
        if self._workload.reading == "batches":
            return await self._read_batches(count, stop_ns)
        return await self._read_records(count, stop_ns)

    async def _read_batches(self, count: int, stop_ns: int) -> bool:
        while count > 0:
            batch = await self.consumer.next_batch()
            taken = len(batch.values)
            if self.sightings is not None:
                see(self.sightings, batch)
            count -= taken
            if self._passed(taken, stop_ns):
                return True
        return False

    async def _read_records(self, count: int, stop_ns: int) -> bool:
        """The loop that is measured does nothing but count."""
        is_over = False
        while count and not is_over:
            left = chunk = min(CHUNK, count)
            count -= chunk
            try:
                if self.sightings is not None:
                    async for r in self.consumer:
                        self.sightings.saw(r.topic, r.partition, r.offset, r.key, r.value)
                        left -= 1
                        if not left:
                            break
                else:
                    async for _ in self.consumer:
                        left -= 1
                        if not left:
                            break
            finally:  # cancelled in the middle, too
                is_over = self._passed(chunk - left, stop_ns)
        return is_over

    def _passed(self, taken: int, stop_ns: int) -> bool:
        """Count; whether the run is over."""
        now = time.monotonic_ns()
        if not taken:
            return now >= stop_ns
        self._meter.records += taken
        self._meter.last_ns = now
        self._left_to_read -= taken
        if self._left_to_read <= 0:
            self.why = "count"
            return True
        return now >= stop_ns


def see(sightings: Sightings, batch: Columns) -> None:
    sightings.saw_columns(batch.topic, batch.partition, batch.offsets, batch.keys, batch.values)
