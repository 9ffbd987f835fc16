"""A cell whose model calls tools as it is told, before a gateway that may call MCP servers."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
from fastapi import FastAPI

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from http_gateway.mcp import McpServers
from sax.chat import AnswerFormat
from sax.storage.object_store import open_store
from sax.tracing import NO_TRACER, Tracer
from sax.types import GenerateRequest, TokenChunk
from tests.http_gateway.fake_cell import FakeCell, published
from tests.sax.adding_server import URL, AddingServer

FORMAT = AnswerFormat("hermes")


def call(name: str, **arguments: int) -> str:
    said = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{said}\n</tool_call>"


class TalkingCell(FakeCell):
    """Says one text after the other, each as an answer of 3 tokens to a prompt of 5."""

    def __init__(self, *texts: str) -> None:
        super().__init__(published("/sax/test/smollm2"))
        self.texts = [*texts]

    async def generate_to(
        self,
        request: GenerateRequest,
        sink: Callable[[TokenChunk], None],
        timeout_s: float | None = None,
    ) -> None:
        text = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        half = len(text) // 2
        self.said = (
            TokenChunk(
                text[:half], (1,), prompt_tokens=5, completion_tokens=1, answer_format=FORMAT
            ),
            TokenChunk(text[half:], (2,), completion_tokens=3, finish_reason="stop"),
        )
        await super().generate_to(request, sink, timeout_s)


def application(cell: FakeCell, server: AddingServer, tracer: Tracer = NO_TRACER) -> FastAPI:
    mcp = McpServers(urls=frozenset([URL]), transport=server.transport)
    store = open_store("memory://")
    return create_app(cell, GatewayConfig(), store=store, tracer=tracer, mcp=mcp)


def gateway(cell: FakeCell, server: AddingServer, tracer: Tracer = NO_TRACER) -> httpx.AsyncClient:
    app = application(cell, server, tracer)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://gateway")
