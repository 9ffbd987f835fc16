"""Responses with the openai client: text, streams, tools, JSON, and conversations that are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from tests.end_to_end.cell import SMOLLM2, Cell
from tests.end_to_end.plain.conftest import CALLER
from tests.end_to_end.tool_template import WEATHER

TOOL: Any = {"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": True}
NAMED: Any = {"type": "function", "name": "get_weather"}


@pytest.fixture(scope="module")
def sdk(calling: Cell) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{calling.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_response_is_the_text_of_the_same_chat(sdk: openai.OpenAI) -> None:
    asked = "What is the capital of France?"
    response = sdk.responses.create(
        model=SMOLLM2, input=asked, temperature=0, max_output_tokens=24, instructions="Be brief."
    )
    chat = sdk.chat.completions.create(
        model=SMOLLM2,
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": asked},
        ],
        temperature=0,
        max_tokens=24,
    )
    assert response.output_text == chat.choices[0].message.content
    assert response.usage is not None
    assert chat.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == chat.usage.completion_tokens


def test_a_stream_adds_up_to_the_response(sdk: openai.OpenAI) -> None:
    fields: Any = {
        "model": SMOLLM2,
        "input": "Count to five.",
        "temperature": 0,
        "max_output_tokens": 16,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    }
    text, numbers = "", list[int]()
    last: Any = None
    with sdk.responses.stream(**fields) as stream:
        for event in stream:
            numbers.append(event.sequence_number)
            if event.type == "response.output_text.delta":
                text += event.delta
            last = event
    assert last is not None
    assert last.type in ("response.completed", "response.incomplete")
    assert numbers == [*range(len(numbers))]
    whole = sdk.responses.create(**fields)
    assert text == whole.output_text == last.response.output_text
    (part,) = whole.output[0].content  # type: ignore[union-attr]
    assert len(part.logprobs) == whole.usage.output_tokens  # type: ignore[union-attr]
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)  # type: ignore[union-attr]


def test_a_conversation_is_kept_and_goes_on(sdk: openai.OpenAI) -> None:
    settings: Any = {"model": SMOLLM2, "temperature": 0, "max_output_tokens": 16}
    first = sdk.responses.create(input="My name is Ada.", **settings)
    assert sdk.responses.retrieve(first.id).output_text == first.output_text
    second = sdk.responses.create(
        input="What is my name?", previous_response_id=first.id, **settings
    )
    said: Any = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "What is my name?"},
    ]
    assert sdk.responses.create(input=said, **settings).output_text == second.output_text
    assert len([*sdk.responses.input_items.list(second.id, limit=1)]) == 3
    sdk.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(first.id)
    third = sdk.responses.create(input="Why?", previous_response_id=second.id, **settings)
    assert third.usage is not None
    assert second.usage is not None
    assert third.usage.input_tokens > second.usage.total_tokens


def test_a_call_is_forced_streamed_and_answered(sdk: openai.OpenAI) -> None:
    fields: Any = {
        "model": CALLER,
        "input": "What is the weather in Oslo in the next 3 days?",
        "tools": [TOOL],
        "tool_choice": NAMED,
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_output_tokens": 120,
    }
    first = sdk.responses.create(**fields)
    (call,) = [item for item in first.output if item.type == "function_call"]
    jsonschema.validate(json.loads(call.arguments), WEATHER)
    arguments = ""
    with sdk.responses.create(**fields, stream=True) as stream:
        for event in stream:
            if event.type == "response.function_call_arguments.delta":
                arguments += event.delta
    assert arguments == call.arguments
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    last = sdk.responses.create(
        model=CALLER, input=[output], previous_response_id=first.id, max_output_tokens=8
    )
    assert last.status in ("completed", "incomplete")
    assert last.output


def test_an_answer_keeps_to_its_schema(sdk: openai.OpenAI) -> None:
    format: Any = {"type": "json_schema", "name": "weather", "schema": WEATHER, "strict": True}
    answer = sdk.responses.create(
        model=SMOLLM2,
        input="The weather in Oslo, as JSON.",
        text={"format": format},
        max_output_tokens=100,
        temperature=0,
    )
    jsonschema.validate(json.loads(answer.output_text), WEATHER)


def test_what_is_not_supported_is_refused_by_name(sdk: openai.OpenAI) -> None:
    for field, param in (
        ({"background": True, "store": False}, "store"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            sdk.responses.create(model=SMOLLM2, input="Hi", **field)  # type: ignore[call-overload]
        assert refused.value.param == param
