"""Authentication: reads the token of every HTTP request and forwards it to the cell.

With a token file every request needs a valid token, except probes and a browser's for its pages,
which hold no data. Either way, calls to the cell
carry the user's token and never the gateway's own, so that no user gains rights by going through
the gateway. They name the client's address too, by which servers tell users without tokens apart.
Pure ASGI.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from http_gateway.access import RequestRecord
from http_gateway.client_address import Network, client_host
from http_gateway.docs_page import asks_for_docs
from http_gateway.page.routes import asks_for_page
from http_gateway.problems import answer
from sax.auth.acl import ANYONE, Principal, account_of_host, enter_call
from sax.auth.authentication import Authentication
from sax.auth.credentials import acting_as, bearer_token
from sax.errors import Unauthenticated

PROBES = (
    "/healthz",
    "/readyz",
    "/health",
    "/ping",
)  # need no token; without one the reply names no models

_LONGEST = 4096


class Auth:
    """ASGI middleware between the envelope and the routes."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        authentication: Authentication,
        generation: int,
        trusted_proxies: Sequence[Network] = (),
    ) -> None:
        self._app = app
        self._authentication = authentication
        self._generation = generation
        self._trusted_proxies = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        token = token_of(Headers(scope=scope))
        account = account_of_host(client_host(scope, self._trusted_proxies))
        record = RequestRecord.current()
        record.key = account
        if self._authentication.on:
            try:
                key = self._caller(scope, token)
                record.key = key.name or account
                enter_call(key)
            except Unauthenticated as error:
                refusal = answer(scope["path"], error, self._generation)
                return await refusal(scope, receive, send)
        with acting_as(token, account):
            await self._app(scope, receive, send)

    def _caller(self, scope: Scope, token: str) -> Principal:
        if not token:
            if scope["path"] in PROBES or asks_for_page(scope) or asks_for_docs(scope):
                return ANYONE
            raise Unauthenticated(
                "no API key: send `Authorization: Bearer KEY` or `x-api-key: KEY` with the token "
                "you got from the operators of this cell"
            )
        return self._authentication.of_token(token)


def token_of(headers: Headers) -> str:
    """Return the token as OpenAI's or Anthropic's clients send it; "" if missing or malformed."""
    header = headers.get("authorization")
    token = bearer_token(header) if header is not None else None
    token = (token or headers.get("x-api-key", "")).strip()
    good = len(token) <= _LONGEST and token.isascii() and token.isprintable() and " " not in token
    return token if good else ""
