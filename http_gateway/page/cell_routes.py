"""/cell: the cell as it is now, for the page and for anyone else who watches it."""

from __future__ import annotations

import asyncio
import time

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from http_gateway.cell_client import CellClient
from http_gateway.openapi import JSON, operation
from http_gateway.page.cell_reply import ShownCell, shown_cell
from http_gateway.page.watched_cell import WatchedCell
from sax.auth.acl import caller

_FRESH = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class CellRoutes:
    def __init__(self, client: CellClient) -> None:
        self._watched = WatchedCell(client)

    def router(self) -> APIRouter:
        router = APIRouter(tags=["ops"])
        told = operation(ShownCell, statuses=(401, 500, 503, 504))
        router.add_api_route("/cell", self.cell, methods=["GET"], **told)
        return router

    async def cell(self) -> Response:
        """Describe models, replicas and servers, how busy each is, and what the caller may change.

        Only models that the caller's key may use are listed. While the admin server does not
        answer, the last known state stands, and `admin` says why.
        """
        sight, rights = await asyncio.gather(self._watched.look(), self._watched.rights())
        shown = shown_cell(sight, rights, caller().limits, time.time())
        return Response(msgspec.json.encode(shown), media_type=JSON, headers=_FRESH)
