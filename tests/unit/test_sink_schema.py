"""A DataFrame that cannot be written is refused in the driver, with what to change."""

import pickle

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import types as t

from seglog.spark_connector.options import InvalidOption
from seglog.spark_connector.write_options import WRITE_OPTIONS, write_options
from seglog.spark_connector.write_schema import InvalidSchema, check_schema
from seglog.spark_connector.writer import Staged, make_batch_writer, make_stream_writer

BYTES, TEXT, LONG = t.BinaryType(), t.StringType(), t.LongType()
SERVERS = {"seglog.bootstrap.servers": "127.0.0.1:1"}


def pair(key, value):
    return t.ArrayType(t.StructType([t.StructField("key", key), t.StructField("value", value)]))


def schema(**columns):
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    "columns",
    [
        {"value": BYTES},
        {"value": TEXT, "key": TEXT, "headers": pair(TEXT, TEXT)},
        {"key": BYTES, "value": BYTES, "partition": t.IntegerType(), "headers": pair(TEXT, BYTES)},
        {"value": TEXT, "timestamp": t.TimestampType()},
    ],
    ids=["value", "text", "partition and headers", "time"],
)
def test_what_can_be_written_is_accepted(columns):
    check_schema(schema(**columns), has_topic=True)
    check_schema(schema(topic=TEXT, **columns), has_topic=False)


def test_what_was_read_can_be_written_back():
    read = {
        "key": BYTES, "value": BYTES, "topic": TEXT, "partition": t.IntegerType(), "offset": LONG,
        "timestamp": t.TimestampType(), "timestampType": t.IntegerType(),
    }  # fmt: skip
    check_schema(schema(**read), has_topic=False)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": BYTES}, "there is no column `value`"),
        ({"value": LONG}, r"`value` is bigint, it must be binary or string: cast it, .*\"binary\""),
        ({"value": TEXT, "key": LONG}, "`key` is bigint"),
        ({"value": TEXT, "partition": LONG}, r"`partition` is bigint, it must be int: cast"),
        ({"value": TEXT, "topic": BYTES}, "`topic` is binary, it must be string"),
        ({"value": TEXT, "timestamp": t.TimestampNTZType()}, "it has no time zone"),
        ({"value": TEXT, "timestamp": LONG}, "`timestamp` is bigint, it must be timestamp"),
        ({"value": TEXT, "headers": TEXT}, "`headers` is string, it must be array<struct"),
        ({"value": TEXT, "headers": pair(BYTES, BYTES)}, "`headers` is array"),
        ({"value": TEXT, "Key": TEXT}, "`Key` has no meaning here, and would be lost"),
        ({"value": TEXT, "amount": LONG}, "drop it, or make it a part of `value`"),
    ],
    ids=lambda case: "-".join(case) if isinstance(case, dict) else "",
)
def test_what_cannot_be_written_is_named(columns, message):
    with pytest.raises(InvalidSchema, match=message):
        check_schema(schema(**columns), has_topic=True)


def test_a_topic_must_be_given_somewhere():
    with pytest.raises(InvalidSchema, match="where to"):
        check_schema(schema(value=TEXT), has_topic=False)


def test_two_columns_of_one_name_are_refused():
    twice = t.StructType([t.StructField("value", TEXT), t.StructField("value", TEXT)])
    with pytest.raises(InvalidSchema, match="2 columns `value`"):
        check_schema(twice, has_topic=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "seglog.bootstrap.servers is missing"),
        ({**SERVERS, "compression": "gzip"}, "must be one of none, zstd, lz4"),
        ({**SERVERS, "partitioner": "murmur2"}, "must be one of crc32, md5"),
        ({**SERVERS, "batchBytes": "1g"}, "must be at most"),
        ({**SERVERS, "batchByte": "1m"}, "did you mean batchBytes"),
        ({**SERVERS, "txnAppId": "a"}, "txnAppId and txnVersion go together"),
        ({**SERVERS, "txnAppId": "a", "txnVersion": "-1"}, "must not be negative"),
        ({**SERVERS, "txnAppId": "a", "txnVersion": str(1 << 32)}, "must be at most"),
        ({**SERVERS, "txnAppId": "a" * 200, "txnVersion": "1"}, "is too long"),
    ],
    ids=["servers", "codec", "partitioner", "size", "name", "alone", "low", "high", "long"],
)
def test_a_bad_option_is_named(options, message):
    with pytest.raises(InvalidOption, match=message):
        write_options(options)


def test_every_option_has_a_default_that_is_valid_or_none():
    options = write_options(SERVERS)
    for row in WRITE_OPTIONS:
        assert row.default is None or options[row] is not None
        assert row.meaning


def test_a_log_is_not_overwritten_and_a_stream_has_its_checkpoint():
    with pytest.raises(InvalidOption, match="a log only grows"):
        make_batch_writer(schema(value=TEXT), {**SERVERS, "topic": "t"}, overwrite=True)
    named = {**SERVERS, "topic": "t", "txnAppId": "a", "txnVersion": "1"}
    with pytest.raises(InvalidOption, match="is for batch writes"):
        make_stream_writer(schema(value=TEXT), named, overwrite=False)


def test_writers_and_their_messages_can_be_sent_to_executors():
    writer = make_batch_writer(schema(value=TEXT), {**SERVERS, "topic": "t"}, overwrite=False)
    copy = pickle.loads(pickle.dumps(writer))
    assert vars(copy).keys() == vars(writer).keys()
    assert copy._transaction == writer._transaction
    other = make_batch_writer(schema(value=TEXT), {**SERVERS, "topic": "t"}, overwrite=False)
    assert other._transaction != writer._transaction
    message = Staged("q", 3, [1, 2], 7)
    assert pickle.loads(pickle.dumps(message)) == message
