"""An MCP server in a function: it adds numbers, and fails as it is told."""

from __future__ import annotations

import json
from typing import Any

import httpx

URL = "https://mcp.example.com/mcp"
ADD = {
    "name": "add",
    "description": "Adds.",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "annotations": {"readOnlyHint": True},
}
FAIL = {"name": "fail", "inputSchema": {"type": "object"}}


class AddingServer:
    """streams: answers come as events. `bodies` and `headers` are what it was sent."""

    def __init__(self, *, streams: bool = False) -> None:
        self.streams = streams
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[httpx.Headers] = []
        self.closed = 0
        self.padding = ""
        self.status = 200
        self.transport = httpx.MockTransport(self._answer)

    def calls(self) -> list[dict[str, Any]]:
        return [body["params"] for body in self.bodies if body["method"] == "tools/call"]

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            self.closed += 1
            return httpx.Response(200)
        body = json.loads(request.content)
        self.bodies.append(body)
        self.headers.append(request.headers)
        if self.status != 200:
            return httpx.Response(self.status)
        if "id" not in body:
            return httpx.Response(202)
        result = self._result(body["method"], body["params"])
        said = json.dumps({"jsonrpc": "2.0", "id": body["id"], **result})
        headers = {"mcp-session-id": "s1"}
        if not self.streams:
            return httpx.Response(200, headers=headers, text=said)
        note = json.dumps({"jsonrpc": "2.0", "method": "notifications/message"})
        events = f"event: message\r\ndata: {note}\r\n\r\nid: 1\r\ndata: {said}\r\n\r\n"
        headers["content-type"] = "text/event-stream"
        return httpx.Response(200, headers=headers, text=events)

    def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        match method, params:
            case "initialize", _:
                return {"result": {"protocolVersion": "2025-06-18", "padding": self.padding}}
            case "tools/list", {"cursor": "two"}:
                return {"result": {"tools": [FAIL]}}
            case "tools/list", _:
                return {"result": {"tools": [ADD], "nextCursor": "two"}}
            case "tools/call", {"name": "add", "arguments": arguments}:
                image = {"type": "image", "mimeType": "image/png", "data": "AAAA"}
                text = {"type": "text", "text": f"{sum(arguments.values())}"}
                return {"result": {"content": [text, *([image] if "image" in arguments else [])]}}
            case "tools/call", {"name": "fail"}:
                wrong = {"type": "text", "text": "it is broken"}
                return {"result": {"content": [wrong], "isError": True}}
            case _:
                return {"error": {"code": -32601, "message": f"no {method}"}}
