"""The gateway as an ASGI application.

    app = create_app("127.0.0.1:7400", settings=GatewaySettings())

Any ASGI server can run it; `server.py` runs it as `seglog gateway` and `seglog serve` do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI

from .. import __version__
from ..client.metadata import parse_bootstrap
from . import routes_groups, routes_health, routes_records, routes_streams, routes_topics
from .backend import Backend
from .figures import Exposition, Figures, Observed
from .limits import Limits
from .problems import PROBLEM_TYPE, add_handlers
from .settings import GatewaySettings
from .state import Gateway

_DESCRIPTION: Final = (
    "The log over HTTP: append, read and follow records; topics, consumer groups and their lag."
)


def create_app(
    bootstrap: str,
    *,
    settings: GatewaySettings,
    metrics: Callable[[], Exposition] | None = None,
) -> FastAPI:
    """`metrics`: what the broker in this process shows at /metrics, and its content type."""
    parse_bootstrap(bootstrap)  # a mistake is told here, not by the first request
    figures = Figures(metrics)
    backend = Backend(bootstrap, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await backend.close()

    app = FastAPI(
        title="Seglog",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # they load their scripts from the internet: page.py does not
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.gateway = Gateway(backend, settings, figures)
    app.add_middleware(Limits, settings=settings)
    app.add_middleware(Observed, figures=figures)  # the last one added is the outermost
    add_handlers(app)
    for routes in (routes_records, routes_streams, routes_topics, routes_groups, routes_health):
        app.include_router(routes.router)
    _describe_problems(app)
    return app


def _describe_problems(app: FastAPI) -> None:
    """Let the specification say that problems are problem JSON."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            for methods in made()["paths"].values():
                for operation in methods.values():
                    content = operation["responses"]["default"]["content"]
                    content[PROBLEM_TYPE] = content.pop("application/json")
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documentation does
