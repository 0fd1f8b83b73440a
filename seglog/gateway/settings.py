"""The gateway's settings: one table, with defaults, ranges and a line of explanation each.

Outside they are written with dots and `http.` in front: `http.max.body.bytes`. They are read as the
broker's are (server/settings.py), from the same file, variables and flags.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ..protocol.constants import KIB, MAX_FETCH_WAIT_MS, MAX_PARTITIONS_PER_TOPIC, MIB

DEFAULT_HTTP_PORT: Final = 8080
NO_PORT: Final = -1

_DAY_MS: Final = 24 * 60 * 60 * 1000

Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Milliseconds = Annotated[int, Meta(ge=1, le=_DAY_MS)]


class GatewaySettings(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename=lambda name: name.replace("_", "."),
):
    """Everything that can be set when a gateway starts."""

    #: The address that the gateway listens on. There is no authentication: see docs/http.md.
    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    #: The port of the gateway; 0 takes a free one and prints it, -1: `seglog serve` runs none.
    port: Annotated[int, Meta(ge=NO_PORT, le=65_535)] = NO_PORT

    # --- a request ---
    #: The largest body of a request.
    max_body_bytes: Annotated[int, Meta(ge=KIB, le=64 * MIB)] = 8 * MIB
    #: The request line and all headers of a request together.
    max_header_bytes: Annotated[int, Meta(ge=KIB, le=MIB)] = 32 * KIB
    #: Records in one produce request, and in one answer.
    max_records: Count = 10_000
    #: Bytes of keys, values and headers in one answer; one record is given whatever its size.
    max_answer_bytes: Annotated[int, Meta(ge=KIB, le=64 * MIB)] = 8 * MIB
    #: The longest that a read waits for records: a longer `wait_ms` counts as this.
    max_wait_ms: Annotated[int, Meta(ge=0, le=MAX_FETCH_WAIT_MS)] = 30_000
    #: A body that has not come after this time is given up.
    body_timeout_ms: Milliseconds = 30_000

    # --- all requests ---
    #: Connections in all; more are closed at once.
    max_connections: Count = 1_000
    #: Requests that are being answered, without streams; more are refused with 429.
    max_requests: Count = 256
    #: Bytes of the bodies of all requests that are being answered; more are refused with 429.
    max_bodies_bytes: Annotated[int, Meta(ge=KIB, le=1024 * MIB)] = 64 * MIB
    #: A connection that asks for nothing is closed after this time.
    idle_timeout_ms: Milliseconds = 60_000
    #: A connection that takes nothing of its answer is closed after this time.
    slow_reader_timeout_ms: Milliseconds = 30_000

    # --- streams ---
    #: Streams in all; more are refused with 429.
    max_streams: Count = 100
    #: Partitions that one stream reads; of a topic with more, name one.
    max_stream_partitions: Annotated[int, Meta(ge=1, le=MAX_PARTITIONS_PER_TOPIC)] = 64
    #: Bytes of batches that a stream fetches ahead of its reader.
    stream_buffer_bytes: Annotated[int, Meta(ge=64 * KIB, le=64 * MIB)] = MIB
    #: A server-sent event stream says so when nothing came for this time.
    heartbeat_ms: Milliseconds = 15_000
    #: A stream ends after this time, between two records; 0: never.
    max_stream_ms: Annotated[int, Meta(ge=0, le=_DAY_MS)] = 0

    # --- the broker ---
    #: How long a broker that does not answer is waited for.
    broker_timeout_ms: Milliseconds = 10_000
    #: How long a stop waits for answers that are under way.
    shutdown_timeout_ms: Milliseconds = 10_000
