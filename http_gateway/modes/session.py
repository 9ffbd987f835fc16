"""The header x-session-id keeps the requests of a conversation at one replica, on every route."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from http_gateway.problems import answer
from sax.client.routing.session import check_session, in_session
from sax.errors import InvalidRequest

HEADER = "x-session-id"


class Sessions:
    """ASGI middleware: requests to the cell are of the session that the header names."""

    def __init__(self, app: ASGIApp, *, generation: int) -> None:
        self._app = app
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        said = Headers(scope=scope).get(HEADER) if scope["type"] == "http" else None
        if said is None:
            return await self._app(scope, receive, send)
        try:
            session = check_session(said, HEADER)
        except InvalidRequest as error:
            refusal = answer(scope["path"], error, self._generation)
            return await refusal(scope, receive, send)
        with in_session(session):
            await self._app(scope, receive, send)
