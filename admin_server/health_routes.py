"""What the admin says of itself to probes on HTTP.

While the store fails the process is alive and answers reads, so `/healthz` stays 200 and only tells
the trouble: a restart would cure nothing and lose the view of the servers. `/readyz` is 503 then,
for who wants to know whether a change would be accepted. It is 503 as well on an admin server that
follows another: of several behind one address, only the one that leads is ready.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from admin_server.seat import Seat

_FRESH = {"Cache-Control": "no-store"}


def health_routes(seat: Seat, clock: Callable[[], float]) -> list[Route]:
    """`/healthz` and `/readyz`."""

    async def healthz(request: Request) -> Response:
        return JSONResponse(describe_health(seat, clock()), headers=_FRESH)

    async def readyz(request: Request) -> Response:
        health = describe_health(seat, clock())
        return JSONResponse(health, 200 if health["writes"] == "ok" else 503, headers=_FRESH)

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


def describe_health(seat: Seat, now: float) -> dict[str, Any]:
    """Of the process: its role, what it can do now, and what not, in words."""
    health, leading = seat.health, seat.cell is not None
    told = {
        "status": "degraded" if health.failing else "ok",
        "role": seat.describe(),
        "reads": "ok" if leading else "refused",
        "writes": "ok" if leading and not health.failing else "refused",
    }
    if health.since_s is None:
        return told
    return {**told, "reason": health.trouble, "for_s": round(max(0.0, now - health.since_s), 1)}
