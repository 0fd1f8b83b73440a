"""A produce request put together by hand reads as one that was encoded as a whole."""

from hypothesis import given
from hypothesis import strategies as st

from seglog.protocol import api
from seglog.protocol.batch import decode_batch, encode_batch
from seglog.protocol.constants import FRAME_PREFIX_BYTES
from seglog.protocol.header import check_produced
from seglog.protocol.messages import ProduceBatch, ProduceRequest
from seglog.protocol.produce_frame import (
    BATCH_OVERHEAD_BYTES,
    FRAME_OVERHEAD_BYTES,
    encode_produce,
    produce_target,
    renumber,
)

topics = st.text("abcXYZ0189._-", min_size=1, max_size=200)
batches = st.tuples(topics, st.integers(0, 9_999), st.binary(max_size=300))


@given(st.integers(0, 2**63), st.lists(batches, min_size=1, max_size=40))
def test_a_frame_in_parts_says_the_same_as_a_whole_one(correlation_id, rows):
    parts = encode_produce(
        correlation_id, [(produce_target(topic, number), batch) for topic, number, batch in rows]
    )
    frame = b"".join(parts)
    assert int.from_bytes(frame[:FRAME_PREFIX_BYTES], "big") == len(frame) - FRAME_PREFIX_BYTES
    overhead = FRAME_OVERHEAD_BYTES + sum(
        len(produce_target(topic, number)) + BATCH_OVERHEAD_BYTES + len(batch)
        for topic, number, batch in rows
    )
    assert len(frame) <= overhead

    envelope = api.decode_envelope(frame[FRAME_PREFIX_BYTES:])
    found, request = api.decode_request(envelope)
    assert (found, envelope.correlation_id) == (api.PRODUCE, correlation_id)
    expected = ProduceRequest([ProduceBatch(t, n, memoryview(b)) for t, n, b in rows])
    assert request == expected


def test_the_batches_are_not_copied():
    batch = bytearray(1000)
    parts = encode_produce(1, [(produce_target("t", 0), batch)])
    assert parts[1] is batch


def test_a_renumbered_batch_is_sound_and_differs_only_in_its_place():
    batch = encode_batch(
        [b"a", b"b"], [b"k", None], 7, producer_id=5, producer_epoch=1, base_sequence=9
    )
    before = bytes(batch)
    moved = renumber(batch, producer_epoch=2, base_sequence=0)
    header = check_produced(moved)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 2, 0)
    assert decode_batch(moved, verify=False).values == decode_batch(batch, verify=False).values
    assert bytes(batch) == before, "the old bytes may still be on their way"
