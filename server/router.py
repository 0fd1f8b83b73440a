"""From a frame to a handler, and from an error to an answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ..protocol.api import (
    APIS,
    HELLO,
    Api,
    RequestEnvelope,
    decode_envelope,
    decode_request,
    encode_error,
    encode_response,
    told_errors,
)
from ..protocol.errors import HelloRequired, InternalError, SeglogError
from ..protocol.messages import Message, WireError
from .connection import NO_REQUEST, Connection
from .handlers import DIRECT, ORDINARY
from .metrics import UNKNOWN_API

if TYPE_CHECKING:
    from .app import Broker

logger = logging.getLogger(__name__)

OrdinaryHandler = Callable[["Broker", Connection, Any], Awaitable[Message]]


class Router:
    """Bound to one broker; called for each frame."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def __call__(self, connection: Connection, place: int, frame: bytes | bytearray) -> None:
        correlation_id, api_key = NO_REQUEST, UNKNOWN_API
        try:
            envelope = decode_envelope(frame)
            correlation_id, api_key = envelope.correlation_id, envelope.api
            self._route(connection, place, envelope)
        except SeglogError as error:
            self._fail(connection, place, correlation_id, api_key, error)
        except Exception:
            logger.exception("a request failed")
            fault = InternalError("the request failed")
            self._fail(connection, place, correlation_id, api_key, fault)

    def _route(self, connection: Connection, place: int, envelope: RequestEnvelope) -> None:
        api, request = decode_request(envelope)
        if not connection.is_greeted and api is not HELLO:
            raise HelloRequired(f"{api.name} came before hello")
        direct = DIRECT.get(api.key)
        if direct is not None:
            direct(self._broker, connection, place, envelope.correlation_id, request)
            return
        connection.start_task(
            self._answer(connection, place, envelope.correlation_id, api, request)
        )

    async def _answer(
        self, connection: Connection, place: int, correlation_id: int, api: Api, request: Any
    ) -> None:
        try:
            response = await ORDINARY[api.key](self._broker, connection, request)
        except SeglogError as error:
            self._fail(connection, place, correlation_id, api.key, error)
        except Exception:
            logger.exception("%s failed", api.name)
            fault = InternalError(f"{api.name} failed")
            self._fail(connection, place, correlation_id, api.key, fault)
        else:
            for code in told_errors(api, response):
                self._broker.metrics.failed(api.key, code)
            connection.respond(place, [encode_response(correlation_id, response)], api.key)

    def _fail(
        self,
        connection: Connection,
        place: int,
        correlation_id: int,
        api_key: int,
        error: SeglogError,
    ) -> None:
        if api_key not in APIS:
            api_key = UNKNOWN_API
        self._broker.metrics.failed(api_key, error.code)
        connection.respond(place, [encode_error(correlation_id, WireError.of(error))], api_key)
