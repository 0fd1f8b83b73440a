"""Records into batches: sizes that hold, memory that is given back, and nobody left waiting."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.client.accumulator import Accumulator
from seglog.client.batches import EMPTY_BATCH_BYTES, PartitionQueue, record_size
from seglog.client.bulk import Chunk, cut, group_by_partition, to_chunk
from seglog.client.cells import to_headers
from seglog.client.delivery import Delivery
from seglog.client.partitioner import crc32
from seglog.protocol.batch import encode_batch
from seglog.protocol.errors import BadBatch, ClientClosed, DeliveryTimeout

cells = st.none() | st.binary(max_size=50)
headers = st.none() | st.lists(st.tuples(st.text(max_size=5), cells), max_size=3).map(tuple)
records = st.lists(st.tuples(cells, cells, headers, st.none() | st.integers(0, 99)), min_size=1)


def accumulator(batch_bytes=1000, buffer_bytes=10_000, linger_s=60.0):
    made = Accumulator(
        batch_bytes=batch_bytes,
        buffer_bytes=buffer_bytes,
        linger_s=linger_s,
        delivery_timeout_s=60,
        on_work=lambda _: None,
    )
    made.start()
    return made


def append(to, queue, value, key=None, pairs=None, time_us=None):
    size = record_size(value, key, pairs)
    return to.append(queue, value, key, pairs, time_us, size)


@given(records)
def test_the_size_that_is_counted_bounds_the_encoded_batch(rows):
    async def fill():
        filled, queue = accumulator(1 << 30), PartitionQueue("t", 0, 0)
        for row in rows:
            append(filled, queue, *row)
        return queue.opened

    batch = asyncio.run(fill())
    times = batch.first_timestamp_us if batch.timestamps is None else batch.timestamps
    encoded = encode_batch(batch.values, batch.keys, times, batch.headers)
    assert len(encoded) <= batch.size_bytes
    assert batch.values == [row[0] for row in rows]
    assert (batch.keys or [None] * len(rows)) == [row[1] for row in rows]


async def test_a_batch_closes_when_the_next_record_does_not_fit():
    filled, queue = accumulator(batch_bytes=1000), PartitionQueue("t", 0, 0)
    deliveries = [append(filled, queue, bytes(100)) for _ in range(50)]
    for batch in queue.waiting:
        assert batch.size_bytes <= 1000 < batch.size_bytes + record_size(bytes(100), None, None)
    assert queue.opened is not None
    places = [(d.batch, d.index) for d in deliveries]
    assert places == [(b, i) for b in (*queue.waiting, queue.opened) for i in range(len(b.values))]


async def test_a_record_larger_than_a_batch_goes_alone():
    filled, queue = accumulator(batch_bytes=1000), PartitionQueue("t", 0, 0)
    for value in (b"a", bytes(5000), b"b"):
        append(filled, queue, value)
    assert [b.record_count for b in queue.waiting] == [1, 1]
    assert queue.opened is not None
    assert queue.opened.values == [b"b"]


async def test_all_memory_is_given_back():
    filled, queue = accumulator(), PartitionQueue("t", 0, 0)
    deliveries = [append(filled, queue, bytes(100), b"key") for _ in range(50)]
    assert filled.buffered_bytes == sum(b.size_bytes for b in filled.unsettled)
    for batch in list(filled.unsettled):
        filled.settle(batch, 10, None)
        filled.settle(batch, 99, DeliveryTimeout("twice is once"))
    assert filled.buffered_bytes == 0
    assert (await deliveries[3]).offset == 13


async def test_who_waits_for_room_gets_it_in_turn_also_when_others_give_up():
    filled, queue = accumulator(buffer_bytes=2000), PartitionQueue("t", 0, 0)
    while filled.buffered_bytes <= filled.buffer_bytes:
        append(filled, queue, bytes(100))
    done = []

    async def wait(name):
        await filled.pause()
        done.append(name)

    tasks = [asyncio.ensure_future(wait(n)) for n in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    for batch in list(filled.unsettled):
        filled.settle(batch, 0, None)
    tasks[0].cancel()  # its turn had come
    await asyncio.gather(*tasks, return_exceptions=True)
    assert done == [2, 3]


async def test_who_waits_for_room_is_told_when_there_will_be_none():
    filled, queue = accumulator(buffer_bytes=500), PartitionQueue("t", 0, 0)
    append(filled, queue, bytes(600))
    waiting = [asyncio.ensure_future(filled.pause()) for _ in range(3)]
    await asyncio.sleep(0)
    filled.refuse(ClientClosed("closed"))
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in found] == [ClientClosed] * 3


async def test_awaiting_a_delivery_ends_the_linger():
    work: list[PartitionQueue] = []
    filled = Accumulator(
        batch_bytes=1000,
        buffer_bytes=1000,
        linger_s=60,
        delivery_timeout_s=60,
        on_work=work.append,
    )
    filled.start()
    queue = PartitionQueue("t", 0, 0)
    delivery = append(filled, queue, b"x")
    assert work == []
    waiting = asyncio.ensure_future(_wait(delivery))
    await asyncio.sleep(0)
    assert work == [queue]
    filled.settle(delivery.batch, 5, None)
    assert (await waiting).offset == 5


async def test_what_is_awaited_gathers_others_while_something_is_under_way():
    filled, queue = accumulator(), PartitionQueue("t", 0, 0)
    first = append(filled, queue, b"1").batch
    waiting = asyncio.ensure_future(_wait(Delivery(first, 0)))
    await asyncio.sleep(0)
    assert may_send(queue)
    filled.seal(first)
    queue.in_flight.append(queue.waiting.popleft())

    second = append(filled, queue, b"2").batch
    others = [asyncio.ensure_future(_wait(Delivery(second, 0)))]
    await asyncio.sleep(0)
    assert not may_send(queue), "the first is not answered"
    assert append(filled, queue, b"3").batch is second

    queue.in_flight.clear()
    assert may_send(queue)
    queue.in_flight.append(first)
    filled.end_linger(second)
    assert may_send(queue), "its own time bounds the wait"
    for batch in (first, second):
        filled.settle(batch, 0, None)
    await asyncio.gather(waiting, *others)


async def test_every_batch_lingers_its_own_time():
    work: list[PartitionQueue] = []
    all_came = asyncio.Event()

    def on_work(queue: PartitionQueue) -> None:
        work.append(queue)
        if len(set(work)) == 3:
            all_came.set()

    filled = Accumulator(
        batch_bytes=1000,
        buffer_bytes=100_000,
        linger_s=0.005,
        delivery_timeout_s=60,
        on_work=on_work,
    )
    filled.start()
    early, closed, late = (PartitionQueue("t", number, 0) for number in range(3))
    first = append(filled, early, b"x").batch
    filled.close(append(filled, closed, b"x").batch)
    assert work == [closed]
    await asyncio.sleep(0.002)
    last = append(filled, late, b"x").batch

    await all_came.wait()

    assert work == [closed, early, late]
    assert first.is_due
    assert last.is_due


def may_send(queue: PartitionQueue) -> bool:
    return queue.has_work


async def _wait(delivery):
    return await delivery


@given(
    st.lists(st.tuples(cells, cells), min_size=1, max_size=60),
    st.integers(EMPTY_BATCH_BYTES + 30, 2000),
)
def test_bulk_is_cut_into_pieces_that_fit_and_keeps_its_order(rows, batch_bytes):
    chunk = to_chunk([v for v, _ in rows], [k for _, k in rows], None, list(range(len(rows))))
    pieces = list(cut(chunk, batch_bytes))
    for piece, size in pieces:
        assert size == piece.size_bytes
        assert size + EMPTY_BATCH_BYTES <= batch_bytes or len(piece.values) == 1
    assert [v for piece, _ in pieces for v in piece.values] == chunk.values
    times = [piece.timestamps for piece, _ in pieces if isinstance(piece.timestamps, list)]
    assert [time for each in times for time in each] == chunk.timestamps


@given(st.lists(cells, min_size=1, max_size=60), st.integers(1, 5))
def test_bulk_is_grouped_by_key_in_order(keys, count):
    values: list[bytes | None] = [b"%d" % n for n in range(len(keys))]
    chunk = Chunk(values, list(keys), None, 5)
    groups = dict(group_by_partition(chunk, count, crc32))
    for number, group in groups.items():
        mine = [
            (v, k)
            for v, k in zip(values, keys, strict=True)
            if (None if k is None else crc32(k, count)) == number
        ]
        assert list(zip(group.values, group.keys or (), strict=True)) == mine
    assert sum(len(group.values) for group in groups.values()) == len(keys)


def test_headers_are_pairs_or_a_mapping():
    assert to_headers({"a": "x"}) == to_headers([("a", b"x")]) == (("a", b"x"),)
    for wrong in (["a"], [("a", 5)], [(5, b"x")], 7):
        with pytest.raises(BadBatch):
            to_headers(wrong)  # type: ignore[arg-type]
