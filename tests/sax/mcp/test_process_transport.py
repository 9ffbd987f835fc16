"""Sessions with an MCP server that is a program of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sax.cli.mcp_tools import ProcessTransport
from sax.mcp.session import McpFailed, McpLimits, McpOutcome, McpSession

COMMAND = f"{sys.executable} -S -E {Path(__file__).with_name('line_server.py')}"


async def test_tools_of_a_program_are_listed_and_called_and_its_questions_answered() -> None:
    limits = McpLimits(bytes=1000)
    session = McpSession(await ProcessTransport.start(COMMAND, limits), limits)
    await session.open()
    assert [tool["name"] for tool in await session.tools()] == ["greet"]
    assert await session.call("greet", {"name": "you"}) == McpOutcome("Hello you")
    assert await session.call("answers", {}) == McpOutcome("[{}, -32601]")
    with pytest.raises(McpFailed, match="more than 1000 bytes"):
        await session.call("greet", {"name": "x" * 2000})
    await session.close()


async def test_a_program_that_ends_or_is_not_there_is_told() -> None:
    limits = McpLimits()
    session = McpSession(await ProcessTransport.start(COMMAND, limits), limits)
    await session.open()
    with pytest.raises(McpFailed, match="it ended"):
        await session.call("greet", {"name": "nobody"})
    await session.close()
    for command, word in (
        ("/no/such program", "No such file"),
        ("'", "quotation"),
        ("", "started"),
    ):
        with pytest.raises(McpFailed, match=word):
            await ProcessTransport.start(command, limits)
