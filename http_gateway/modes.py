"""ASGI middleware around all routes: sessions, HEAD, lenient mode, and pages of other origins.

The header x-session-id keeps the requests of a conversation at one replica. HEAD is answered on
every route of GET: the same head, without a body (RFC 9110, 9.3.2). In lenient mode, off by
default and always on for Ollama's routes, as Ollama ignores what it does not know, unknown fields
pass, and a header of the reply names them; fields that are known and cannot be honoured are refused
in both modes. Requests of browsers' pages of other origins are refused
unless their origins are listed; preflights are answered outermost, so that they need no key and
errors carry the headers, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from urllib.parse import quote

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from http_gateway.problems import answer
from sax.auth.web_pages import JSON, MULTIPART, WebRules
from sax.client.routing import check_session, in_session
from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute


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


SESSION_HEADER = "x-session-id"


class Sessions:
    """ASGI middleware: requests to the cell are of the session that the header names."""

    def __init__(self, app: ASGIApp, *, generation: int) -> None:
        self._app = app
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        said = Headers(scope=scope).get(SESSION_HEADER) if scope["type"] == "http" else None
        if said is None:
            return await self._app(scope, receive, send)
        try:
            session = check_session(said, SESSION_HEADER)
        except InvalidRequest as error:
            refusal = answer(scope["path"], error, self._generation)
            return await refusal(scope, receive, send)
        with in_session(session):
            await self._app(scope, receive, send)


HEADER = "x-sax-ignored-fields"

_MOST_NAMED = 16
_LONGEST = 64  # characters of a name
_PLAIN = "._[]-"

# Names of the present request's ignored fields, in order; None: the mode is off.
_ignored: ContextVar[dict[str, None] | None] = ContextVar("ignored_fields", default=None)


def ignored(path: str) -> bool:
    """Note an unknown field and return True if it may pass; False: refuse it."""
    found = _ignored.get()
    if found is None:
        return False
    found[path] = None
    return True


class LenientFields:
    """ASGI middleware that turns the mode on for each request."""

    def __init__(self, app: ASGIApp, *, below: str) -> None:
        """below: beginning of the paths that have the mode."""
        self._app = app
        self._below = below

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(self._below):
            return await self._app(scope, receive, send)
        found: dict[str, None] = {}

        async def told(message: Message) -> None:
            if found and message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *_headers(found)]}
            await send(message)

        token = _ignored.set(found)
        try:
            await self._app(scope, receive, told)
        finally:
            _ignored.reset(token)


def _headers(found: Iterable[str]) -> list[tuple[bytes, bytes]]:
    names = [quote(name[:_LONGEST], safe=_PLAIN) for name in found]
    more = len(names) - _MOST_NAMED
    listed = ", ".join(names[:_MOST_NAMED]) + (f", and {more} more" if more > 0 else "")
    warning = f'299 sax "unknown fields were ignored: {listed}"'
    return [(HEADER.encode(), listed.encode()), (b"warning", warning.encode())]


_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")
_UPLOADS = (RequestRoute.FILES, RequestRoute.TRANSCRIPTIONS, RequestRoute.TRANSLATIONS)
_REMEDY = (
    "start the gateway with --tokens FILE, or with the page's origin in --cors_origins, such as "
    "https://app.example.com"
)
_EXPOSED = (
    *("x-request-id", "retry-after", "www-authenticate", "warning", HEADER),
    *(
        f"x-ratelimit-{what}-{of}"
        for what in ("limit", "remaining", "reset")
        for of in ("requests", "tokens")
    ),
)


def read_origins(text: str) -> tuple[str, ...]:
    """Return the origins of a comma-separated list; "*" allows any. Raises ValueError."""
    origins = tuple(part.strip() for part in text.split(",") if part.strip())
    for origin in origins:
        scheme, slashes, host = origin.partition("://")
        if origin != "*" and not (scheme and slashes and host and "/" not in host):
            raise ValueError(
                f"--cors_origins {origin!r} is no origin: give scheme and host, such as "
                "https://app.example.com or http://localhost:3000, or *"
            )
    return origins


def allow_origins(app: FastAPI, text: str) -> None:
    """Answer preflights, and let scripts of these origins read replies. None listed: no change."""
    if origins := read_origins(text):
        # No cookies: keys are sent in a header that the script itself sets.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=_METHODS,
            allow_headers=("*",),
            expose_headers=_EXPOSED,
        )


class OwnPages:
    """ASGI middleware of a gateway without keys, which no page may use but its own."""

    def __init__(
        self, app: ASGIApp, *, host: str, keys: bool, origins: str, generation: int
    ) -> None:
        self._app = app
        self._rules = WebRules(host=host, keys=keys, origins=read_origins(origins), remedy=_REMEDY)
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        types = (JSON, MULTIPART) if scope["path"] in _UPLOADS else (JSON,)
        rules = self._rules.at((scope.get("server") or [None])[0])
        error = rules.refusal(scope["method"], Headers(scope=scope), types)
        reply = self._app if error is None else answer(scope["path"], error, self._generation)
        await reply(scope, receive, send)
