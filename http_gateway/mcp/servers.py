"""McpServers: the MCP servers that the operator allows, and sessions with them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field

import httpx

from sax.errors import PermissionDenied
from sax.format import quoted
from sax.mcp.http_transport import HttpTransport
from sax.mcp.session import McpLimits, McpSession


def read_mcp_servers(text: str) -> frozenset[str]:
    """Return the URLs of a comma-separated list. Raises ValueError."""
    urls = frozenset(part.strip() for part in text.split(",") if part.strip())
    for url in urls:
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as exc:
            raise ValueError(f"--mcp_servers {url!r} is no URL: {exc}") from exc
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo:
            raise ValueError(
                f"--mcp_servers {url!r}: give URLs such as https://mcp.example.com/mcp, without "
                "names and passwords"
            )
    return urls


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServers:
    urls: frozenset[str] = frozenset()
    limits: McpLimits = McpLimits()
    transport: httpx.AsyncBaseTransport | None = field(default=None)  # None: the network

    def check(self, url: str, param: str) -> None:
        """Raise PermissionDenied for a server that is not allowed."""
        if url not in self.urls:
            raise PermissionDenied(
                f"{param} is {quoted(url)}, which this gateway does not call: call it yourself, or "
                "ask the operator to list exactly this URL in --mcp_servers",
                param=param,
            )

    @contextlib.asynccontextmanager
    async def session(self, url: str, headers: Mapping[str, str]) -> AsyncGenerator[McpSession]:
        """Open a session for the time of the block. Raises McpFailed."""
        # Redirects are not followed: only what is listed is called.
        async with httpx.AsyncClient(
            transport=self.transport, timeout=self.limits.seconds, trust_env=False
        ) as http:
            session = McpSession(HttpTransport(http, url, headers, self.limits), self.limits)
            try:
                await session.open()
                yield session
            finally:
                await session.close()
