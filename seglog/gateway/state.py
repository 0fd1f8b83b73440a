"""What the routes of one gateway share, and the shape that all of them have in common."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from fastapi import Depends, Request, Response

from ..protocol.errors import BadRequest
from .backend import Backend
from .figures import Figures
from .limits import Slots
from .problems import Problem, Refused
from .settings import GatewaySettings

PREFIX: Final = "/v1"

#: Every operation may answer with a problem; the specification says so once for each.
ANY_PROBLEM: Final[dict[int | str, dict[str, Any]]] = {
    "default": {"model": Problem, "description": "What went wrong, and what to do next"}
}


class Gateway:
    """One gateway: in `app.state.gateway`."""

    def __init__(self, backend: Backend, settings: GatewaySettings, figures: Figures) -> None:
        self.backend = backend
        self.settings = settings
        self.figures = figures
        self.streams = Slots(settings.max_streams, "http.max.streams")
        figures.streams.set_function(lambda: self.streams.taken)


async def _gateway_of(request: Request) -> Gateway:  # a plain function would run in a thread
    gateway: Gateway = request.app.state.gateway
    return gateway


GatewayState = Annotated[Gateway, Depends(_gateway_of)]


async def _refuse_unknown_query(request: Request) -> None:
    """A name that is misspelled must not count as one that is left out."""
    known = [field.alias for field in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "there are none"
            raise Refused(422, BadRequest(f"query: no such parameter here; {there}"))


#: Of every router.
CLOSED_QUERY: Final = [Depends(_refuse_unknown_query)]


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Encoded here: the models only describe it (a test holds them to it), and cost nothing."""
    return Response(
        msgspec.json.encode(body), status, headers=headers, media_type="application/json"
    )
