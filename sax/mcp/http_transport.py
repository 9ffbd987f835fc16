"""HttpTransport: messages to an MCP server over streamable HTTP.

Each is a POST, whose reply comes as JSON or as the events of a stream.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import httpx
import msgspec

from sax.mcp.session import Body, McpFailed, McpLimits, message_of

_SESSION, _VERSION = "mcp-session-id", "mcp-protocol-version"


class HttpTransport:
    def __init__(
        self, http: httpx.AsyncClient, url: str, headers: Mapping[str, str], limits: McpLimits
    ) -> None:
        self._http = http
        self._url = url
        self._headers = dict(headers)
        self._limits = limits

    def agree(self, protocol: str) -> None:
        self._headers[_VERSION] = protocol

    async def close(self) -> None:
        """End the session, if the server began one."""
        if _SESSION in self._headers:
            try:
                await self._http.delete(self._url, headers=self._headers)
            except httpx.HTTPError:
                return

    async def exchange(self, body: Body) -> Body:
        method = body["method"]
        try:
            return await self._sent(method, body)
        except httpx.HTTPError as exc:
            raise McpFailed(f"it did not answer {method}: {exc or type(exc).__name__}") from exc

    async def _sent(self, method: str, body: Body) -> Body:
        headers = {
            **self._headers,
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
        }
        data = msgspec.json.encode(body)
        async with self._http.stream("POST", self._url, content=data, headers=headers) as reply:
            if not 200 <= reply.status_code < 300:
                raise McpFailed(f"it answered {method} with status {reply.status_code}")
            if session := reply.headers.get(_SESSION):
                self._headers[_SESSION] = session
            if "id" not in body:
                return {}
            if reply.headers.get("content-type", "").startswith("text/event-stream"):
                async for message in self._events(reply):
                    if message.get("id") == body["id"] and "method" not in message:
                        return message
                raise McpFailed(f"its stream ended without an answer to {method}")
            return message_of(b"".join([piece async for piece in self._bounded(reply)]))

    async def _events(self, reply: httpx.Response) -> AsyncIterator[Body]:
        """Yield the messages of a stream of events."""
        held, data = b"", list[bytes]()
        async for piece in self._bounded(reply):
            *lines, held = (held + piece).replace(b"\r\n", b"\n").split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    data.append(line.removeprefix(b"data:").strip())
                elif not line and data:
                    yield message_of(b"\n".join(data))
                    data.clear()

    async def _bounded(self, reply: httpx.Response) -> AsyncIterator[bytes]:
        size = 0
        async for piece in reply.aiter_bytes():
            size += len(piece)
            if size > self._limits.bytes:
                raise McpFailed(f"its answer has more than {self._limits.bytes} bytes")
            yield piece
