"""The page for people: `/` for browsers, its files under /page/, and /cell, which it shows.

The page asks for its data, /cell, with a key; the files hold none, so they need no key. The cell is
fetched at most once a second for all viewers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypedDict

import msgspec
from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from http_gateway.cell_client import CellClient
from http_gateway.openapi import JSON, operation
from sax.auth.acl import caller
from sax.auth.credentials import own_account, told_to_user
from sax.auth.key_limits import KeyLimits
from sax.errors import AdminUnavailable, SaxError, UnsupportedParameter
from sax.look.cell_rows import ShownModel, ShownServer, model_row, server_row
from sax.look.page_file import page_files
from sax.names import ModelId
from sax.types import JoinedServer, Overview, PublishedModel, Rights, ServableInfo

_FOLDER = "/page/"
_INDEX = "index.html"
_PACKAGE = "http_gateway.page"


class PageRoutes:
    def router(self) -> APIRouter:
        router = APIRouter()
        router.add_api_route("/page/{name}", self.file, methods=["GET"], include_in_schema=False)
        return router

    async def file(self, name: str, request: Request) -> Response:
        """Return one file of the page."""
        found = page_files(_PACKAGE).get(name)
        if found is None or name == _INDEX:
            raise HTTPException(404, "the page has no such file")
        return Response(**found.reply(request.headers)._asdict())


def page_reply(request: Request) -> Response:
    """Return the page itself."""
    reply = page_files(_PACKAGE)[_INDEX].reply(request.headers)
    reply.headers["vary"] = "accept, accept-encoding"
    return Response(**reply._asdict())


def asks_for_page(scope: Scope) -> bool:
    """True for a browser's request for the page or one of its files."""
    if scope["method"] not in ("GET", "HEAD"):
        return False
    if scope["path"] == "/":
        return prefers_html(Headers(scope=scope).get("accept", ""))
    return scope["path"].startswith(_FOLDER)


def prefers_html(accept: str) -> bool:
    """True if HTML is named and nothing that JSON could be is liked better.

    `*/*`, as curl and most programs send it, names nothing: they get what they always got.
    """
    weights = dict(_weight(part) for part in accept.lower().split(",") if part.strip())
    html = weights.get("text/html", 0.0)
    return html > 0 and html >= weights.get("application/json", 0.0)


def _weight(part: str) -> tuple[str, float]:
    name, *parameters = (each.strip() for each in part.split(";"))
    given = (each.partition("=") for each in parameters)
    quality = next((value for key, _, value in given if key.strip() == "q"), "1")
    try:
        return name, float(quality)
    except ValueError:
        return name, 0.0


_MOST_MODELS = 1000
_MOST_SERVERS = 1000
_MOST_REPLICAS = 100  # of one model
_FRESH_S = 1.0
_TIMEOUT_S = 5.0
_FRESH = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class ShownCell(TypedDict):
    """A cell as one caller sees it. `admin`: "ok", or why the reply is older than `now_s`.
    `may_publish`: null where the admin server does not tell."""

    cell: str
    now_s: float
    seen_at_s: float
    admin: str
    may_publish: bool | None
    models: list[ShownModel]
    models_hidden: int
    servers: list[ShownServer]
    servers_hidden: int


def shown_cell(
    sight: CellSight, rights: Rights | None, limits: KeyLimits, now_s: float
) -> ShownCell:
    """Return what a caller with these rights and limits may see of the cell."""
    overview = sight.overview
    models = [model for model in overview.models if limits.allows(model.spec.model_id)]
    servers = overview.servers
    return {
        "cell": _cell_of(overview.models, servers),
        "now_s": now_s,
        "seen_at_s": sight.at_s,
        "admin": sight.failure or "ok",
        "may_publish": None if rights is None else rights.publish,
        "models": [model_row(each, _MOST_REPLICAS, rights) for each in models[:_MOST_MODELS]],
        "models_hidden": max(0, len(models) - _MOST_MODELS),
        "servers": [
            server_row(each, sight.at_s, _held(each, limits)) for each in servers[:_MOST_SERVERS]
        ],
        "servers_hidden": max(0, len(servers) - _MOST_SERVERS),
    }


def _cell_of(models: Iterable[PublishedModel], servers: Iterable[JoinedServer]) -> str:
    """Return the name of the cell by that of a model, "" in a cell that has none."""
    named = (model.spec.model_id for model in models)
    held = (one.model_id for server in servers for one in server.servables)
    model_id = next(named, "") or next(held, "")
    return str(ModelId.parse(model_id).cell_id) if model_id else ""


def _held(server: JoinedServer, limits: KeyLimits) -> list[ServableInfo]:
    return [one for one in server.servables if limits.allows(one.model_id)]


@dataclass(frozen=True, slots=True)
class CellSight:
    """One look at the cell; `failure` is why there is no newer one, "" if it is fresh."""

    overview: Overview
    at_s: float  # seconds since the epoch
    failure: str = ""


class WatchedCell:
    def __init__(
        self, client: CellClient, clock: Callable[[], float] = time.time, fresh_s: float = _FRESH_S
    ) -> None:
        self._client = client
        self._clock = clock
        self._fresh_s = fresh_s
        self._seen: CellSight | None = None
        self._looking: asyncio.Task[None] | None = None

    async def look(self) -> CellSight:
        """Return the cell as it is, or as it was when its admin server last answered.

        Raises SaxError if it never answered.
        """
        if self._seen is not None and 0 <= self._clock() - self._seen.at_s < self._fresh_s:
            return self._seen
        try:
            await asyncio.shield(self._start())
        except SaxError as error:
            told = told_to_user(error)
            if self._seen is None:
                raise told from error
            return CellSight(self._seen.overview, self._seen.at_s, told.text)
        assert self._seen is not None
        return self._seen

    async def rights(self) -> Rights | None:
        """Return the changes that the caller may make; None if the admin does not tell."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self._client.rights()
        except (UnsupportedParameter, AdminUnavailable, TimeoutError):
            return None

    def _start(self) -> asyncio.Task[None]:
        if self._looking is None:
            # Shared by all viewers, so it runs under the gateway's own identity.
            self._looking = asyncio.create_task(self._fetch(), context=own_account())
            self._looking.add_done_callback(_retrieve)
        return self._looking

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                self._seen = CellSight(await self._client.overview(), self._clock())
        except TimeoutError as error:
            raise AdminUnavailable(
                f"the admin server did not answer within {_TIMEOUT_S:g} s; check that it is running"
            ) from error
        finally:
            self._looking = None


def _retrieve(task: asyncio.Task[None]) -> None:
    """Take the error of a look whose viewers all left, which would be logged otherwise."""
    if not task.cancelled():
        task.exception()


class CellRoutes:
    """/cell: the cell as it is now, for the page and for anyone else who watches it."""

    def __init__(self, watched: WatchedCell) -> None:
        self._watched = watched

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
