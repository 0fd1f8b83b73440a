"""Records as lines and lines as records, against a plain loop over the same records."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.commands.input_lines import Lines
from seglog.commands.json_input import json_columns
from seglog.commands.record_lines import json_lines, text_lines
from seglog.commands.selection import Rows, parse_filter
from seglog.protocol.batch import decode_batch, encode_batch
from seglog.protocol.header import pack_prefix
from seglog.protocol.records import Columns, Record

CELLS = st.one_of(
    st.none(), st.binary(max_size=8), st.sampled_from([b"", b"tea", b"a%b\\n", "ä\u2028".encode()])
)
HEADERS = st.lists(st.tuples(st.text(max_size=4), CELLS), max_size=3)
TIMES_US = st.integers(0, 4_000_000_000_000_000)
RECORDS = st.lists(st.tuples(CELLS, CELLS, HEADERS, TIMES_US), min_size=1, max_size=12)


def batch_of(records: list) -> Columns:
    """As a consumer gets it."""
    keys, values, headers, times = map(list, zip(*records, strict=True))
    data = encode_batch(values, keys, times, [tuple(pairs) for pairs in headers])
    stored = pack_prefix(1000, times[0], len(data), 0) + data[28:]
    return decode_batch(stored, topic="t", partition=3)


@given(RECORDS)
def test_what_is_written_as_json_is_read_as_the_same_records(records):
    columns = batch_of(records)

    lines = json_lines(Rows(columns, None)).splitlines(keepends=True)

    assert all(line.endswith(b"\n") for line in lines)
    (part,) = json_columns(Lines([line[:-1] for line in lines], "test", 1, 0), [], None)
    assert part.partition == 3
    assert part.values == list(columns.values)
    assert part.keys == list(columns.keys)
    assert part.timestamps == list(columns.timestamps)
    read = part.headers or [[]] * len(columns)
    assert [tuple(pairs) for pairs in read] == list(columns.headers)
    assert [json.loads(line)["offset"] for line in lines] == list(columns.offsets)


def plain(record: Record, text: str) -> bytes:
    """What a format means, one record and one letter at a time."""
    headers = b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)
    known = {
        "%k": record.key or b"",
        "%v": record.value or b"",
        "%o": b"%d" % record.offset,
        "%p": b"%d" % record.partition,
        "%t": b"%d" % (record.timestamp_us // 1000),
        "%h": headers,
        "%%": b"%",
        "\\t": b"\t",
        "\\n": b"\n",
        "\\\\": b"\\",
    }
    shown = b""
    while text:
        width = 2 if text[:2] in known else 1
        shown += known.get(text[:2], text[:1].encode())
        text = text[width:]
    return shown + b"\n"


@given(
    RECORDS,
    st.lists(
        st.sampled_from(["%k", "%v", "%o", "%p", "%t", "%h", "%%", r"\t", r"\n", "\\\\", "x", "d"]),
        max_size=6,
    ).map("".join),
)
def test_a_format_means_the_same_for_a_batch_as_for_each_record(records, text):
    columns = batch_of(records)
    expected = b"".join(plain(record, text) for record in columns)
    assert text_lines(text, safe=False)(Rows(columns, None)) == expected


@given(RECORDS, st.integers(1, 14), st.sampled_from([["key=tea"], ["text=e"], ["text=", "key="]]))
def test_filters_choose_records_and_a_bound_cuts_behind_the_last_that_is_wanted(
    records, count, texts
):
    columns = batch_of(records)
    filters = [parse_filter(text) for text in texts]
    wanted = [r for r in columns if all(passes(r, text) for text in texts)]

    rows = Rows.of(columns, filters)
    assert (len(rows), list(rows.offsets)) == (len(wanted), [r.offset for r in wanted])
    first = rows.first(count)
    assert list(first.offsets) == [r.offset for r in wanted[:count]]
    if len(wanted) > count:
        assert first.columns.next_offset == wanted[count - 1].offset + 1


def passes(record: Record, text: str) -> bool:
    what, _, wanted = text.partition("=")
    if what == "key":
        return record.key == wanted.encode()
    return record.value is not None and wanted.encode() in record.value


@pytest.mark.parametrize("text", ["", "key", "value=x", "header:", "header:=x", "__import__('os')"])
def test_what_is_no_filter_is_refused(text):
    with pytest.raises(Exception, match="is not key="):
        parse_filter(text)
