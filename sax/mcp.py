"""Sessions with MCP servers, over HTTP or any other transport.

Only three calls of JSON-RPC are needed (initialize, tools/list, tools/call), so this stands in for
the official package, which brings a server with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import httpx
import msgspec

from sax.distribution import version

PROTOCOL = "2025-06-18"
_MOST_PAGES = 16
Body = dict[str, Any]


class McpFailed(Exception):
    """A server that failed, with the reason in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpLimits:
    seconds: float = 30.0  # of one exchange
    bytes: int = 1 << 20  # of one reply
    tools: int = 128  # of one server


@dataclass(frozen=True, slots=True)
class McpOutcome:
    """Result of one tool call: its text, and whether the tool reported an error."""

    text: str
    failed: bool = False

    @property
    def told(self) -> str:
        """The text that a model reads: chat templates know no failed results."""
        return f"Error: {self.text}" if self.failed else self.text


class McpTransport(Protocol):
    """Takes messages to a server, and brings its answers."""

    async def exchange(self, body: Body) -> Body:
        """Return the answer to a request; {} for a body without an id, which has none.

        Raises McpFailed.
        """
        ...

    def agree(self, protocol: str) -> None:
        """Note the version of the protocol that the server speaks."""
        ...

    async def close(self) -> None:
        """End the session. What fails then harms nobody."""
        ...


class McpSession:
    def __init__(self, transport: McpTransport, limits: McpLimits) -> None:
        self._transport = transport
        self._limits = limits
        self._number = 0

    async def open(self) -> None:
        """Raises McpFailed."""
        about = {
            "protocolVersion": PROTOCOL,
            "capabilities": {},
            "clientInfo": {"name": "sax", "version": version()},
        }
        found = await self._ask("initialize", about)
        self._transport.agree(str(found.get("protocolVersion", PROTOCOL)))
        note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await self._exchange("notifications/initialized", note)

    async def tools(self) -> list[dict[str, Any]]:
        """Return the server's tools. Raises McpFailed."""
        found: list[dict[str, Any]] = []
        cursor: object = None
        for _ in range(_MOST_PAGES):
            page = await self._ask("tools/list", {} if cursor is None else {"cursor": cursor})
            found += _objects(page.get("tools"))
            cursor = page.get("nextCursor")
            if not cursor:
                break
        if cursor or len(found) > self._limits.tools:
            raise McpFailed(f"it has more than {self._limits.tools} tools")
        return found

    async def call(self, name: str, arguments: Mapping[str, Any]) -> McpOutcome:
        """Call a tool. Raises McpFailed."""
        result = await self._ask("tools/call", {"name": name, "arguments": arguments})
        texts = [_text_of(part) for part in _objects(result.get("content"))]
        if not texts and result.get("structuredContent") is not None:
            texts = [json.dumps(result["structuredContent"], ensure_ascii=False)]
        return McpOutcome("\n".join(texts), failed=bool(result.get("isError")))

    async def close(self) -> None:
        """End the session. What fails then harms nobody."""
        try:
            async with asyncio.timeout(self._limits.seconds):
                await self._transport.close()
        except TimeoutError:
            return

    async def _ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        self._number += 1
        body: Body = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        reply = await self._exchange(method, body)
        error = reply.get("error")
        if isinstance(error, dict):
            said = cast("dict[str, Any]", error).get("message")
            raise McpFailed(f"{method} failed: {str(said)[:500]}")
        result = reply.get("result")
        if not isinstance(result, dict):
            raise McpFailed(f"its answer to {method} has no result")
        return cast("dict[str, Any]", result)

    async def _exchange(self, method: str, body: Body) -> Body:
        try:
            async with asyncio.timeout(self._limits.seconds):
                return await self._transport.exchange(body)
        except TimeoutError as exc:
            raise McpFailed(
                f"it did not answer {method} within {self._limits.seconds:g} s"
            ) from exc


def message_of(data: bytes) -> Body:
    """Return a message of a server. Raises McpFailed."""
    try:
        value = msgspec.json.decode(data)
    except msgspec.DecodeError as exc:
        raise McpFailed(f"its answer is no JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise McpFailed("its answer is no JSON object")
    return cast("dict[str, Any]", value)


def _objects(value: object) -> list[dict[str, Any]]:
    entries = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", each) for each in entries if isinstance(each, dict)]


def _text_of(part: Mapping[str, Any]) -> str:
    """Return a part of a result as the model reads it."""
    if part.get("type") == "text":
        return str(part.get("text", ""))
    resource = part.get("resource")
    if isinstance(resource, dict) and isinstance(text := cast("Any", resource).get("text"), str):
        return text
    about = {key: part[key] for key in ("type", "mimeType", "uri", "name") if key in part}
    return f"[a part that is no text, which is left out: {json.dumps(about)}]"


_SESSION, _VERSION = "mcp-session-id", "mcp-protocol-version"


class HttpTransport:
    """Messages to an MCP server over streamable HTTP.

    Each is a POST, whose reply comes as JSON or as the events of a stream.
    """

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
