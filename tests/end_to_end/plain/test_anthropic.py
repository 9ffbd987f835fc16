"""Anthropic's messages with its own client: text, tools, counts and errors of the demo model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import jsonschema
import pytest

from tests.end_to_end.cell import SMOLLM2, Cell
from tests.end_to_end.plain.conftest import CALLER
from tests.end_to_end.tool_template import ASKED, WEATHER

TOOLS: Any = [
    {"name": "get_weather", "description": "Tells the weather.", "input_schema": WEATHER},
    {"name": "get_time", "input_schema": {"type": "object", "properties": {}}},
]
NAMED: Any = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}


@pytest.fixture(scope="module")
def sdk(calling: Cell) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=calling.url, api_key="none", max_retries=0) as client:
        yield client


def fields(**more: Any) -> dict[str, Any]:
    greedy = {"temperature": 0, **more.pop("extra_body", {})}
    return {"model": CALLER, "messages": ASKED, "max_tokens": 120, "extra_body": greedy, **more}


def ask(sdk: anthropic.Anthropic, **more: Any) -> Any:
    return sdk.messages.create(**fields(**more))


def test_a_stream_adds_up_to_the_whole_reply(sdk: anthropic.Anthropic) -> None:
    short = {"system": "Be brief.", "max_tokens": 16, "model": "smollm2"}
    whole = ask(sdk, **short)
    assert whole.content[0].text
    assert whole.model == "smollm2"
    assert whole.stop_reason == "max_tokens"
    assert whole.usage.output_tokens == 16
    with sdk.messages.stream(**fields(**short)) as stream:
        text = "".join(stream.text_stream)
        last: Any = stream.get_final_message()
    assert text == whole.content[0].text == last.content[0].text
    assert last.usage.output_tokens == 16
    read = last.usage.input_tokens + last.usage.cache_read_input_tokens
    assert read == whole.usage.input_tokens + whole.usage.cache_read_input_tokens


def test_a_stop_sequence_is_named(sdk: anthropic.Anthropic) -> None:
    asked = [
        {"role": "user", "content": "Count: 1, 2, 3"},
        {"role": "assistant", "content": "1, 2,"},
    ]
    reply = ask(sdk, model=SMOLLM2, messages=asked, stop_sequences=[","])
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", ",")
    assert "," not in reply.content[0].text


def test_the_beginning_of_an_answer_is_continued(sdk: anthropic.Anthropic) -> None:
    begun = [*ASKED, {"role": "assistant", "content": "The capital of France is"}]
    assert ask(sdk, messages=begun, max_tokens=4).content[0].text.startswith(" Paris")


def test_a_tool_is_called_and_the_conversation_goes_on(sdk: anthropic.Anthropic) -> None:
    called = ask(sdk, tools=TOOLS, tool_choice=NAMED)
    (call,) = called.content
    assert (call.type, call.name, called.stop_reason) == ("tool_use", "get_weather", "tool_use")
    jsonschema.validate(call.input, WEATHER)
    turns = [
        *ASKED,
        {"role": "assistant", "content": called.content},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny, 20 C"}],
        },
    ]
    reply = ask(sdk, messages=turns, tools=TOOLS, tool_choice={"type": "none"}, max_tokens=16)
    assert reply.content[0].text


def test_a_streamed_call_adds_up_to_the_same(sdk: anthropic.Anthropic) -> None:
    whole = ask(sdk, tools=TOOLS, tool_choice=NAMED)
    with sdk.messages.stream(**fields(tools=TOOLS, tool_choice=NAMED)) as stream:
        kinds = [event.type for event in stream]
        last: Any = stream.get_final_message()
    assert last.content[0].input == whole.content[0].input
    assert last.stop_reason == "tool_use"
    assert kinds.count("input_json") > 3


def test_any_tool_may_be_called(sdk: anthropic.Anthropic) -> None:
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    (call,) = ask(sdk, tools=TOOLS, tool_choice=choice).content
    assert call.name in ("get_weather", "get_time")


def test_thinking_comes_in_blocks_of_its_own(sdk: anthropic.Anthropic) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 4}
    reply = ask(sdk, thinking=thinking, max_tokens=8)
    assert [block.type for block in reply.content] == ["thinking"]
    with sdk.messages.stream(**fields(thinking=thinking, max_tokens=8)) as stream:
        last: Any = stream.get_final_message()
    assert last.content[0].thinking == reply.content[0].thinking


def test_tokens_are_counted_as_the_model_reads_them(sdk: anthropic.Anthropic) -> None:
    count: Any = {"model": CALLER, "messages": ASKED, "tools": TOOLS, "system": "Be brief."}
    counted = sdk.messages.count_tokens(**count).input_tokens
    usage = ask(sdk, tools=TOOLS, system="Be brief.", max_tokens=1).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_an_answer_keeps_to_a_schema(sdk: anthropic.Anthropic) -> None:
    output: Any = {"format": {"type": "json_schema", "schema": WEATHER}}
    reply = ask(sdk, model=SMOLLM2, output_config=output)
    jsonschema.validate(json.loads(reply.content[0].text), WEATHER)


def test_errors_are_those_that_the_client_knows(sdk: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="nothing"):
        ask(sdk, model="nothing-of-the-kind")
    image = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    with pytest.raises(
        anthropic.BadRequestError, match=r"messages\[0\].content\[0\] cannot be fetched"
    ):
        ask(sdk, messages=[{"role": "user", "content": [image]}])
    with pytest.raises(anthropic.BadRequestError, match="thinking") as refused:
        ask(sdk, model=SMOLLM2, thinking={"type": "sometimes"})
    assert refused.value.request_id
