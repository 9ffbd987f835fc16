"""Anthropic's own package reads the calls of MCP servers in a stream."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx2

from tests.http_gateway.anthropic.test_mcp_servers import ASKED
from tests.http_gateway.talking_cell import TalkingCell, application, call
from tests.sax.adding_server import AddingServer


async def test_a_stream_has_the_blocks_of_the_whole_reply_as_anthropics_package_reads_it():
    cell, server = TalkingCell("I add." + call("math__add", a=1, b=2), "3."), AddingServer()
    transport = httpx2.ASGITransport(application(cell, server))
    http = httpx2.AsyncClient(transport=transport, base_url="http://gateway")
    async with anthropic.AsyncAnthropic(
        base_url="http://gateway", api_key="x", http_client=http
    ) as sdk:
        asked: dict[str, Any] = {**ASKED, "betas": ["mcp-client-2025-11-20"]}
        async with sdk.beta.messages.stream(**asked) as stream:
            kinds = [event.type async for event in stream]
            told = await stream.get_final_message()
    assert [block.type for block in told.content] == [
        "text",
        "mcp_tool_use",
        "mcp_tool_result",
        "text",
    ]
    use, result = json.loads(told.model_dump_json())["content"][1:3]
    assert (use["input"], use["server_name"]) == ({"a": 1, "b": 2}, "math")
    assert (result["tool_use_id"], result["content"][0]["text"]) == (use["id"], "3")
    assert (told.stop_reason, kinds[-1]) == ("end_turn", "message_stop")
