"""Requests of browsers' pages of other origins: refused unless their origins are listed.

Preflights are answered outermost, so that they need no key and errors carry the headers, too.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from http_gateway.modes.lenient import HEADER
from http_gateway.problems import answer
from sax.auth.web_pages import JSON, MULTIPART, WebRules
from sax.fields.field import RequestRoute

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
