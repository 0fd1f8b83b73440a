"""The gateway with a plain HTTP client: records in and out, topics, groups, health, and errors."""

import asyncio
import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from seglog.client.consumer import Consumer
from seglog.client.producer import Producer

from tests.gateways import assert_problem, running_gateway
from tests.groups import eventually

NOON = "2026-01-31T12:00:00Z"
NOON_US = 1_769_860_800_000_000


@pytest.fixture
async def gateway(tmp_path):
    async with running_gateway(tmp_path) as running:
        yield running


async def everything(gateway, topic: str) -> list[Any]:
    """What a client of the library finds."""
    found = await (await gateway.http.get(f"/v1/topics/{topic}")).aread()
    count = sum(each["durable_end"] for each in json.loads(found)["partitions"])
    async with Consumer(topic, bootstrap=gateway.bootstrap, start="earliest") as consumer:
        return [await anext(consumer) for _ in range(count)]


# --- append --------------------------------------------------------------------------------------


async def test_what_is_appended_over_http_is_what_the_library_reads(gateway):
    await gateway.create("t")

    placed = await gateway.produce(
        "t",
        {"value": "tea ☕", "key": "ann", "timestamp": NOON},
        {"value_json": {"n": [1, None]}, "timestamp_us": 5},
        {"value_base64": "AP8=", "key_base64": "/w==", "headers": [
            {"name": "a", "value": "x"}, {"name": "a", "value_base64": "gA=="}, {"name": "b"}]},
        {"key": "gone"},
        {"value_json": None},
        {"value": ""},
    )  # fmt: skip

    assert [(each["partition"], each["offset"]) for each in placed] == [(0, n) for n in range(6)]
    assert placed[0]["timestamp_us"] == NOON_US
    assert placed[0]["timestamp"] == "2026-01-31T12:00:00.000000Z"
    records = await everything(gateway, "t")
    assert [record.value for record in records] == [
        "tea ☕".encode(), b'{"n":[1,null]}', b"\x00\xff", None, b"null", b"",
    ]  # fmt: skip
    assert [record.key for record in records] == [b"ann", None, b"\xff", b"gone", None, None]
    assert records[2].headers == (("a", b"x"), ("a", b"\x80"), ("b", None))
    assert [record.timestamp_us for record in records[:2]] == [NOON_US, 5]


async def test_every_byte_string_comes_back_as_it_was_sent(gateway):
    await gateway.create("t")
    values = [bytes(range(256)), b"", b"plain", b'{"a": 1}', b"\xed\xa0\x80", b"\r\n\x00"]
    async with Producer(gateway.bootstrap) as producer:
        await producer.send_batch("t", values)

    for encoding in ("auto", "base64"):
        records = (await gateway.read("t", encoding=encoding))["records"]
        found = [
            base64.b64decode(record["value_base64"])
            if "value_base64" in record
            else record["value"].encode()
            for record in records
        ]
        assert found == values
    documents = (await gateway.read("t", encoding="json"))["records"]
    assert [each["offset"] for each in documents if "value_json" in each] == [3]
    assert documents[3]["value_json"] == {"a": 1}


async def test_a_raw_body_is_the_value_of_one_record(gateway):
    await gateway.create("t", 2)
    body = bytes(range(256)) * 10

    answer = await gateway.http.post(
        "/v1/topics/t/records/raw",
        content=body,
        params={"key": "k", "partition": 1, "timestamp": NOON, "header": ["a:x", "b:y:z"]},
        headers={"Content-Type": "application/octet-stream"},
    )

    placed = answer.json()
    assert (answer.status_code, placed["partition"], placed["offset"]) == (200, 1, 0)
    (record,) = await everything(gateway, "t")
    assert (record.key, record.value, record.timestamp_us) == (b"k", body, NOON_US)
    assert record.headers == (("a", b"x"), ("b", b"y:z"))


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_what_a_page_of_another_site_could_send_unasked_is_no_record(gateway, kind):
    await gateway.create("t")

    raw = await gateway.http.post(
        "/v1/topics/t/records/raw", content=b"x", headers={"Content-Type": kind} if kind else None
    )
    typed = await gateway.http.post(
        "/v1/topics/t/records",
        content=b'{"records":[{"value":"x"}]}',
        headers={"Content-Type": kind} if kind else None,
    )

    assert_problem(raw, 415, "BAD_REQUEST")
    assert_problem(typed, 422, "BAD_REQUEST")
    assert await everything(gateway, "t") == []


async def test_an_answer_is_given_for_each_record_where_only_some_fit(gateway):
    await gateway.create("t", 2, **{"max.batch.bytes": 2000})

    answer = await gateway.http.post(
        "/v1/topics/t/records",
        json={
            "records": [
                {"value": "small", "partition": 0},
                {"value": "x" * 3000, "partition": 1},
            ]
        },
    )

    assert answer.status_code == 207
    good, bad = answer.json()["records"]
    assert good["offset"] == 0
    assert (bad["error"]["name"], bad["error"]["status"]) == ("BATCH_TOO_LARGE", 413)
    only = {"records": [{"value": "x" * 3000}]}
    assert_problem(
        await gateway.http.post("/v1/topics/t/records", json=only), 413, "BATCH_TOO_LARGE"
    )


async def test_nothing_is_sent_where_one_record_of_a_request_is_wrong(gateway):
    await gateway.create("t", 2)
    good = {"value": "x"}
    for bad, name, status in (
        ({"value_base64": "!"}, "BAD_REQUEST", 422),
        ({"value": "a", "value_json": 1}, "BAD_REQUEST", 422),
        ({"value": "a", "value_base64": "YQ=="}, "BAD_REQUEST", 422),
        ({"value": "a", "timestamp": "noon"}, "BAD_REQUEST", 422),
        ({"value": "a", "timestamp": NOON, "timestamp_us": 1}, "BAD_REQUEST", 422),
        ({"value": "a", "partition": "0"}, "BAD_REQUEST", 422),
        ({"value": "a", "colour": "red"}, "BAD_REQUEST", 422),
        ({"value": "a", "partition": 2}, "UNKNOWN_PARTITION", 404),
    ):
        body = {"records": [good, bad]}
        assert_problem(await gateway.http.post("/v1/topics/t/records", json=body), status, name)

    assert await everything(gateway, "t") == []


async def test_many_requests_at_once_become_few_batches(gateway):
    await gateway.create("t")
    count = 200

    placed = await asyncio.gather(
        *(gateway.produce("t", {"value": str(number)}) for number in range(count))
    )

    assert sorted(each["offset"] for (each,) in placed) == list(range(count))
    batches = records = 0
    async with Consumer("t", bootstrap=gateway.bootstrap, start="earliest") as consumer:
        async for batch in consumer.batches():
            batches, records = batches + 1, records + len(batch)
            if records == count:
                break
    assert batches <= count / 4, f"{batches} batches for {count} requests"


# --- read ----------------------------------------------------------------------------------------


async def test_reading_goes_on_at_next_offset_until_the_end(gateway):
    await gateway.create("t")
    await gateway.produce("t", *({"value": str(n)} for n in range(10)))
    values: list[str] = []
    offset = 0

    while True:
        found = await gateway.read("t", **{"from": offset, "max_records": 3})
        values += [record["value"] for record in found["records"]]
        assert found["next_offset"] == offset + len(found["records"])
        offset = found["next_offset"]
        if not found["records"]:
            break

    assert values == [str(n) for n in range(10)]
    assert (offset, found["log_start"], found["durable_end"]) == (10, 0, 10)


async def test_a_read_begins_where_it_is_told_to(gateway):
    await gateway.create("t")
    await gateway.produce("t", *({"value": str(n), "timestamp_us": n} for n in range(5)))
    later = {"value": "5", "timestamp": NOON}
    await gateway.produce("t", later)

    for place, first in (
        ("earliest", 0), ("latest", 6), ("3", 3), ("6", 6), ("-2", 4), ("-99", 0),
        (NOON, 5), ("2026-01-31T14:00:00+02:00", 5), ("2027-01-01", 6), ("1950-01-01", 0),
    ):  # fmt: skip
        found = await gateway.read("t", **{"from": place})
        assert [record["offset"] for record in found["records"]] == list(range(first, 6)), place


async def test_an_answer_has_whole_records_within_max_bytes_and_at_least_one(gateway):
    await gateway.create("t")
    await gateway.produce("t", *({"value": "x" * 1000} for _ in range(5)))

    two = await gateway.read("t", max_bytes=2500)
    one = await gateway.read("t", max_bytes=1)

    assert (len(two["records"]), two["next_offset"]) == (2, 2)
    assert (len(one["records"]), one["next_offset"]) == (1, 1)


async def test_a_read_at_the_end_waits_for_the_next_record(gateway):
    await gateway.create("t")
    await gateway.produce("t", {"value": "old"})

    waiting = asyncio.create_task(gateway.read("t", **{"from": 1, "wait_ms": 30_000}))
    await eventually(gateway.parked, 1)
    assert not waiting.done()
    await gateway.produce("t", {"value": "new"})

    found = await waiting
    assert [record["value"] for record in found["records"]] == ["new"]
    assert found["next_offset"] == 2


async def test_an_offset_that_is_not_there_is_an_error_with_what_there_is(gateway):
    await gateway.create("t")
    await gateway.produce("t", *({"value": str(n)} for n in range(5)))
    path = "/v1/topics/t/partitions/0/records"

    deleted = await gateway.http.delete(path, params={"before": 2})
    below = await gateway.http.get(path, params={"from": 1})
    beyond = await gateway.http.get(path, params={"from": 6})

    assert deleted.json() == {"topic": "t", "partition": 0, "log_start": 2}
    for answer in (below, beyond):
        problem = assert_problem(answer, 416, "OFFSET_OUT_OF_RANGE")
        assert problem["details"] == {"log_start": 2, "durable_end": 5}
    assert (await gateway.http.delete(path, params={"before": "latest"})).json()["log_start"] == 5


# --- topics --------------------------------------------------------------------------------------


async def test_a_topic_from_its_creation_to_its_end(gateway):
    created = await gateway.http.post(
        "/v1/topics", json={"name": "t", "partitions": 2, "config": {"retention.ms": 5000}}
    )
    assert (created.status_code, created.headers["location"]) == (201, "/v1/topics/t")
    again = await gateway.http.post("/v1/topics", json={"name": "t"})
    assert_problem(again, 409, "TOPIC_EXISTS")
    assert (await gateway.http.get("/v1/topics")).json() == {
        "topics": [{"name": "t", "partitions": 2}]
    }

    await gateway.produce("t", {"value": "x", "partition": 1})
    change = {"partitions": 3, "config": {"retention.ms": "6000"}}
    altered = (await gateway.http.patch("/v1/topics/t", json=change)).json()
    assert altered["config"]["retention.ms"] == 6000
    assert [each["durable_end"] for each in altered["partitions"]] == [0, 1, 0]
    offsets = (await gateway.http.get("/v1/topics/t/offsets")).json()["offsets"]
    assert [each["offset"] for each in offsets] == [0, 1, 0]
    bad = await gateway.http.patch("/v1/topics/t", json={"config": {"colour": "red"}})
    assert_problem(bad, 422, "BAD_CONFIG")

    assert (await gateway.http.delete("/v1/topics/t")).status_code == 204
    assert_problem(await gateway.http.get("/v1/topics/t"), 404, "UNKNOWN_TOPIC")
    assert_problem(await gateway.http.delete("/v1/topics/t"), 404, "UNKNOWN_TOPIC")


async def test_a_topic_can_be_deleted_and_made_again_under_the_producer(gateway):
    for value in ("first", "second"):
        await gateway.create("t")
        assert (await gateway.produce("t", {"value": value}))[0]["offset"] == 0
        await gateway.http.delete("/v1/topics/t")
    gone = await gateway.http.post("/v1/topics/t/records", json={"records": [{"value": "x"}]})
    assert_problem(gone, 404, "UNKNOWN_TOPIC")


async def test_internal_topics_cannot_be_touched(gateway):
    offsets = {"offsets": [{"topic": "t", "partition": 0, "offset": 0}]}
    await gateway.create("t")
    await gateway.http.post("/v1/groups/g/offsets", json=offsets)  # makes one

    for method, path, body in (
        ("GET", "/v1/topics/__groups/partitions/0/records", None),
        ("POST", "/v1/topics/__groups/records", {"records": [{"value": "x"}]}),
        ("DELETE", "/v1/topics/__groups", None),
    ):
        answer = await gateway.http.request(method, path, json=body)
        assert answer.status_code in (403, 404), answer.text


# --- groups --------------------------------------------------------------------------------------


async def test_a_groups_bookmarks_and_lag(gateway):
    await gateway.create("t", 2)
    await gateway.produce("t", *({"value": str(n), "partition": n % 2} for n in range(10)))
    commit = {"offsets": [
        {"topic": "t", "partition": 0, "offset": 2, "metadata": "m"},
        {"topic": "t", "partition": 1, "offset": 5},
    ]}  # fmt: skip

    committed = await gateway.http.post("/v1/groups/g/offsets", json=commit)

    marks = committed.json()["offsets"]
    assert [(m["partition"], m["offset"], m["metadata"]) for m in marks] == [
        (0, 2, "m"),
        (1, 5, ""),
    ]
    assert datetime.fromisoformat(marks[0]["committed_at"]) <= datetime.now(UTC)
    listed = (await gateway.http.get("/v1/groups")).json()["groups"]
    assert [(each["group"], each["state"]) for each in listed] == [("g", "empty")]
    found = (await gateway.http.get("/v1/groups/g")).json()
    assert found["lag"]["records"] == found["lag_by_topic"]["t"]["records"] == 3
    assert found["lag"]["seconds"] >= 0
    lags = [(each["partition"], each["lag"]["records"]) for each in found["partitions"]]
    assert lags == [(0, 3), (1, 0)]


async def test_a_reset_tells_what_it_would_do_and_does_it_only_when_told(gateway):
    await gateway.create("t", 1)
    await gateway.produce("t", *({"value": str(n), "timestamp_us": n} for n in range(10)))
    commit = {"offsets": [{"topic": "t", "partition": 0, "offset": 4}]}
    await gateway.http.post("/v1/groups/g/offsets", json=commit)

    async def offset_after(**body: Any) -> int:
        answer = await gateway.http.post("/v1/groups/g/reset", json=body)
        assert answer.status_code == 200, answer.text
        marks = (await gateway.http.get("/v1/groups/g/offsets")).json()["offsets"]
        assert answer.json()["changes"][0]["to_offset"] >= 0
        return int(marks[0]["offset"])

    assert await offset_after(to="earliest") == 4  # a dry run
    assert await offset_after(to="earliest", dry_run=False) == 0
    assert await offset_after(to="latest", topics=["t"], dry_run=False) == 10
    assert await offset_after(shift=-3, dry_run=False) == 7
    assert await offset_after(to=2, dry_run=False) == 2
    assert await offset_after(to=NOON, dry_run=False) == 10
    partitions = [{"topic": "t", "partition": 0}]
    assert await offset_after(to=1, partitions=partitions, dry_run=False) == 1
    for bad in ({}, {"to": 1, "shift": 1}, {"to": "noon"}):
        answer = await gateway.http.post("/v1/groups/g/reset", json=bad)
        assert_problem(answer, 422, "BAD_REQUEST")


async def test_a_group_with_members_is_left_alone_and_without_can_be_deleted(gateway):
    await gateway.create("t")
    commit = {"offsets": [{"topic": "t", "partition": 0, "offset": 0}]}
    async with Consumer("t", group="g", bootstrap=gateway.bootstrap):
        found = (await gateway.http.get("/v1/groups/g")).json()
        assert [member["client_name"] for member in found["members"]] == ["seglog-python"]
        answer = await gateway.http.post("/v1/groups/g/offsets", json=commit)
        assert_problem(answer, 409, "GROUP_NOT_EMPTY")
        assert_problem(await gateway.http.delete("/v1/groups/g"), 409, "GROUP_NOT_EMPTY")

    assert (await gateway.http.delete("/v1/groups/g")).status_code == 204
    assert_problem(await gateway.http.get("/v1/groups/g"), 404, "UNKNOWN_GROUP")
    assert (await gateway.http.get("/v1/groups/g/offsets")).json()["offsets"] == []


# --- around --------------------------------------------------------------------------------------


async def test_health_readiness_and_the_page_need_nothing_else(gateway):
    assert (await gateway.http.get("/healthz")).json()["status"] == "alive"
    assert (await gateway.http.get("/readyz")).json()["status"] == "ready"
    page = await gateway.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "/v1/topics/{topic}/records" in page.text
    assert "<script" not in page.text
    assert "//" not in page.text.replace("<!doctype", "")
    specification = (await gateway.http.get("/openapi.json")).json()
    assert "/v1/topics/{topic}/events" in specification["paths"]


async def test_a_path_or_method_that_is_not_there_is_a_problem_too(gateway):
    assert_problem(await gateway.http.get("/v1/nothing"), 404, "BAD_REQUEST")
    answer = await gateway.http.put("/v1/topics")
    assert_problem(answer, 405, "BAD_REQUEST")
    assert "GET" in answer.headers["allow"]


async def test_a_misspelled_parameter_does_not_count_as_left_out(gateway):
    await gateway.create("t")
    for path in ("/v1/topics/t/partitions/0/records?form=5", "/v1/topics?from=5"):
        answer = await gateway.http.get(path)
        assert "no such parameter" in assert_problem(answer, 422, "BAD_REQUEST")["detail"]


async def test_what_is_wrong_is_named_and_nothing_of_it_repeated(gateway):
    body = {"records": [{"value": "ok"}, {"value": 5, "secret": "hunter2"}]}
    answer = await gateway.http.post("/v1/topics/t/records", json=body)

    problem = assert_problem(answer, 422, "BAD_REQUEST")
    fields = {each["field"] for each in problem["errors"]}
    assert fields == {"body.records.1.value", "body.records.1.secret"}
    assert "hunter2" not in answer.text
    broken = await gateway.http.post(
        "/v1/topics", content=b"{", headers={"Content-Type": "application/json"}
    )
    assert_problem(broken, 422, "BAD_REQUEST")


@pytest.mark.parametrize(
    "text",
    ['"\\ud800"', "[" * 100_000, "1" * 5000, "NaN", '{"a":"\\udfff"}'],
    ids=["surrogate", "deep", "long", "nan", "surrogate-inside"],
)
async def test_json_that_no_value_can_hold_is_refused(gateway, text):
    await gateway.create("t")
    body = '{"records":[{"value_json":' + text + "}]}"

    answer = await gateway.http.post(
        "/v1/topics/t/records", content=body, headers={"Content-Type": "application/json"}
    )

    assert answer.status_code in (400, 422), answer.text
    assert await everything(gateway, "t") == []


async def test_the_figures_count_what_was_asked_and_answered(gateway):
    await gateway.create("t")
    await gateway.produce("t", {"value": "x"})
    await gateway.http.get("/v1/topics/none")
    await gateway.http.get("/v1/" + "x" * 50)
    figures = (await gateway.http.get("/metrics")).text

    route = "/v1/topics/{topic}"
    assert f'requests_total{{method="GET",route="{route}",status="404"}} 1.0' in figures
    assert f'route="{route}/records",status="200"}} 1.0' in figures
    assert 'route="unmatched",status="404"} 1.0' in figures
    assert "process_resident_memory_bytes" in figures
    assert "x" * 50 not in figures
