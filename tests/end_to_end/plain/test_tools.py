"""Tools with the openai client: the demo model, with a template that has them, is made to call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from tests.end_to_end.cell import SMOLLM2, Cell
from tests.end_to_end.plain.conftest import CALLER
from tests.end_to_end.tool_template import ASKED, TOOLS, WEATHER

NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module")
def sdk(calling: Cell) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{calling.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(sdk: openai.OpenAI, **fields: Any) -> Any:
    body = {"model": CALLER, "messages": ASKED, "temperature": 0, "max_tokens": 120, **fields}
    return sdk.chat.completions.create(**body)


def calls_of(answer: Any) -> list[tuple[str, Any]]:
    calls = answer.choices[0].message.tool_calls or []
    return [(each.function.name, json.loads(each.function.arguments)) for each in calls]


def test_a_named_call_has_arguments_that_keep_to_the_schema(sdk: openai.OpenAI) -> None:
    answer = ask(sdk, tools=TOOLS, tool_choice=NAMED, parallel_tool_calls=False)
    ((name, arguments),) = calls_of(answer)
    assert name == "get_weather"
    jsonschema.validate(arguments, WEATHER)
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content is None


def test_a_required_call_is_one_of_the_tools(sdk: openai.OpenAI) -> None:
    answer = ask(sdk, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    ((name, _),) = calls_of(answer)
    assert name in ("get_weather", "get_time")


def test_a_stream_of_a_call_adds_up_to_the_same(sdk: openai.OpenAI) -> None:
    fields = {"tools": TOOLS, "tool_choice": NAMED, "parallel_tool_calls": False}
    ((_, arguments),) = calls_of(ask(sdk, **fields))
    deltas = [
        delta
        for chunk in ask(sdk, **fields, stream=True)
        for delta in chunk.choices[0].delta.tool_calls or []
    ]
    assert deltas[0].function.name == "get_weather"
    assert deltas[0].id.startswith("call_")
    assert json.loads("".join(each.function.arguments or "" for each in deltas)) == arguments
    assert len(deltas) > 3


def test_a_conversation_goes_on_with_the_result_of_a_call(sdk: openai.OpenAI) -> None:
    called = ask(sdk, tools=TOOLS, tool_choice=NAMED, parallel_tool_calls=False)
    message = called.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny, 20 C"}
    turns = [*ASKED, message.model_dump(exclude_none=True), result]
    answer = ask(sdk, messages=turns, tools=TOOLS, tool_choice="none", max_tokens=16)
    assert answer.choices[0].message.content
    assert answer.usage.prompt_tokens > called.usage.prompt_tokens


def test_reasoning_ends_at_its_budget_and_the_answer_goes_on_also_under_a_schema(
    sdk: openai.OpenAI,
) -> None:
    kwargs = {"chat_template_kwargs": {"enable_thinking": True}, "max_thinking_tokens": 6}
    schema = {"type": "array", "items": {"enum": [1]}, "minItems": 2, "maxItems": 2}
    form = {"name": "ones", "schema": {**schema, "uniqueItems": True}}
    plain = ask(sdk, max_tokens=24, extra_body=kwargs)
    forms: Any = {"response_format": {"type": "json_schema", "json_schema": form}}
    answer = ask(sdk, max_tokens=60, extra_body=kwargs, **forms)
    for each in (plain, answer):
        message, usage = each.choices[0].message, each.usage
        assert message.content
        # The pieces of the mark, which is no token of this model, are counted but the last.
        assert 6 <= usage.completion_tokens_details.reasoning_tokens <= 10
    assert plain.choices[0].message.reasoning == answer.choices[0].message.reasoning
    assert json.loads(answer.choices[0].message.content) == [1, 1]
    assert answer.choices[0].schema_violation == "$: [1, 1] has non-unique elements"


def test_a_call_says_how_its_arguments_break_what_no_grammar_holds(sdk: openai.OpenAI) -> None:
    ones = {"type": "array", "items": {"enum": [1]}, "minItems": 2, "maxItems": 2}
    parameters = {
        "type": "object",
        "properties": {"a": {**ones, "uniqueItems": True}},
        "required": ["a"],
        "additionalProperties": False,
    }
    tool: Any = {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}
    answer = ask(sdk, tools=[tool], tool_choice=NAMED)
    assert calls_of(answer) == [("get_weather", {"a": [1, 1]})]
    assert answer.choices[0].finish_reason == "tool_calls"
    why = "arguments of call 0 (get_weather): $.a: [1, 1] has non-unique elements"
    assert answer.choices[0].schema_violation == why


def test_a_template_that_opens_the_reasoning_gives_reasoning(sdk: openai.OpenAI) -> None:
    kwargs = {"chat_template_kwargs": {"enable_thinking": True}}
    answer = ask(sdk, max_tokens=8, extra_body=kwargs)
    assert answer.choices[0].message.reasoning_content
    assert not answer.choices[0].message.content
    fields = {"tools": TOOLS, "tool_choice": NAMED, "parallel_tool_calls": False}
    hidden = ask(sdk, **fields, extra_body={"include_reasoning": False})
    assert calls_of(hidden)


def test_a_last_message_is_continued(sdk: openai.OpenAI) -> None:
    begun = [*ASKED, {"role": "assistant", "content": "The capital of France is"}]
    extra = {"continue_final_message": True, "add_generation_prompt": False}
    answer = ask(sdk, messages=begun, max_tokens=4, extra_body=extra)
    assert answer.choices[0].message.content.startswith(" Paris")


def test_what_a_model_does_not_take_is_refused_by_name(sdk: openai.OpenAI) -> None:
    mood = {"extra_body": {"chat_template_kwargs": {"mood": 1}}}
    forced = {"tools": TOOLS, "tool_choice": NAMED, "extra_body": {"ignore_eos": True}}
    told: list[str | None] = []
    for fields in (
        mood,
        forced,
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            ask(sdk, **fields)
        told.append(refused.value.param)
    assert told == ["chat_template_kwargs.mood", "ignore_eos"]


def test_a_model_whose_template_has_no_tools_answers_when_none_may_be_called(
    sdk: openai.OpenAI,
) -> None:
    answer = ask(sdk, model=SMOLLM2, tools=TOOLS, tool_choice="none", max_tokens=4)
    assert answer.choices[0].message.content


def test_a_model_whose_template_has_no_tools_calls_them_in_saxs_own_form(
    sdk: openai.OpenAI,
) -> None:
    fields = {"tools": TOOLS, "tool_choice": NAMED, "parallel_tool_calls": False}
    raw = sdk.chat.completions.with_raw_response.create(
        model=SMOLLM2, messages=ASKED, temperature=0, max_tokens=120, **fields
    )
    assert raw.headers["x-sax-tools"] == "generic"
    ((name, arguments),) = calls_of(raw.parse())
    assert name == "get_weather"
    jsonschema.validate(arguments, WEATHER)
    message = raw.parse().choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny, 20 C"}
    turns = [*ASKED, message.model_dump(exclude_none=True), result]
    answer = sdk.chat.completions.create(
        model=SMOLLM2, messages=turns, tools=TOOLS, temperature=0, max_tokens=16
    )
    assert answer.choices[0].message.content
