"""The page for people: `/` for browsers, and its files under /page/.

The page asks for its data, /cell, with a key; the files hold none, so they need no key.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from sax.look.page_file import page_files

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
