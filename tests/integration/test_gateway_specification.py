"""Every operation of the specification with requests made from it, good and bad: no answer is a
server error, and every answer is as the specification says.
"""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from seglog.gateway.app import create_app
from seglog.gateway.settings import GatewaySettings

from tests.gateways import gateway_in_a_thread

TOPIC = "orders"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", re.ASCII)
GROUP = "billing"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]

# From the application itself, since tests are collected before a gateway runs.
schema = schemathesis.openapi.from_dict(
    create_app("127.0.0.1:1", settings=GatewaySettings()).openapi()
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    # Short waits and streams, so that following a topic ends too.
    limits = {"max_wait_ms": 20, "max_stream_ms": 50, "heartbeat_ms": 20}
    few = {"max_partitions": 40}  # thousands would take their time
    with gateway_in_a_thread(few, **limits) as (address, _), httpx.Client(base_url=address) as http:
        http.post("/v1/topics", json={"name": TOPIC, "partitions": 2}).raise_for_status()
        records = [{"value": "tea", "key": "ann"}, {"value_base64": "/w==", "partition": 1}]
        http.post(f"/v1/topics/{TOPIC}/records", json={"records": records}).raise_for_status()
        offsets = [{"topic": TOPIC, "partition": 0, "offset": 0}]
        http.post(f"/v1/groups/{GROUP}/offsets", json={"offsets": offsets}).raise_for_status()
        yield address


def with_known_names(value: Any) -> Any:
    """Every second topic and group is one that is there, and partitions are mostly: else nearly all
    requests would end at a name that nobody knows. What is wrong stays wrong."""
    if isinstance(value, list):
        return [with_known_names(each) for each in value]
    if not isinstance(value, dict):
        return value
    value = {name: with_known_names(each) for name, each in value.items()}
    for name, known in (("topic", TOPIC), ("group", GROUP)):
        given_name = value.get(name)
        if isinstance(given_name, str) and NAME.fullmatch(given_name) and len(given_name) % 2:
            value[name] = known
    if type(value.get("partition")) is int and 0 <= value["partition"] < 10_000:
        value["partition"] %= 3
    return value


@schema.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    """Except where that would delete what others need."""
    is_deleted = context.operation.label in {
        "DELETE /v1/topics/{topic}",
        "DELETE /v1/groups/{group}",
    }
    return path_parameters if is_deleted else with_known_names(path_parameters)


@schema.hook
def map_query(context: Any, query: Any) -> Any:
    return with_known_names(query)


@schema.hook
def map_body(context: Any, body: Any) -> Any:
    return with_known_names(body)


OPERATIONS = [each.ok() for each in schema.get_all_operations() if isinstance(each, Ok)]


@pytest.mark.xdist_group("gateway_specification")  # one broker for all of them
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_no_request_makes_a_server_error_and_answers_are_as_specified(operation, url):
    good = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    bad = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)

    @given(case=good | bad if takes_anything(operation) else good)
    @settings(
        max_examples=30,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    def check(case):
        case.call_and_validate(base_url=url, checks=CHECKS)

    check()


def takes_anything(operation: Any) -> bool:
    return bool(operation.definition.raw.get("parameters") or operation.body)
