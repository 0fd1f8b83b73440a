"""The paths of topics: create, list, describe, alter, delete, offsets."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from .models import PLACE_PATTERN, PLACES, TopicPath
from .places import find_log_ends, find_offsets, parse_place
from .state import ANY_PROBLEM, CLOSED_QUERY, PREFIX, GatewayState, json_response
from .topic_models import (
    OffsetsOut,
    TopicChange,
    TopicIn,
    TopicListed,
    TopicOut,
    TopicsOut,
    topic_out,
)

router = APIRouter(prefix=PREFIX, tags=["topics"], responses=ANY_PROBLEM, dependencies=CLOSED_QUERY)


@router.get("/topics", response_model=TopicsOut)
async def list_topics(gateway: GatewayState) -> Response:
    """All topics but internal ones."""
    found = await (await gateway.backend.admin()).metadata()
    listed = sorted((topic.name, len(topic.leaders)) for topic in found.topics)
    return json_response({"topics": [{"name": n, "partitions": count} for n, count in listed]})


@router.post("/topics", status_code=201, response_model=TopicListed)
async def create_topic(body: TopicIn, gateway: GatewayState) -> Response:
    """Create a topic."""
    admin = await gateway.backend.admin()
    count = await admin.create_topic(body.name, body.partitions, body.config)
    location = {"Location": f"{PREFIX}/topics/{body.name}"}
    return json_response({"name": body.name, "partitions": count}, 201, location)


@router.get("/topics/{topic}", response_model=TopicOut)
async def describe_topic(topic: TopicPath, gateway: GatewayState) -> Response:
    """Settings, and of each partition its log start, ends and size."""
    found = await (await gateway.backend.admin()).describe_topic(topic)
    return json_response(topic_out(found))


@router.patch("/topics/{topic}", response_model=TopicOut)
async def alter_topic(topic: TopicPath, body: TopicChange, gateway: GatewayState) -> Response:
    """Add partitions, or change settings; answers with what the topic is now."""
    admin = await gateway.backend.admin()
    await admin.alter_topic(topic, body.partitions, body.config)
    return json_response(topic_out(await admin.describe_topic(topic)))


@router.delete("/topics/{topic}", status_code=204, response_class=Response)
async def delete_topic(topic: TopicPath, gateway: GatewayState) -> Response:
    """Delete a topic and all its records."""
    await (await gateway.backend.admin()).delete_topic(topic)
    return Response(status_code=204)


@router.get("/topics/{topic}/offsets", response_model=OffsetsOut)
async def list_offsets(
    topic: TopicPath,
    gateway: GatewayState,
    at: Annotated[str, Query(pattern=PLACE_PATTERN, description=f"{PLACES}.")] = "latest",
) -> Response:
    """The offset at a place, in each partition: where a read from there begins."""
    place = parse_place("at", at)
    admin = await gateway.backend.admin()
    found = await find_offsets(admin, topic, place, await find_log_ends(admin, topic, None))
    offsets = [{"partition": number, "offset": offset} for number, offset in found.items()]
    return json_response({"topic": topic, "offsets": offsets})
