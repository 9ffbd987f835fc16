"""Health endpoints of the admin server on HTTP.

While the store fails the process is alive and answers reads, so `/healthz` stays 200 and only
reports the problem: a restart would fix nothing and lose the view of the servers. `/readyz` is 503
then, since changes are refused. It is 503 on a follower too: of several admin servers behind one
address, only the leader is ready.
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
    async def healthz(request: Request) -> Response:
        return JSONResponse(describe_health(seat, clock()), headers=_FRESH)

    async def readyz(request: Request) -> Response:
        health = describe_health(seat, clock())
        return JSONResponse(health, 200 if health["writes"] == "ok" else 503, headers=_FRESH)

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


def describe_health(seat: Seat, now: float) -> dict[str, Any]:
    """Health as JSON: the role, whether reads and writes work, and why not."""
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
