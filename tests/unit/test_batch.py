"""Batches: what is encoded decodes to the same, and what cannot be encoded is refused by name."""

import tracemalloc
from array import array
from datetime import UTC, datetime
from typing import Any

import pytest

from seglog.protocol import errors
from seglog.protocol.batch import (
    decode_batch,
    encode_batch,
    encode_compacted,
    encode_records,
    encoded_size_estimate,
)
from seglog.protocol.constants import (
    CODEC_NONE,
    CODEC_ZSTD,
    CODECS,
    FLAG_COMPACTED,
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    MAX_UNCOMPRESSED_BYTES,
    MIB,
    PREFIX_BYTES,
)
from seglog.protocol.header import check_produced, check_stored, pack_prefix, unpack_header
from seglog.protocol.records import Record

NOW_US = 1_700_000_000_000_000


def store(batch, base_offset=100, append_time_us=NOW_US, log_epoch=3) -> bytes:
    """What the broker does to a batch."""
    prefix = pack_prefix(base_offset, append_time_us, len(batch), log_epoch)
    return prefix + bytes(batch[PREFIX_BYTES:])


def ten_records(codec=CODEC_NONE, **options) -> bytes:
    return store(
        encode_batch(
            [b"value %d" % i for i in range(10)],
            [b"key %d" % (i % 3) for i in range(10)],
            [NOW_US + i for i in range(10)],
            [(("index", b"%d" % i),) if i % 2 else None for i in range(10)],
            codec=codec,
            **options,
        )
    )


class TestEncoding:
    @pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
    def test_every_kind_of_cell_comes_back(self, codec):
        values = [b"plain", b"", None, bytearray(b"array"), memoryview(b"view"), b"x" * 500]
        keys = [None, b"", b"deleted", b"k", memoryview(bytearray(b"mv")), None]
        headers = [None, (), (("a", b"1"), ("a", None)), (("", b""),), (("ü", b"\xff"),), None]
        times = [NOW_US, NOW_US - 5, 0, -1, 2**63 - 1, -(2**63)]
        columns = decode_batch(store(encode_batch(values, keys, times, headers, codec=codec)))
        assert columns.values == [v if v is None else bytes(v) for v in values]
        assert columns.keys == [k if k is None else bytes(k) for k in keys]
        assert columns.headers == [h or () for h in headers]
        assert columns.timestamps == times
        assert columns.offsets == range(100, 106)
        assert columns.header.first_timestamp_us == NOW_US
        assert columns.header.max_timestamp_us == 2**63 - 1

    def test_a_producer_sends_zeros_where_the_broker_writes(self):
        batch = encode_batch([b"v"], None, NOW_US)
        assert batch[:PREFIX_BYTES] == bytes(PREFIX_BYTES)
        assert check_produced(batch).record_count == 1

    def test_producer_fields_travel_in_the_header(self):
        batch = encode_batch(
            [b"v"], None, NOW_US, producer_id=7, producer_epoch=2, base_sequence=2**32 - 1
        )
        header = check_produced(batch)
        assert (header.producer_id, header.producer_epoch) == (7, 2)
        assert header.base_sequence == 2**32 - 1
        assert header.is_idempotent

    @pytest.mark.parametrize("codec", [1, 2])
    def test_what_compression_does_not_shrink_is_stored_without(self, codec):
        value = bytes(range(256))
        assert unpack_header(encode_batch([value], None, 0, codec=codec)).codec == CODEC_NONE
        assert unpack_header(encode_batch([value] * 20, None, 0, codec=codec)).codec == codec

    def test_columns_that_say_nothing_take_one_byte(self):
        plain = encode_batch([b"v"] * 50, None, NOW_US)
        assert len(encode_batch([b"v"] * 50, [None] * 50, [NOW_US] * 50, [()] * 50)) == len(plain)

    def test_records_are_encoded_as_their_columns(self):
        records = decode_batch(ten_records(), topic="t", partition=2).records()
        assert store(encode_records(records)) == ten_records()
        assert store(encode_records(iter(records), codec=CODEC_ZSTD)) == ten_records(CODEC_ZSTD)

    def test_the_size_estimate_is_never_too_small(self):
        for key, value, count in ((None, b"", 1), (b"k", b"v" * 9, 300), (b"", None, 2)):
            headers = [(("n", b"v"),)] * count
            batch = encode_batch([value] * count, [key] * count, list(range(count)), headers)
            cell_bytes = count * (
                len(key or b"") + len(value or b"") + len("n") + len(b"v") + 5 + 11
            )
            estimate = encoded_size_estimate(count, cell_bytes)
            assert len(batch) <= estimate <= len(batch) + 44 + 20 * count


class TestRefusal:
    @pytest.mark.parametrize("column", ["keys", "timestamps", "headers"])
    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_columns_of_another_length_are_named(self, column, count):
        cells = {"keys": b"k", "timestamps": NOW_US, "headers": None}
        arguments: dict[str, Any] = {"timestamps": NOW_US, column: [cells[column]] * count}
        with pytest.raises(errors.BadBatch, match=f"{count} {column} for 2 values"):
            encode_batch([b"a", b"b"], **arguments)

    def test_a_batch_without_records_is_refused(self):
        with pytest.raises(errors.BadBatch):
            encode_batch([], None, NOW_US)

    def test_the_clock_is_the_callers(self):
        with pytest.raises(errors.BadBatch, match="no timestamps"):
            encode_batch([b"v"])

    @pytest.mark.parametrize("cell", ["text", 5, [b"list"], 1.5, {"a": 1}], ids=repr)
    @pytest.mark.parametrize("others", [[b"a"], [None]], ids=repr)
    def test_a_cell_that_is_not_bytes_is_named(self, cell, others):
        with pytest.raises(errors.BadBatch, match=r"values\[1\] is a "):
            encode_batch([*others, cell], None, NOW_US)
        with pytest.raises(errors.BadBatch, match=r"keys\[1\] is a "):
            encode_batch([b"v", b"v"], [*others, cell], NOW_US)

    @pytest.mark.parametrize(
        "view",
        [
            memoryview(array("i", [1, 2])),
            memoryview(b"abcd")[::2],
            memoryview(b"abcd").cast("B", (2, 2)),
            memoryview(array("i", [1])).cast("B").cast("i", ()),
        ],
        ids=["wide", "strided", "matrix", "scalar"],
    )
    def test_a_view_that_is_not_of_bytes_is_named(self, view):
        with pytest.raises(errors.BadBatch, match=r"values\[1\] is a view"):
            encode_batch([b"v", view], None, NOW_US)

    @pytest.mark.parametrize("times", [[2**63], [1.5], ["now"], [None], 2**63], ids=repr)
    def test_a_timestamp_that_is_not_an_int64_is_refused(self, times):
        with pytest.raises(errors.BadBatch):
            encode_batch([b"v"], None, times)

    @pytest.mark.parametrize(
        "headers",
        [
            {"a": b"1"},
            (("a", "text"),),
            ((b"a", b"1"),),
            (("a",),),
            (("a", 1),),
            (("\ud800", b""),),
        ],
        ids=repr,
    )
    def test_headers_that_no_reader_would_take_are_refused(self, headers):
        with pytest.raises(errors.BadBatch, match=r"headers\[1\]"):
            encode_batch([b"v", b"v"], None, NOW_US, [None, headers])

    @pytest.mark.parametrize(
        "field", [{"producer_id": 2**63}, {"producer_epoch": -1}, {"base_sequence": 2**32}], ids=str
    )
    def test_a_header_field_out_of_range_is_refused(self, field):
        with pytest.raises(errors.BadBatch):
            encode_batch([b"v"], None, NOW_US, **field)

    def test_an_unknown_codec_is_refused(self):
        with pytest.raises(errors.UnsupportedCodec):
            encode_batch([b"v"], None, NOW_US, codec=9)

    def test_too_many_records_are_refused(self):
        with pytest.raises(errors.BatchTooLarge):
            encode_batch([b""] * (MAX_BATCH_RECORDS + 1), None, NOW_US)

    @pytest.mark.parametrize(
        ("codec", "limit"), [(CODEC_NONE, MAX_BATCH_BYTES), (CODEC_ZSTD, MAX_UNCOMPRESSED_BYTES)]
    )
    def test_too_many_bytes_are_refused_before_they_are_copied(self, codec, limit):
        values = [bytes(MIB)] * (limit // MIB)
        tracemalloc.start()
        try:
            with pytest.raises(errors.BatchTooLarge):
                encode_batch(values, None, NOW_US, codec=codec)
            assert tracemalloc.get_traced_memory()[1] < MIB
        finally:
            tracemalloc.stop()

    def test_a_batch_may_be_exactly_as_large_as_allowed(self):
        size = len(encode_batch([b"v" * 100], None, NOW_US))
        assert len(encode_batch([b"v" * 100], None, NOW_US, max_bytes=size)) == size
        with pytest.raises(errors.BatchTooLarge):
            encode_batch([b"v" * 100], None, NOW_US, max_bytes=size - 1)
        with pytest.raises(errors.BatchTooLarge):
            encode_batch([bytes(range(256))], None, NOW_US, max_bytes=200, codec=CODEC_ZSTD)


class TestDecoding:
    def test_a_record_knows_its_place(self):
        record = decode_batch(ten_records(), topic="orders", partition=4).records()[1]
        expected = Record("orders", 4, 101, NOW_US + 1, b"key 1", b"value 1", (("index", b"1"),))
        assert record == expected
        assert record.timestamp == datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC)

    def test_a_null_value_with_a_key_is_a_tombstone(self):
        columns = decode_batch(store(encode_batch([None, None, b""], [b"k", None, b"k"], 0)))
        assert [record.is_tombstone for record in columns] == [True, False, False]

    @pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
    def test_any_buffer_will_do(self, wrap):
        assert len(decode_batch(wrap(ten_records()))) == 10

    def test_bytes_around_the_batch_are_refused(self):
        for verify in (True, False):
            with pytest.raises(errors.BadBatch):
                decode_batch(ten_records() + b"\0", verify=verify)

    def test_a_damaged_batch_is_not_returned_as_data(self):
        damaged = bytearray(ten_records())
        damaged[-3] ^= 1
        with pytest.raises(errors.DamagedBatch):
            decode_batch(damaged)

    def test_a_zeroed_prefix_is_damage_unless_the_caller_has_checked(self):
        unstored = bytes(PREFIX_BYTES) + ten_records()[PREFIX_BYTES:]
        with pytest.raises(errors.DamagedBatch):
            decode_batch(unstored)
        assert decode_batch(unstored, verify=False).offsets == range(10)

    def test_offsets_stay_within_63_bits(self):
        batch = encode_batch([b"v"], None, NOW_US)
        assert decode_batch(store(batch, 2**63 - 2)).offsets[0] == 2**63 - 2
        with pytest.raises(errors.BadBatch):
            decode_batch(store(batch, 2**63 - 1))

    def test_reading_values_does_not_cut_keys(self):
        columns = decode_batch(ten_records())
        columns.values  # noqa: B018
        assert "keys" not in vars(columns._cells)


class TestWindows:
    def test_a_window_is_a_slice_of_the_records(self):
        whole = decode_batch(ten_records(), topic="t")
        for start, stop in ((0, 10), (3, 7), (0, 0), (9, 99), (-4, -1), (7, 3), (20, 30)):
            window = whole.window(start, stop)
            assert window.records() == whole.records()[start:stop]
            assert len(window) == len(window.values) == len(window.offsets)
        assert whole.window(2, 9).window(1, 3).records() == whole.records()[3:5]

    def test_between_cuts_by_offset_also_where_compaction_left_gaps(self):
        gaps = decode_batch(encode_compacted(decode_batch(ten_records()), [1, 4, 8]))
        for columns in (decode_batch(ten_records()), gaps):
            for first in range(98, 112):
                for end in range(98, 112):
                    expected = [r for r in columns.records() if first <= r.offset < end]
                    assert columns.between(first, end).records() == expected

    def test_next_offset_is_where_to_read_on(self):
        gaps = decode_batch(encode_compacted(decode_batch(ten_records()), [1, 4, 8]))
        assert gaps.next_offset == 110
        assert gaps.window(0, 1).next_offset == 104
        assert gaps.window(0, 0).next_offset == 101
        assert decode_batch(ten_records()).window(0, 3).next_offset == 103


class TestCompaction:
    @pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
    @pytest.mark.parametrize("keep", [[0], [9], [0, 9], [1, 4, 8], list(range(10))], ids=str)
    def test_kept_records_stay_what_and_where_they_were(self, codec, keep):
        batch = ten_records(codec, producer_id=5, producer_epoch=1, base_sequence=77)
        before = decode_batch(batch, topic="t")
        compacted = encode_compacted(before, keep)
        after = decode_batch(compacted, topic="t")
        assert after.records() == [before.records()[position] for position in keep]
        old, new = before.header, check_stored(compacted)
        assert new.flags == FLAG_COMPACTED
        assert new.length == len(compacted)
        assert (
            new._replace(
                length=old.length,
                prefix_crc32c=old.prefix_crc32c,
                crc32c=old.crc32c,
                codec=old.codec,
                flags=old.flags,
                record_count=old.record_count,
                uncompressed_length=old.uncompressed_length,
                first_timestamp_us=old.first_timestamp_us,
                max_timestamp_us=old.max_timestamp_us,
            )
            == old
        )

    def test_a_compacted_batch_can_be_compacted_again(self):
        once = decode_batch(encode_compacted(decode_batch(ten_records()), [1, 4, 8]))
        twice = decode_batch(encode_compacted(once, [0, 2]))
        assert twice.offsets == [101, 108]
        assert twice.records() == [once.records()[0], once.records()[2]]

    def test_an_emptied_batch_holds_the_place_of_its_offsets(self):
        before = decode_batch(ten_records())
        emptied = decode_batch(encode_compacted(before, []))
        assert emptied.records() == []
        assert emptied.to_arrow().num_rows == 0
        assert (emptied.base_offset, emptied.next_offset) == (
            before.base_offset,
            before.next_offset,
        )
        assert decode_batch(encode_compacted(emptied, [])).records() == []

    @pytest.mark.parametrize("keep", [[3, 3], [4, 2], [-1], [10]], ids=str)
    def test_positions_that_are_none_of_the_batch_are_refused(self, keep):
        with pytest.raises(errors.BadBatch):
            encode_compacted(decode_batch(ten_records()), keep)

    def test_a_window_is_not_compacted(self):
        with pytest.raises(errors.BadBatch, match="window"):
            encode_compacted(decode_batch(ten_records()).window(0, 5), [1])

    def test_a_batch_that_would_pass_the_limit_is_refused_not_written(self):
        overhead = len(encode_batch([b""], None, NOW_US))
        batch = encode_batch([bytes(MAX_BATCH_BYTES - overhead)], None, NOW_US)
        assert len(batch) == MAX_BATCH_BYTES
        with pytest.raises(errors.BatchTooLarge):
            encode_compacted(decode_batch(store(batch)), [0])
