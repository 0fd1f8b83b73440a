"""Health, readiness and figures, for those who look after the process; and the page of the API."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from .. import __version__
from .page import render_page
from .state import ANY_PROBLEM, GatewayState, json_response

router = APIRouter(tags=["health"], responses=ANY_PROBLEM)


class HealthOut(BaseModel):
    status: str
    version: str


@router.get("/healthz", response_model=HealthOut)
async def health() -> Response:
    """The process lives, and answers."""
    return json_response({"status": "alive", "version": __version__})


@router.get("/readyz", response_model=HealthOut)
async def readiness(gateway: GatewayState) -> Response:
    """The broker can be reached; 503 while it cannot."""
    await gateway.backend.reach()
    return json_response({"status": "ready", "version": __version__})


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(gateway: GatewayState) -> Response:
    """Figures for Prometheus."""
    # Beside the loop: of a broker with many partitions there is much to tell.
    body, content_type = await asyncio.to_thread(gateway.figures.expose)
    return Response(body, headers={"Content-Type": content_type})


@router.get("/docs", include_in_schema=False)
async def page(request: Request) -> Response:
    """The API as a page that needs nothing from the internet."""
    return Response(render_page(request.app.openapi()), media_type="text/html; charset=utf-8")
