"""Tools of MCP servers in responses: listed, called by the gateway, approved where asked for."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from sax.chat import Message, ToolCall
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell
from tests.http_gateway.talking_cell import TalkingCell, call, gateway
from tests.recorded_spans import RecordedSpans
from tests.sax.adding_server import URL, AddingServer

PATH = "/v1/responses"
SERVER = {"type": "mcp", "server_label": "math", "server_url": URL, "require_approval": "never"}
ASKED: dict[str, Any] = {"model": "smollm2", "input": "1+2?", "tools": [SERVER]}


def last_said(cell: FakeCell) -> object:
    """The content of the last message that the model was asked with."""
    prompt = cell.requests[-1].prompt
    assert isinstance(prompt, tuple)
    assert isinstance(prompt[-1], Message)
    return prompt[-1].content


def events(reply: httpx.Response) -> list[dict[str, Any]]:
    lines = [line for line in reply.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_are_made_and_the_answer_goes_on(stream: bool):
    cell, server = (
        TalkingCell(call("math__add", a=1, b=2) + call("math__fail"), "3."),
        AddingServer(),
    )
    secret = {**SERVER, "headers": {"X-Key": "k"}, "authorization": "t"}
    async with gateway(cell, server) as http:
        reply = await http.post(PATH, json={**ASKED, "tools": [secret], "stream": stream})
        told = events(reply)[-1]["response"] if stream else reply.json()
        kept = (await http.get(f"{PATH}/{told['id']}")).json()
    assert told == kept
    listed, good, bad, message = told["output"]
    assert [tool["name"] for tool in listed["tools"]] == ["add", "fail"]
    assert (good["name"], good["output"], good["error"]) == ("add", "3", None)
    assert (bad["status"], bad["output"], bad["error"]) == ("failed", None, "it is broken")
    assert message["content"][0]["text"] == "3."
    assert (told["usage"]["input_tokens"], told["usage"]["output_tokens"]) == (10, 6)
    assert "k" not in json.dumps(told["tools"])
    assert {headers["authorization"] for headers in server.headers} == {"Bearer t"}
    first, second = cell.requests
    assert [tool.name for tool in first.chat.tools] == ["math__add", "math__fail"]
    assert second.prompt == (
        Message("user", "1+2?"),
        Message(
            "assistant",
            "",
            tool_calls=(
                ToolCall(good["id"], "math__add", '{"a": 1, "b": 2}'),
                ToolCall(bad["id"], "math__fail", "{}"),
            ),
        ),
        Message("tool", "3", name="math__add", tool_call_id=good["id"]),
        Message("tool", "it is broken", name="math__fail", tool_call_id=bad["id"]),
    )


async def test_a_stream_tells_of_lists_and_calls():
    cell, server = TalkingCell(call("math__add", a=1), "Done."), AddingServer(streams=True)
    async with gateway(cell, server) as http:
        told = events(await http.post(PATH, json={**ASKED, "stream": True}))
    kinds = [event["type"].removeprefix("response.") for event in told]
    assert [kind for kind in kinds if kind.startswith("mcp")] == [
        "mcp_list_tools.in_progress",
        "mcp_list_tools.completed",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
    ]
    done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    assert done == told[-1]["response"]["output"]
    assert [event["sequence_number"] for event in told] == [*range(len(told))]


async def test_calls_wait_for_approval_and_go_on_with_it():
    cell = TalkingCell(call("math__add", a=1), "Done.")
    server, asks = AddingServer(), {**SERVER, "require_approval": "always"}
    async with gateway(cell, server) as http:
        first = (await http.post(PATH, json={**ASKED, "tools": [asks]})).json()
        request = first["output"][-1]
        assert (request["type"], request["arguments"]) == ("mcp_approval_request", '{"a": 1}')
        assert server.calls() == []
        said = {"type": "mcp_approval_response", "approval_request_id": request["id"]}
        more = {**ASKED, "tools": [asks], "previous_response_id": first["id"]}
        second = (await http.post(PATH, json={**more, "input": [{**said, "approve": True}]})).json()
        assert [item["type"] for item in second["output"]] == ["mcp_call", "message"]
        assert second["output"][0]["approval_request_id"] == request["id"]
        assert server.calls() == [{"name": "add", "arguments": {"a": 1}}]
        assert last_said(cell) == "1"
        body = {**more, "input": [{**said, "approve": False, "reason": "No."}]}
        assert (await http.post(PATH, json=body)).status_code == 200
        assert last_said(cell) == "The user did not approve this call. No."
        assert len(server.calls()) == 1
        # What was approved and made before is not made again.
        again = {**more, "previous_response_id": second["id"], "input": "And?"}
        assert (await http.post(PATH, json=again)).status_code == 200
    assert len(server.calls()) == 1
    assert sum(body["method"] == "tools/list" for body in server.bodies) == 2  # two pages, once


async def test_calls_end_at_their_number_and_the_answer_without_more():
    cell, server = TalkingCell(call("math__add", a=1)), AddingServer()
    async with gateway(cell, server) as http:
        told = (await http.post(PATH, json={**ASKED, "max_tool_calls": 2})).json()
    assert len(server.calls()) == 2
    assert told["status"] == "completed"
    assert [each.chat.tool_choice for each in cell.requests] == ["auto", "auto", "none"]


async def test_calls_of_functions_are_left_to_the_client():
    function = {"type": "function", "name": "own"}
    cell, server = TalkingCell(call("math__add", a=1) + call("own")), AddingServer()
    async with gateway(cell, server) as http:
        told = (await http.post(PATH, json={**ASKED, "tools": [SERVER, function]})).json()
    assert [item["type"] for item in told["output"]][1:] == ["mcp_call", "function_call"]
    assert (told["status"], len(cell.requests)) == ("completed", 1)
    assert told["output"][1]["output"] == "1"


@each_case("fields, param", [
    ({"server_url": "https://other.example.com/"}, "tools[0].server_url"),
    ({"server_url": None, "connector_id": "c"}, "tools[0].server_url"),
    ({"server_label": "a b"}, "tools[0].name"),
    ({"require_approval": "maybe"}, "tools[0].require_approval"),
    ({"require_approval": {"never": {"read_only": True}}},
     "tools[0].require_approval.never.read_only"),
    ({"allowed_tools": [1]}, "tools[0].allowed_tools"),
    ({"headers": {"a b": "c"}}, "tools[0].headers"),
    ({"headers": {"a": "c\r\nd: e"}}, "tools[0].headers"),
])  # fmt: skip
async def test_what_is_wrong_is_refused_by_its_path(fields: dict[str, Any], param: str):
    server = AddingServer()
    async with gateway(TalkingCell("x"), server) as http:
        reply = await http.post(PATH, json={**ASKED, "tools": [{**SERVER, **fields}]})
    assert (reply.status_code in (400, 403), reply.json()["error"]["param"]) == (True, param)
    assert server.bodies == []


async def test_each_call_is_a_span_below_its_request():
    cell, server = TalkingCell(call("math__add", a=1) + call("math__fail"), "Done."), AddingServer()
    spans = RecordedSpans()
    async with gateway(cell, server, spans) as http:
        assert (await http.post(PATH, json=ASKED)).status_code == 200
    good, bad = [span for span in spans.all if span.name.startswith("execute_tool")]
    assert (good.name, good.attributes["sax.mcp.server"]) == ("execute_tool add", "math")
    assert (good.error, bad.error) == ("", "failed")
    assert good.parent == spans.all[-1].context


async def test_a_server_that_fails_is_named():
    server = AddingServer()
    server.status = 500
    async with gateway(TalkingCell("x"), server) as http:
        reply = await http.post(PATH, json=ASKED)
    assert reply.status_code == 400
    assert "the MCP server math cannot be used" in reply.json()["error"]["message"]


async def test_openai_s_own_package_reads_lists_calls_and_answers():
    cell, server = TalkingCell(call("math__add", a=1, b=2), "3."), AddingServer()
    place, http = "http://gateway/v1", gateway(cell, server)
    async with openai.AsyncOpenAI(base_url=place, api_key="x", http_client=http) as sdk:
        tool: Any = SERVER
        asked = sdk.responses.stream(model="smollm2", input="1+2?", tools=[tool])
        async with asked as stream:
            kinds = [event.type async for event in stream]
            told = await stream.get_final_response()
    assert "response.mcp_call.completed" in kinds
    assert [item.type for item in told.output] == ["mcp_list_tools", "mcp_call", "message"]
    assert told.output_text == "3."
