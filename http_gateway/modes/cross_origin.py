"""Cross-origin requests of browsers: off unless origins are listed.

Outermost, so that a preflight needs no key and errors carry the headers, too.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from http_gateway.modes.lenient import HEADER

_METHODS = ("GET", "HEAD", "POST", "PUT")
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
