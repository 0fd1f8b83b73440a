"""hello: who is there, and what this broker can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.api import APIS
from ...protocol.messages import ApiVersions, HelloRequest, HelloResponse

if TYPE_CHECKING:
    from ..app import Broker
    from ..connection import Connection


async def handle_hello(
    broker: Broker, connection: Connection, request: HelloRequest
) -> HelloResponse:
    connection.client_name = request.client_name
    connection.is_greeted = True
    config = broker.config
    return HelloResponse(
        broker.version,
        broker.broker_id,
        broker.cluster_id,
        [ApiVersions(api.key, api.lowest_version, api.highest_version) for api in APIS.values()],
        {
            "max.frame.bytes": config.max_frame_bytes,
            "max.array.length": config.max_array_length,
            "max.fetch.bytes": config.max_fetch_bytes,
            "max.in.flight.requests": config.max_in_flight_requests,
        },
    )
