"""Lenient mode: unknown fields pass, and a header of the reply names them.

Off by default: a gateway refuses an unknown field by name. Fields that are known and cannot be
honoured are refused in both modes.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

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

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
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
