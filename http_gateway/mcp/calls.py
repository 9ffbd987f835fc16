"""McpCalls: the MCP servers that one request names, and the calls that are made there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from http_gateway.access.record import RequestRecord
from http_gateway.mcp.servers import McpServers
from sax.errors import InvalidRequest
from sax.mcp.session import McpFailed, McpOutcome

MOST_CALLS = 64  # of one answer, unless the request has a lower limit


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedServer:
    """A server as a request names it."""

    label: str
    url: str
    at: str  # the path of its entry
    url_at: str  # the path of its URL
    headers: dict[str, str]
    allowed: frozenset[str] | None = None  # names of its tools; None: all
    denied: frozenset[str] = frozenset()

    def offers(self, name: object) -> bool:
        return (self.allowed is None or name in self.allowed) and name not in self.denied


class McpCalls:
    def __init__(
        self, servers: McpServers, named: Sequence[NamedServer], most: int | None = None
    ) -> None:
        """most: calls that may be made; never more than MOST_CALLS."""
        self._servers = servers
        self._named = {server.label: server for server in named}
        self._most = min(most or MOST_CALLS, MOST_CALLS)
        self._made = 0

    @property
    def full(self) -> bool:
        """True if no further call may be made."""
        return self._made >= self._most

    def check(self) -> None:
        """Raise PermissionDenied for a server that is not allowed."""
        for server in self._named.values():
            self._servers.check(server.url, server.url_at)

    async def tools(self, server: NamedServer) -> list[dict[str, Any]]:
        """Return the tools that a server offers, as it lists them. Raises InvalidRequest."""
        try:
            async with self._servers.session(server.url, server.headers) as session:
                return [each for each in await session.tools() if server.offers(each.get("name"))]
        except McpFailed as exc:
            raise InvalidRequest(
                f"{server.at}: the MCP server {server.label} cannot be used: {exc}",
                param=server.url_at,
            ) from exc

    async def call(self, label: str, name: str, arguments: str) -> McpOutcome:
        """Make a call; what goes wrong is its outcome. arguments: JSON."""
        if self.full:
            return _failed(f"not called: a response may make {self._most} calls")
        self._made += 1
        server = self._named.get(label)
        if server is None or not server.offers(name):
            return _failed(f"{name} is no tool of this request's servers")
        span = RequestRecord.current().span
        done = span.tool(name, label) if span is not None else None
        outcome = None  # of a call that was cancelled
        try:
            outcome = await self._outcome(server, name, arguments)
            return outcome
        finally:
            if done is not None:
                done("failed" if outcome is not None and outcome.failed else "")

    async def _outcome(self, server: NamedServer, name: str, arguments: str) -> McpOutcome:
        try:
            given = _arguments(arguments or "{}")
            async with self._servers.session(server.url, server.headers) as session:
                return await session.call(name, given)
        except McpFailed as exc:
            return _failed(str(exc))


def _failed(why: str) -> McpOutcome:
    return McpOutcome(why, failed=True)


def _arguments(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as exc:
        raise McpFailed(f"its arguments are no JSON object: {exc}") from exc
