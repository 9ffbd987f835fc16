"""HEAD on every route of GET: the same head, without a body (RFC 9110, 9.3.2)."""

from __future__ import annotations

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class _HeadIsSent(OSError):
    """Ends a stream as a client does that has left."""


class HeadRequests:
    """ASGI middleware right around the routes, which see a GET."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self._app(scope, receive, send)
        seen = {**scope, "method": "GET"}
        ended = False

        async def send_head(message: Message) -> None:
            nonlocal ended
            if message["type"] == "http.response.start":
                return await send(message)
            if ended:
                raise _HeadIsSent
            ended = True
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        try:
            await self._app(seen, receive, send_head)
        except (ClientDisconnect, _HeadIsSent):
            if not ended:
                raise
        finally:
            scope.update({**seen, "method": "HEAD"})  # the route, for the access line
