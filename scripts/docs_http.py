"""The parts of docs/http.md that are made from the code: every path, and every error's status."""

from __future__ import annotations

from collections.abc import Callable

from seglog.gateway.app import create_app
from seglog.gateway.problems import STATUS
from seglog.gateway.settings import GatewaySettings


def endpoints() -> str:
    specification = create_app("127.0.0.1:7400", settings=GatewaySettings()).openapi()
    rows = ["| path | what it does | query |", "|---|---|---|"]
    for path, methods in specification["paths"].items():
        for method, operation in methods.items():
            first = operation.get("description", "").split("\n\n")[0].replace("\n", " ")
            query = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"]
            shown = ", ".join(f"`{name}`" for name in query)
            rows.append(f"| `{method.upper()} {path}` | {first} | {shown} |")
    return "\n".join(rows)


def statuses() -> str:
    by_status: dict[int, list[str]] = {}
    for kind, status in STATUS.items():
        by_status.setdefault(status, []).append(f"`{kind.wire_name()}`")
    rows = ["| status | errors |", "|---|---|"]
    rows += [f"| {status} | {', '.join(names)} |" for status, names in sorted(by_status.items())]
    return "\n".join(rows)


GENERATED: dict[str, Callable[[], str]] = {"http-endpoints": endpoints, "http-statuses": statuses}
