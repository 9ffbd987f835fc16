"""/v1/responses over the fake cell: an input of size s answers the numbers s, s+1, ..., s+4."""

from __future__ import annotations

import json
from typing import Any

import httpx

from http_gateway.config import GatewayConfig
from http_gateway.openai.responses.routes import divided, fitted
from sax.chat import Message, Tool, ToolCall
from sax.errors import PromptTooLong, QueueFull, ReplicaLost
from tests.each_case import each_case
from tests.http_gateway.conftest import Connect
from tests.http_gateway.fake_cell import FakeCell
from tests.stores.faulty_store import FaultyStore

PATH = "/v1/responses"
ASKED = {"model": "smollm2", "input": "abc"}
TEXT = " 3 4 5 6 7"


def text_of(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    return reply.json()["output"][0]["content"][0]["text"]


def events(reply: httpx.Response) -> list[dict[str, Any]]:
    assert reply.status_code == 200
    lines = [line for line in reply.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_a_text_is_answered(cell: FakeCell, http: httpx.AsyncClient):
    reply = await http.post(PATH, json={**ASKED, "instructions": "de"})
    assert text_of(reply) == " 5 6 7 8 9"
    (asked,) = cell.requests
    assert asked.prompt == (Message("system", "de"), Message("user", "abc"))
    assert asked.chat.divided
    body = reply.json()
    assert (body["status"], body["store"], body["error"]) == ("completed", False, None)
    assert body["usage"]["total_tokens"] == 10
    assert asked.request_id.startswith(f"{reply.headers['x-request-id']}/{body['id']}")


async def test_every_field_reaches_the_cell(cell: FakeCell, http: httpx.AsyncClient):
    tool = {"type": "function", "name": "f", "description": "F", "parameters": {"type": "object"}}
    body = {
        **ASKED,
        "temperature": 0.5,
        "top_p": 0.5,
        "max_output_tokens": 2,
        "seed": 4,
        "tools": [tool],
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low"},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "metadata": {"a": "b"},
        "user": "u",
    }
    reply = await http.post(PATH, json=body)
    assert text_of(reply) == " 7 8"
    (asked,) = cell.requests
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.5, 0.5, 2)
    assert (sampling.seed, sampling.logprobs) == (4, 2)
    assert asked.chat.tools == (Tool("f", "F", '{"type": "object"}'),)
    assert (asked.chat.tool_choice, asked.chat.tool_name) == ("function", "f")
    assert not asked.chat.parallel_tool_calls
    assert asked.chat.chat_template_kwargs == '{"reasoning_effort": "low"}'
    said = reply.json()
    assert said["incomplete_details"] == {"reason": "max_output_tokens"}
    assert len(said["output"][0]["content"][0]["logprobs"]) == 2
    assert (said["metadata"], said["user"]) == ({"a": "b"}, "u")
    assert said["tools"] == [{**tool, "strict": False}]


async def test_what_codex_always_sends_is_answered(cell: FakeCell, http: httpx.AsyncClient):
    tools = [
        {"type": "function", "name": "exec_command", "strict": False, "parameters": None},
        {"type": "namespace", "name": "multi_agent", "description": "sub-agents", "tools": []},
        {"type": "web_search", "external_web_access": False},
    ]
    body = {
        **ASKED,
        "stream": True,
        "store": False,
        "tools": tools,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "client_metadata": {"turn_id": "t"},
        "service_tier": "priority",
    }
    reply = await http.post(PATH, json=body)
    assert reply.headers["x-sax-tools-left-out"] == "web_search"
    said = events(reply)[-1]["response"]
    assert [tool["type"] for tool in said["tools"]] == ["function", "namespace"]
    assert said["reasoning"] == {"effort": None, "summary": "auto"}
    assert [tool.name for tool in cell.requests[-1].chat.tools] == ["exec_command"]


async def test_a_conversation_that_does_not_fit_is_cut_where_that_is_asked_for(
    cell: FakeCell, http: httpx.AsyncClient
):
    turns = [{"role": "user", "content": f"{n:0100}"} for n in range(8)]
    body = {**ASKED, "input": turns, "instructions": "s", "max_output_tokens": 3}
    whole = await http.post(PATH, json=body)
    assert whole.json()["truncation"] == "disabled"
    assert len(cell.requests[-1].prompt) == 9
    cut = await http.post(PATH, json={**body, "truncation": "auto"})
    assert (cut.json()["truncation"], cut.headers["x-sax-dropped-messages"]) == ("auto", "3")
    told = [turn.content for turn in cell.requests[-1].prompt if isinstance(turn, Message)]
    assert told == ["s", *(turn["content"] for turn in turns[3:])]


async def test_formats_become_constraints(cell: FakeCell, http: httpx.AsyncClient):
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    for format in (schema, {"type": "json_object"}, {"type": "text"}):
        await http.post(PATH, json={**ASKED, "text": {"format": format}})
    made = [(each.sampling.json_schema, each.sampling.json_object) for each in cell.requests]
    assert made == [('{"type": "object"}', False), ("", True), ("", False)]


async def test_a_conversation_goes_on_where_a_stored_response_ended(
    cell: FakeCell, keeping: httpx.AsyncClient
):
    first = await keeping.post(PATH, json={**ASKED, "instructions": "once"})
    assert first.json()["store"]
    body = {**ASKED, "input": "de", "previous_response_id": first.json()["id"], "stream": True}
    second = events(await keeping.post(PATH, json=body))[-1]["response"]
    begun = (Message("user", "abc"), Message("assistant", " 7 8 9 10 11"))
    assert cell.requests[-1].prompt == (*begun, Message("user", "de"))
    await keeping.post(PATH, json={**body, "previous_response_id": second["id"], "stream": False})
    assert len(cell.requests[-1].prompt) == 5


async def test_outputs_of_calls_answer_the_calls_of_a_stored_response(
    cell: FakeCell, keeping: httpx.AsyncClient
):
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "x"}
    first = (await keeping.post(PATH, json={**ASKED, "input": [call]})).json()["id"]
    body = {**ASKED, "input": [output], "previous_response_id": first}
    assert (await keeping.post(PATH, json=body)).status_code == 200
    prompt = cell.requests[-1].prompt
    assert isinstance(prompt, tuple)
    assert prompt[0] == Message("assistant", "", tool_calls=(ToolCall("c", "f"),))
    assert prompt[-1] == Message("tool", "x", name="f", tool_call_id="c")


async def test_items_of_stored_responses_are_named_by_their_ids(
    cell: FakeCell, keeping: httpx.AsyncClient
):
    asked = {"role": "user", "content": "abc"}
    first = (await keeping.post(PATH, json={**ASKED, "input": [asked]})).json()
    (said,) = first["output"]
    named = {"type": "item_reference", "id": said["id"]}
    more: list[dict[str, object]] = [asked, named, {"role": "user", "content": "de"}]
    second = (await keeping.post(PATH, json={**ASKED, "input": more})).json()
    begun = (Message("user", "abc"), Message("assistant", said["content"][0]["text"]))
    assert cell.requests[-1].prompt == (*begun, Message("user", "de"))
    # The newest response has the older items, too; a type may be left out.
    newest = {"id": second["output"][0]["id"]}
    await keeping.delete(f"{PATH}/{first['id']}")
    third = await keeping.post(PATH, json={**ASKED, "input": [*more, newest, asked]})
    assert third.status_code == 200
    assert len(cell.requests[-1].prompt) == 5
    again = {**ASKED, "input": [named], "previous_response_id": second["id"]}
    for body, status, word in (
        (again, 400, "already"),
        ({**ASKED, "input": [named]}, 404, "the item itself"),
        ({**ASKED, "input": [{"type": "item_reference", "id": "msg_1"}]}, 404, "the item itself"),
        ({**ASKED, "input": [{"type": "item_reference"}]}, 400, "id of an item"),
        ({**ASKED, "input": [{**named, "mood": 1}]}, 400, "mood"),
    ):
        reply = await keeping.post(PATH, json=body)
        assert (reply.status_code, word in reply.text) == (status, True), reply.text
        assert reply.json()["error"]["param"].startswith("input[0]")


async def test_a_stored_response_is_read_listed_and_deleted(keeping: httpx.AsyncClient):
    whole = (await keeping.post(PATH, json=ASKED)).json()
    place = f"{PATH}/{whole['id']}"
    assert (await keeping.get(place)).json() == whole
    items = (await keeping.get(f"{place}/input_items")).json()
    (item,) = items["data"]
    assert item["content"] == [{"type": "input_text", "text": "abc"}]
    assert item["id"] == items["first_id"]
    refused = await keeping.post(f"{place}/cancel")
    assert refused.status_code == 400
    assert "in the background" in refused.json()["error"]["message"]
    assert (await keeping.get(f"{place}?stream=true")).status_code == 400
    assert (await keeping.delete(place)).json() == {
        "id": whole["id"],
        "object": "response",
        "deleted": True,
    }
    assert (await keeping.get(place)).status_code == 404
    assert (await keeping.delete(place)).status_code == 404


async def test_what_shall_not_be_stored_is_not(keeping: httpx.AsyncClient):
    whole = (await keeping.post(PATH, json={**ASKED, "store": False})).json()
    assert not whole["store"]
    assert (await keeping.get(f"{PATH}/{whole['id']}")).status_code == 404


async def test_without_a_store_what_needs_one_names_the_flag(http: httpx.AsyncClient):
    for field, param in (
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
    ):
        reply = await http.post(PATH, json={**ASKED, **field})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == param
        assert "--files" in reply.json()["error"]["message"]
    assert (await http.get(f"{PATH}/resp_1")).status_code == 400


async def test_what_cannot_be_stored_is_not_acknowledged(connect: Connect):
    store = FaultyStore()
    http = connect(GatewayConfig(), store)
    store.fails = "before"
    assert (await http.post(PATH, json=ASKED)).status_code == 503
    last = events(await http.post(PATH, json={**ASKED, "stream": True}))[-1]
    assert last["type"] == "response.failed"
    assert "the store is on fire" in last["response"]["error"]["message"]


async def test_an_error_before_the_first_token_has_its_status(
    cell: FakeCell, http: httpx.AsyncClient
):
    cell.failure = QueueFull("full")
    for stream in (False, True):
        reply = await http.post(PATH, json={**ASKED, "stream": stream})
        assert reply.status_code == 429
        assert reply.json()["error"]["code"] == "rate_limit_exceeded"


async def test_a_stream_that_breaks_ends_with_a_failed_response(
    cell: FakeCell, http: httpx.AsyncClient
):
    cell.failure, cell.fail_at = ReplicaLost("gone"), 2
    last = events(await http.post(PATH, json={**ASKED, "stream": True}))[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": "server_error", "message": "gone"}


async def test_an_answer_without_an_end_is_none(cell: FakeCell, http: httpx.AsyncClient):
    cell.cut_short = True
    assert (await http.post(PATH, json=ASKED)).status_code == 503
    last = events(await http.post(PATH, json={**ASKED, "stream": True}))[-1]
    assert last["type"] == "response.failed"


@each_case(
    "field, param",
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "f"}] * 2}, "tools[1].name"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"include": ["reasoning.mood"]}, "include[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_tokens": 2}, "max_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"truncation": "most"}, "truncation"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"reasoning": {"effort": "most"}}, "reasoning.effort"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "nope": 1}}}, "text.format"),
        ({"text": {"format": "json"}}, "text.format"),
        ({"stream_options": {}}, None),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"input": []}, "input"),
        ({"input": [1]}, "input"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"nope": 1}, "nope"),
        ({"metadata": {"a": 1}}, "metadata.a"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(
    field: dict[str, Any], param: str | None, http: httpx.AsyncClient
):
    reply = await http.post(PATH, json={**ASKED, **field})
    if param is None:
        assert reply.status_code == 200
        return
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


SYSTEM = Message("system", "s" * 10)
CALL = Message("assistant", "c" * 10, tool_calls=(ToolCall("1", "f"), ToolCall("2", "f")))
RESULTS = (Message("tool", "r" * 10), Message("tool", "r" * 10))
LAST = Message("user", "l" * 10)
CONTEXT = 100


async def measure(messages: tuple[Message, ...]) -> tuple[int, int]:
    size = sum(each.characters for each in messages)
    if size > 10 * CONTEXT:
        raise PromptTooLong("too long")
    return size, CONTEXT


async def test_what_fits_stays_whole():
    messages = (SYSTEM, LAST, Message("assistant", "a" * 79))
    assert await fitted(messages, measure, 50) == messages


async def test_the_oldest_turns_are_dropped_and_the_answer_has_room():
    turns = [Message("user", f"{n:010}") for n in range(300)]
    kept = await fitted((SYSTEM, *turns, LAST), measure, None)
    assert kept == (SYSTEM, *turns[-6:], LAST)  # 80 tokens, and an eighth of the context
    kept = await fitted((SYSTEM, *turns, LAST), measure, 30)
    assert kept == (SYSTEM, *turns[-5:], LAST)


async def test_results_go_with_their_calls():
    begin = Message("user", "u" * 55)
    assert divided((SYSTEM, begin, CALL, *RESULTS, LAST)) == (
        [SYSTEM],
        [[begin], [CALL, *RESULTS], [LAST]],
    )
    assert await fitted((SYSTEM, begin, CALL, *RESULTS, LAST), measure, 1) == (
        (SYSTEM, CALL, *RESULTS, LAST)
    )
    assert await fitted((SYSTEM, begin, CALL, *RESULTS, LAST), measure, 50) == (
        (SYSTEM, CALL, *RESULTS, LAST)
    )
    long = Message("user", "l" * 60)
    assert await fitted((SYSTEM, CALL, *RESULTS, long), measure, 1) == (SYSTEM, long)


async def test_a_last_turn_that_fits_nowhere_stays_and_is_refused_by_the_model():
    long = Message("user", "l" * 5000)
    assert await fitted((SYSTEM, LAST, long), measure, 1) == (SYSTEM, long)
