"""Authentication: reads the token of every HTTP request and forwards it to the cell.

With a token file every request needs a valid token, except probes and a browser's for its pages,
which hold no data. Either way, calls to the cell carry the user's token and never the gateway's
own, so that no user gains rights by going through the gateway. They name the client's address too
(as proxies tell it that the operator trusts), by which servers tell users without tokens apart.
Pure ASGI.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from http_gateway.access import RequestRecord
from http_gateway.docs_page import asks_for_docs
from http_gateway.page.routes import asks_for_page
from http_gateway.problems import answer
from sax.auth.acl import ANYONE, Principal, account_of_host, enter_call
from sax.auth.authentication import Authentication
from sax.auth.credentials import acting_as, bearer_token
from sax.errors import Unauthenticated

# They need no token; without one the reply names no models.
PROBES = ("/healthz", "/readyz", "/health", "/ping")

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


Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_HEADER = "x-forwarded-for"


def parse_networks(text: str) -> tuple[Network, ...]:
    """Parse comma-separated addresses and networks. Raises ValueError naming the flag."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    try:
        return tuple(ipaddress.ip_network(word, strict=False) for word in words)
    except ValueError as error:
        raise ValueError(
            f"--trusted_proxies {text!r}: {error}; give addresses or networks such as "
            "10.0.0.7,192.168.0.0/16"
        ) from None


def client_host(scope: Scope, trusted: Sequence[Network]) -> str:
    """Return the nearest address on the request's way that is not a trusted proxy.

    Each proxy appends the address that it saw to X-Forwarded-For, so entries count from the right,
    and only as far as trusted proxies wrote them: a client can write what it likes in front.
    """
    host = (scope.get("client") or ("", 0))[0]
    if not trusted or not _trusts(trusted, host):
        return host
    for entry in reversed(",".join(Headers(scope=scope).getlist(_HEADER)).split(",")):
        if not _is_address(entry.strip()):
            return host
        host = entry.strip()
        if not _trusts(trusted, host):
            return host
    return host


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _trusts(trusted: Sequence[Network], host: str) -> bool:
    if not _is_address(host):
        return False
    address = ipaddress.ip_address(host)
    return any(address in network for network in trusted)
