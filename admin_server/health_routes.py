"""What the admin says of itself to probes on HTTP.

While the store fails the process is alive and answers reads, so `/healthz` stays 200 and only tells
the trouble: a restart would cure nothing and lose the view of the servers. `/readyz` is 503 then,
for who wants to know whether a change would be accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from admin_server.store_health import StoreHealth

_FRESH = {"Cache-Control": "no-store"}


def health_routes(health: StoreHealth, clock: Callable[[], float]) -> list[Route]:
    """`/healthz` and `/readyz`."""

    async def healthz(request: Request) -> Response:
        return JSONResponse(describe_health(health, clock()), headers=_FRESH)

    async def readyz(request: Request) -> Response:
        status = 503 if health.failing else 200
        return JSONResponse(describe_health(health, clock()), status, headers=_FRESH)

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


def describe_health(health: StoreHealth, now: float) -> dict[str, Any]:
    """Of the process: what it can do now, and what not, in words."""
    if health.since_s is None:
        return {"status": "ok", "reads": "ok", "writes": "ok"}
    return {
        "status": "degraded",
        "reads": "ok",
        "writes": "refused",
        "reason": health.trouble,
        "for_s": round(max(0.0, now - health.since_s), 1),
    }
