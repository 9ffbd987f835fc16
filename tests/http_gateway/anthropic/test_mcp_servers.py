"""Tools of MCP servers in messages: offered, called by the gateway, and sent back."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from sax.chat import Message, ToolCall
from tests.each_case import each_case
from tests.http_gateway.described import check
from tests.http_gateway.talking_cell import TalkingCell, call, gateway
from tests.recorded_spans import RecordedSpans
from tests.sax.adding_server import URL, AddingServer

PATH = "/v1/messages"
SERVER: dict[str, Any] = {"type": "url", "url": URL, "name": "math", "authorization_token": "t"}
TOOLSET: dict[str, Any] = {"type": "mcp_toolset", "mcp_server_name": "math"}
QUESTION = {"role": "user", "content": "1+2?"}
ASKED: dict[str, Any] = {
    "model": "smollm2",
    "max_tokens": 50,
    "messages": [QUESTION],
    "mcp_servers": [SERVER],
    "tools": [TOOLSET],
}
OWN = {"name": "own", "input_schema": {"type": "object"}}


async def ask(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    reply = await http.post(PATH, json={**ASKED, **fields})
    check(2, "POST", PATH, reply)
    assert reply.status_code == 200, reply.text
    return reply.json()


def called_with(cell: TalkingCell) -> list[list[str]]:
    """The names of the tools of each question."""
    return [[tool.name for tool in request.chat.tools] for request in cell.requests]


async def test_calls_are_made_and_the_answer_goes_on():
    cell = TalkingCell(call("math__add", a=1, b=2) + call("math__fail"), "3.")
    server = AddingServer()
    async with gateway(cell, server) as http:
        told = await ask(http)
        good, bad, three, broken, text = told["content"]
        assert (good["type"], good["name"], good["server_name"]) == ("mcp_tool_use", "add", "math")
        assert good["input"] == {"a": 1, "b": 2}
        assert three == {
            "type": "mcp_tool_result",
            "tool_use_id": good["id"],
            "is_error": False,
            "content": [{"type": "text", "text": "3"}],
        }
        assert (broken["tool_use_id"], broken["is_error"]) == (bad["id"], True)
        assert (text["text"], told["stop_reason"]) == ("3.", "end_turn")
        assert (told["usage"]["input_tokens"], told["usage"]["output_tokens"]) == (10, 6)
        assert {each["authorization"] for each in server.headers} == {"Bearer t"}
        assert called_with(cell) == [["math__add", "math__fail"]] * 2
        first, second = cell.requests
        assert (first.sampling.max_tokens, second.sampling.max_tokens) == (50, 47)
        made = (
            ToolCall(good["id"], "math__add", '{"a": 1, "b": 2}'),
            ToolCall(bad["id"], "math__fail", "{}"),
        )
        history = (
            Message("user", "1+2?"),
            Message("assistant", "", tool_calls=made),
            Message("tool", "3", "math__add", good["id"]),
            Message("tool", "Error: it is broken", "math__fail", bad["id"]),
        )
        assert second.prompt == history
        # The next turn says the same to the model, so that its prefix is in the cache.
        said = {"role": "assistant", "content": told["content"]}
        await ask(http, messages=[QUESTION, said, {"role": "user", "content": "And?"}])
    after = (*history, Message("assistant", "3."), Message("user", "And?"))
    assert cell.requests[-1].prompt == after


async def test_calls_of_the_clients_own_tools_end_the_turn_after_those_of_servers():
    cell, server = TalkingCell(call("own") + call("math__add", a=1), "Done."), AddingServer()
    async with gateway(cell, server) as http:
        told = await ask(http, tools=[TOOLSET, OWN])
        own, use, result = told["content"]
        assert [own["type"], use["type"]] == ["tool_use", "mcp_tool_use"]
        assert (told["stop_reason"], len(cell.requests)) == ("tool_use", 1)
        assert result["content"][0]["text"] == "1"
        said = {"role": "assistant", "content": told["content"]}
        answer = {"type": "tool_result", "tool_use_id": own["id"], "content": "2"}
        turns = [QUESTION, said, {"role": "user", "content": [answer]}]
        await ask(http, messages=turns, tools=[TOOLSET, OWN])
        reply = await http.post(PATH, json={**ASKED, "messages": turns[:2]})
    assert "send its result" in reply.json()["error"]["message"]
    roles = [message.role for message in cell.requests[-1].prompt if isinstance(message, Message)]
    assert roles == ["user", "assistant", "tool", "tool"]


@each_case("fields, names", [
    ({}, ["math__add", "math__fail"]),
    ({"tools": [OWN, TOOLSET]}, ["own", "math__add", "math__fail"]),
    ({"tools": [{**TOOLSET, "configs": {"fail": {"enabled": False}}}]}, ["math__add"]),
    ({"tools": [{**TOOLSET, "default_config": {"enabled": False},
                 "configs": {"fail": {"enabled": True, "defer_loading": True}}}]}, ["math__fail"]),
    ({"tools": [{**TOOLSET, "tools": [{"name": "pinned"}]}]}, ["math__pinned"]),
    ({"tools": None}, ["math__add", "math__fail"]),  # the older form
    ({"tools": None, "mcp_servers": [{**SERVER, "tool_configuration": {"enabled": False}}]}, []),
    ({"tools": None,
      "mcp_servers": [{**SERVER, "tool_configuration": {"allowed_tools": ["add"]}}]},
     ["math__add"]),
    ({"messages": [QUESTION, {"role": "assistant", "content": [
        {"type": "mcp_tool_listing", "mcp_server_name": "math", "tools": [{"name": "kept"}]},
        {"type": "text", "text": "Hi."}]}, QUESTION]}, ["math__kept"]),
])  # fmt: skip
async def test_a_request_says_which_tools_are_offered(fields: dict[str, Any], names: list[str]):
    cell, server = TalkingCell("Hi."), AddingServer()
    async with gateway(cell, server) as http:
        await ask(http, **fields)
        counted = {key: value for key, value in {**ASKED, **fields}.items() if key != "max_tokens"}
        assert (await http.post(f"{PATH}/count_tokens", json=counted)).status_code == 200
    assert called_with(cell) == [names]
    assert [tool.name for tool in cell.chats[-1].tools] == names


async def test_a_tool_that_is_not_offered_is_not_called():
    cell, server = TalkingCell(call("math__fail"), "Done."), AddingServer()
    only = {**TOOLSET, "configs": {"fail": {"enabled": False}}}
    async with gateway(cell, server) as http:
        await ask(http, tools=[only])
    assert server.calls() == []


@each_case("choice, status", [
    ({"type": "any"}, 200),
    ({"type": "tool", "name": "math__add"}, 200),
    ({"type": "tool", "name": "math__subtract"}, 400),
])  # fmt: skip
async def test_a_forced_call_is_the_first_ones_only(choice: dict[str, Any], status: int):
    cell, server = TalkingCell(call("math__add", a=1), "1."), AddingServer()
    async with gateway(cell, server) as http:
        reply = await http.post(PATH, json={**ASKED, "tool_choice": choice})
    assert reply.status_code == status
    if status == 200:
        choices = [each.chat.tool_choice for each in cell.requests]
        assert choices in (["required", "auto"], ["function", "auto"])


async def test_tokens_of_all_rounds_are_bounded_together():
    cell, server = TalkingCell(call("math__add", a=1)), AddingServer()
    async with gateway(cell, server) as http:
        told = await ask(http, max_tokens=6)
    assert (told["stop_reason"], told["usage"]["output_tokens"]) == ("max_tokens", 6)
    assert len(server.calls()) == 2


async def test_a_call_that_was_cut_off_has_a_result_in_the_next_turn():
    cell, server = TalkingCell("Hi."), AddingServer()
    use = {"type": "mcp_tool_use", "id": "c", "name": "add", "server_name": "math", "input": {}}
    async with gateway(cell, server) as http:
        await ask(http, messages=[QUESTION, {"role": "assistant", "content": [use]}, QUESTION])
    prompt = cell.requests[0].prompt
    assert prompt[2] == Message("tool", "This call was not made.", "math__add", "c")


async def test_a_server_that_is_not_allowed_is_refused_with_the_remedy():
    cell, server = TalkingCell("x"), AddingServer()
    async with gateway(cell, server) as http:
        other = {**SERVER, "url": "https://other.example.com/"}
        for path in (PATH, f"{PATH}/count_tokens"):
            asked = {**ASKED, "mcp_servers": [other]}
            if path != PATH:
                del asked["max_tokens"]
            reply = await http.post(path, json=asked)
            check(2, "POST", path, reply)
            assert reply.status_code == 403
            assert re.search(r"mcp_servers\[0\].url.*--mcp_servers", reply.text)
    assert (server.bodies, cell.requests) == ([], [])


@pytest.mark.parametrize("stream", [False, True])
async def test_each_call_is_a_span(stream: bool):
    cell, server = TalkingCell(call("math__add", a=1), "Done."), AddingServer()
    spans = RecordedSpans()
    async with gateway(cell, server, spans) as http:
        assert (await http.post(PATH, json={**ASKED, "stream": stream})).status_code == 200
    assert [each.name for each in spans.all if each.name.startswith("execute")] == [
        "execute_tool add"
    ]
