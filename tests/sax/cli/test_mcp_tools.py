"""A conversation in the terminal whose model calls tools of MCP servers, programs of this machine
among them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from sax.chat import AnswerFormat, Message, ToolCall
from sax.cli.conversation import MOST_ROUNDS, Conversation
from sax.cli.mcp_tools import McpTools, ProcessTransport
from sax.client import Client
from sax.errors import InvalidRequest
from sax.mcp import McpFailed, McpLimits, McpOutcome, McpSession
from sax.types import GenerateRequest, SamplingParams, TokenChunk
from tests.each_case import each_case
from tests.sax.adding_server import URL, AddingServer


def call(name: str, **arguments: int) -> str:
    said = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{said}\n</tool_call>"


class TalkingClient:
    """Says one text after the other, each in two chunks; the last one again and again."""

    def __init__(self, *texts: str, generic: bool = False) -> None:
        self.texts = [*texts]
        self.requests: list[GenerateRequest] = []
        self.format = AnswerFormat("hermes", "think", generic=generic)

    def generate(self, request: GenerateRequest) -> Iterator[TokenChunk]:
        self.requests.append(request)
        text = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        half = len(text) // 2
        yield TokenChunk(text[:half], (1,), answer_format=self.format)
        yield TokenChunk(text[half:], (2,), finish_reason="stop")


def conversation(client: TalkingClient, tools: McpTools, **fields: Any) -> Conversation:
    made = Conversation(cast("Client", client), "/sax/test/m", SamplingParams(), **fields)
    made.tools = tools
    return made


@pytest.mark.parametrize("stream", [True, False])
def test_calls_are_shown_and_made_and_the_answer_goes_on(
    stream: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    client = TalkingClient(
        "<think>Hm.</think>I add." + call("add", a=1, b=2) + call("fail"), "3.", generic=True
    )
    server = AddingServer()
    with McpTools([URL], yes=True, transport=server.transport) as tools:
        said = conversation(client, tools, stream=stream)
        said.ask("1+2?")
        said.ask("And?")
    printed = capsys.readouterr()
    assert printed.out == "I add.\n3.\n3.\n"
    for line in (f"{URL}: add, fail\n", 'add {"a": 1, "b": 2}\n', "\n3\n", "Error: it is broken"):
        assert line in printed.err
    assert "Hm." in printed.err
    assert "sax's own form" in printed.err
    assert server.calls()[0] == {"name": "add", "arguments": {"a": 1, "b": 2}}
    assert server.closed == 1
    first, second, third = client.requests
    assert [tool.name for tool in first.chat.tools] == ["add", "fail"]
    asked, spoken, *results = cast("tuple[Message, ...]", second.prompt)
    good, bad = spoken.tool_calls
    assert (spoken.content, spoken.reasoning) == ("I add.", "Hm.")
    assert good == ToolCall(good.id, "add", '{"a": 1, "b": 2}')
    assert results == [
        Message("tool", "3", "add", good.id),
        Message("tool", "Error: it is broken", "fail", bad.id),
    ]
    assert third.prompt == (*second.prompt, Message("assistant", "3."), Message("user", "And?"))


def test_a_call_is_not_made_where_nobody_can_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    client, server = TalkingClient(call("add", a=1), "Well."), AddingServer()
    with McpTools([URL], transport=server.transport) as tools:
        conversation(client, tools).ask("1?")
    assert server.calls() == []
    assert "--mcp-yes" in capsys.readouterr().err
    last = cast("tuple[Message, ...]", client.requests[-1].prompt)[-1]
    assert last.content == "The user did not approve this call."


class Person:
    """A terminal whose person says one word after the other."""

    def __init__(self, *words: str) -> None:
        self._words = [*words]

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return self._words.pop(0) + "\n"


def test_a_person_decides_on_each_call_or_on_all_of_a_tool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = [call("add", a=1), call("add", a=2), call("add", a=3), call("add", a=4)]
    client, server = TalkingClient("".join(calls), "Well."), AddingServer()
    monkeypatch.setattr("sys.stdin", Person("no", "y", "always"))
    with McpTools([URL], transport=server.transport) as tools:
        conversation(client, tools).ask("?")
    assert [each["arguments"] for each in server.calls()] == [{"a": 2}, {"a": 3}, {"a": 4}]


def test_tools_with_the_name_of_another_server_s_have_a_name_of_their_own() -> None:
    server = AddingServer()
    with McpTools([URL, URL], yes=True, transport=server.transport) as tools:
        names = [tool.name for tool in tools.tools]
        (told,) = tools.results([ToolCall("c", "server2__add", '{"a": 5}')])
        wrong = tools.results([ToolCall("c", "add", '{"a"'), ToolCall("d", "none")])
    assert names == ["add", "fail", "server2__add", "server2__fail"]
    assert told == Message("tool", "5", "server2__add", "c")
    assert [str(each.content)[:7] for each in wrong] == ["Error: "] * 2


def test_a_model_that_only_calls_is_stopped() -> None:
    client, server = TalkingClient(call("add", a=1)), AddingServer()
    with McpTools([URL], yes=True, transport=server.transport) as tools:
        conversation(client, tools).ask("?")
    assert len(client.requests) == MOST_ROUNDS
    assert client.requests[-1].chat.tool_choice == "none"


@each_case("wanted, first", [
    ("auto", ("auto", "")), ("none", ("none", "")), ("required", ("required", "")),
    ("add", ("function", "add")),
])  # fmt: skip
def test_a_choice_of_tools_is_that_of_each_messages_first_answer(
    wanted: str, first: tuple[str, str]
) -> None:
    client, server = TalkingClient(call("add", a=1), "Well.", call("add", a=2), "."), AddingServer()
    with McpTools([URL], yes=True, transport=server.transport) as tools:
        said = conversation(client, tools, tool_choice=wanted)
        said.ask("1?")
        said.ask("2?")
    chosen = [(each.chat.tool_choice, each.chat.tool_name) for each in client.requests]
    assert chosen == ([first, first] if wanted == "none" else [first, ("auto", "")] * 2)


def test_a_server_that_cannot_be_used_is_named() -> None:
    server = AddingServer()
    server.status = 500
    for place, word in ((URL, "status 500"), ("/no/such/program", "cannot be started")):
        with (
            pytest.raises(InvalidRequest, match=word),
            McpTools([place], transport=server.transport),
        ):
            pass


COMMAND = f"{sys.executable} -S -E {Path(__file__).parents[1] / 'line_server.py'}"


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
