"""The 80 bytes that open a batch: what they refuse, and that they guard every bit of it."""

import struct

import pytest
from crc32c import crc32c

from seglog.protocol import constants, errors, header
from seglog.protocol.batch import encode_batch

NOW_US = 1_700_000_000_000_000
RECORDS = [b"value-%d " % i * 3 for i in range(6)]


def stored(codec=constants.CODEC_NONE, base_offset=42) -> bytes:
    batch = encode_batch(RECORDS, [b"key"] * 6, NOW_US, codec=codec)
    return header.pack_prefix(base_offset, NOW_US, len(batch), 7) + bytes(batch[28:])


def accepted(check, batch) -> bool:
    try:
        check(batch)
    except errors.SeglogError:
        return False
    return True


def with_fields(**changes) -> bytes:
    """A stored batch whose header says something else, under valid checksums."""
    batch = stored()
    names = header.BatchHeader._fields[6:]
    fields = header.unpack_header(batch)._asdict() | changes
    body = struct.pack("<BBHIIIqIIqq", *[fields[name] for name in names])
    payload = batch[80:]
    crc = crc32c(payload, crc32c(body))
    return batch[:28] + struct.pack("<I", crc) + body + payload


def test_fields_come_back_as_they_were_packed():
    found = header.check_stored(stored())
    assert found.base_offset == 42
    assert found.append_time_us == NOW_US
    assert found.log_epoch == 7
    assert found.length == len(stored())
    assert found.record_count == found.offset_span == 6
    assert found.next_offset == 48
    assert found.first_timestamp_us == found.max_timestamp_us == NOW_US
    assert not found.is_idempotent
    assert not found.is_compacted


@pytest.mark.parametrize("codec", constants.CODECS.values(), ids=constants.CODECS)
def test_every_flipped_bit_of_a_stored_batch_is_detected(codec):
    batch = stored(codec)
    header.check_stored(batch)

    def flipped(bit: int) -> bytearray:
        damaged = bytearray(batch)
        damaged[bit // 8] ^= 1 << bit % 8
        return damaged

    bits = range(len(batch) * 8)
    assert [bit for bit in bits if accepted(header.check_stored, flipped(bit))] == []


@pytest.mark.parametrize("codec", constants.CODECS.values(), ids=constants.CODECS)
def test_a_stored_batch_cut_at_any_byte_is_refused(codec):
    batch = stored(codec)
    cuts = range(len(batch))
    assert [cut for cut in cuts if accepted(header.check_stored, batch[:cut])] == []


@pytest.mark.parametrize("codec", constants.CODECS.values(), ids=constants.CODECS)
def test_a_produced_batch_cut_at_any_byte_is_refused(codec):
    batch = bytes(encode_batch(RECORDS, None, NOW_US, codec=codec))
    assert header.check_produced(batch).record_count == 6
    cuts = range(len(batch))
    assert [cut for cut in cuts if accepted(header.check_produced, batch[:cut])] == []


def test_what_follows_a_stored_batch_is_not_part_of_it():
    batch = stored()
    assert header.check_stored(b"before" + batch + b"after", 6).length == len(batch)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"format": 2}, errors.UnsupportedVersion),
        ({"codec": 3}, errors.UnsupportedCodec),
        ({"flags": 2}, errors.UnsupportedVersion),
        ({"record_count": 0, "offset_span": 0}, errors.BadBatch),
        ({"record_count": constants.MAX_BATCH_RECORDS + 1}, errors.BadBatch),
        ({"offset_span": 5}, errors.BadBatch),
        ({"offset_span": 7}, errors.BadBatch),
        ({"flags": constants.FLAG_COMPACTED, "offset_span": 5}, errors.BadBatch),
        ({"uncompressed_length": constants.MAX_UNCOMPRESSED_BYTES + 1}, errors.BatchTooLarge),
        ({"uncompressed_length": 1}, errors.BadBatch),
        ({"producer_id": -2}, errors.BadBatch),
        ({"max_timestamp_us": NOW_US - 1}, errors.BadBatch),
    ],
    ids=str,
)
def test_a_header_that_contradicts_itself_is_refused_by_name(changes, error):
    with pytest.raises(error):
        header.check_stored(with_fields(**changes))


def test_a_batch_over_the_limit_is_refused():
    batch = stored()
    with pytest.raises(errors.BatchTooLarge):
        header.check_produced(batch, max_bytes=len(batch) - 1)
    header.check_produced(batch, max_bytes=len(batch))


def test_producers_may_not_send_compacted_batches():
    batch = with_fields(flags=constants.FLAG_COMPACTED)
    with pytest.raises(errors.BadBatch, match="compacted"):
        header.check_produced(batch)


def test_batches_back_to_back_are_split_where_they_were_joined():
    batches = [stored(base_offset=base) for base in (0, 6, 12)]
    assert [bytes(part) for part in header.split_batches(b"".join(batches))] == batches
    assert header.hop(b"".join(batches), len(batches[0])).next_offset == 12


def test_splitting_a_buffer_that_ends_within_a_batch_is_refused_at_any_byte():
    first, second = stored(base_offset=0), stored(base_offset=6)
    for cut in range(1, len(second)):
        parts = header.split_batches(first + second[:cut])
        assert bytes(next(parts)) == first
        with pytest.raises(errors.DamagedBatch):
            next(parts)


def test_a_zeroed_header_is_no_batch():
    with pytest.raises(errors.DamagedBatch):
        header.check_stored(bytes(28) + stored()[28:])
