"""Anthropic's body: each field is honoured, changes nothing, or is refused by name."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from http_gateway.anthropic.bodies import COUNT, MESSAGE
from http_gateway.anthropic.schema import CountRequest, MessageRequest
from sax.errors import InvalidRequest, SaxError, UnsupportedParameter
from sax.types import ChatOptions, Message, SamplingParams, Tool
from tests.each_case import each_case

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "get_weather", "description": "Tells it.", "input_schema": SCHEMA}
BODY: dict[str, Any] = {
    "model": "m",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Hi"}],
}
SERVER = {"type": "url", "url": "https://mcp.example.com/mcp", "name": "a"}
TOOLSET = {"type": "mcp_toolset", "mcp_server_name": "a"}
ENABLED = {"type": "enabled", "budget_tokens": 50}


def message(**fields: Any) -> MessageRequest:
    body = MessageRequest.model_validate_json(json.dumps({**BODY, **fields}))
    body.check()
    return body


def test_only_model_messages_and_max_tokens_are_required() -> None:
    body = message()
    assert body.sampling() == SamplingParams(max_tokens=100)
    assert body.options == ChatOptions(divided=True)
    for name in BODY:
        with pytest.raises(ValidationError, match=name):
            MessageRequest.model_validate({each: BODY[each] for each in BODY if each != name})


def test_sampling_fields_are_honoured() -> None:
    body = message(temperature=0.5, top_p=0.9, top_k=40, stop_sequences=["a", "b"])
    assert body.sampling() == SamplingParams(
        temperature=0.5, top_p=0.9, top_k=40, stop=("a", "b"), max_tokens=100
    )
    kept = message(output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    assert json.loads(kept.sampling().json_schema) == SCHEMA


def test_the_system_prompt_comes_first() -> None:
    assert message(system="Be kind.").prompt == (
        Message("system", "Be kind."),
        Message("user", "Hi"),
    )


def test_tools_and_their_choice_are_read() -> None:
    choice = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    body = message(tools=[{**WEATHER, "type": "custom", "strict": True}], tool_choice=choice)
    assert body.options == ChatOptions(
        tools=(Tool("get_weather", "Tells it.", json.dumps(SCHEMA), True),),
        tool_choice="function",
        tool_name="get_weather",
        parallel_tool_calls=False,
        divided=True,
    )
    assert body.shape().tools == ("get_weather",)
    kinds = {"auto": "auto", "any": "required", "none": "none"}
    for kind, ours in kinds.items():
        assert message(tools=[WEATHER], tool_choice={"type": kind}).options.tool_choice == ours
    assert message(tools=[WEATHER], tool_choice={"type": "none"}).shape().tools == ()


def test_thinking_is_a_variable_of_the_template() -> None:
    def variables(**fields: Any) -> object:
        return json.loads(message(**fields).options.chat_template_kwargs or "null")

    assert variables(thinking=ENABLED) == {"enable_thinking": True}
    assert variables(thinking={"type": "disabled"}) == {"reasoning_effort": "none"}
    assert variables(thinking={"type": "adaptive"}) is None
    effort = {"thinking": ENABLED, "output_config": {"effort": "high"}}
    assert variables(**effort) == {"enable_thinking": True, "reasoning_effort": "high"}
    quiet = {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}
    assert variables(**quiet) == {"reasoning_effort": "none"}
    assert message(thinking=ENABLED).sampling().max_thinking_tokens == 50
    assert message().shape().include_reasoning
    assert not message(thinking={"type": "disabled"}).shape().include_reasoning


def test_a_last_message_of_the_assistant_is_continued() -> None:
    begun = [*BODY["messages"], {"role": "assistant", "content": "The answer is"}]
    options = message(messages=begun).options
    assert (options.continue_final_message, options.add_generation_prompt) == (True, False)


def test_deferred_tools_are_shown_once_a_result_refers_to_them() -> None:
    def names(*messages: dict[str, Any]) -> list[str]:
        tools = [{**WEATHER, "name": each, "defer_loading": each > "b"} for each in "dacb"]
        return [each.name for each in message(messages=[*messages], tools=tools).options.tools]

    call = {"type": "tool_use", "id": "1", "name": "a", "input": {}}
    found = [{"type": "tool_reference", "tool_name": each} for each in "dad"]
    result = {"type": "tool_result", "tool_use_id": "1", "content": found}
    called = {"role": "assistant", "content": [call]}
    assert names(*BODY["messages"]) == ["a", "b"]
    answered = {"role": "user", "content": [result]}
    assert names(*BODY["messages"], called, answered) == ["a", "b", "d"]
    found.append({"type": "tool_reference", "tool_name": "e"})
    with pytest.raises(InvalidRequest, match="'e', which is none of the tools"):
        names(*BODY["messages"], called, answered)


def test_examples_of_inputs_are_told_in_the_description() -> None:
    (tool,) = message(tools=[{**WEATHER, "input_examples": [{"city": "Oslo"}]}]).options.tools
    assert tool.description == 'Tells it.\n\nExamples of its input:\n{"city": "Oslo"}'


@pytest.mark.extended
@each_case(
    "fields",
    [
        {"metadata": {"user_id": "u"}},
        {"metadata": {}},
        {"service_tier": "auto"},
        {"speed": "standard"},
        {"container": None},
        {"cache_control": {"type": "ephemeral"}},
        {"stream": False},
        {"top_k": 0},
        {"tools": []},
        {"stop_sequences": []},
        {"tools": [{**WEATHER, "eager_input_streaming": True, "input_examples": []}]},
        {"tools": [{**WEATHER, "name": f"f{n}"} for n in range(512)]},
        {"tools": [{**WEATHER, "name": "m" * 128}]},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"context_management": {"edits": []}},
        {"thinking": {"type": "adaptive", "display": "summarized"}},
        {"thinking": {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}}},
        {"thread": {"type": "create"}},
        {"betas": ["effort-2025-11-24"], "anthropic_version": "2023-06-01"},
        {"fallbacks": "default", "diagnostics": {"previous_message_id": None}},
        {"cache_control": {"type": "ephemeral", "scope": "global"}},
        {"speed": "fast", "inference_geo": "global"},
    ],
)
def test_what_changes_nothing_passes(fields: dict[str, Any]) -> None:
    plain = message()
    body = message(**fields)
    assert (body.sampling(), body.prompt) == (plain.sampling(), plain.prompt)
    jsonschema.validate({**BODY, **fields}, MESSAGE.schema())


@each_case("fields, param", [
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "required"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}},
     "tool_choice.disable_parallel_tool_use"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [{**WEATHER, "name": "a b"}]}, "tools[0].name"),
    ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
    ({"tools": [{**WEATHER, "strict": 1}]}, "tools[0].strict"),
    ({"thinking": {"type": "on"}}, "thinking.type"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "disabled", "budget_tokens": 9}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "adaptive", "display": "all"}}, "thinking.display"),
    ({"thinking": {"type": "adaptive", "block_binding": {"mood": 1}}}, "thinking.block_binding"),
    ({"tools": [{**WEATHER, "defer_loading": 1}]}, "tools[0].defer_loading"),
    ({"tools": [{**WEATHER, "input_examples": [1]}]}, "tools[0].input_examples[0]"),
    ({"context_management": {"edits": {}}}, "context_management.edits"),
    ({"mcp_servers": [SERVER, SERVER]}, "mcp_servers[1].name"),
    ({"mcp_servers": [{**SERVER, "name": "a b"}]}, "mcp_servers[0].name"),
    ({"mcp_servers": [{**SERVER, "authorization_token": "a\n"}]},
     "mcp_servers[0].authorization_token"),
    ({"mcp_servers": [{**SERVER, "tool_configuration": {"allowed_tools": [1]}}]},
     "mcp_servers[0].tool_configuration.allowed_tools"),
    ({"mcp_servers": [{**SERVER, "tool_configuration": {}}], "tools": [TOOLSET]},
     "mcp_servers[0].tool_configuration"),
    ({"tools": [TOOLSET]}, "tools[0].mcp_server_name"),
    ({"mcp_servers": [SERVER], "tools": [TOOLSET, TOOLSET]}, "tools[1].mcp_server_name"),
    ({"mcp_servers": [SERVER, {**SERVER, "name": "b"}], "tools": [TOOLSET]}, "mcp_servers[1]"),
    ({"mcp_servers": [SERVER], "tools": [{**TOOLSET, "default_config": {"enabled": 1}}]},
     "tools[0].default_config.enabled"),
    ({"mcp_servers": [SERVER], "tools": [{**TOOLSET, "tools": [1]}]}, "tools[0].tools[0]"),
    ({"thread": {"type": "mine"}}, "thread"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    ({"output_config": {"effort": "most"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"temperature": 1.5}, "temperature"),
    ({"top_p": -1}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"cache_control": {"type": "ephemeral", "ttl": "9h"}}, "cache_control"),
])  # fmt: skip
def test_what_is_wrong_is_refused_by_its_path(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        message(**fields)
    assert caught.value.param == param


@each_case(
    "fields, param",
    [
        ({"mood": 1}, "mood"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"type": "stdio", "name": "a", "url": "x"}]}, "mcp_servers[0]"),
        ({"mcp_servers": [{**SERVER, "mood": 1}]}, "mcp_servers[0].mood"),
        ({"mcp_servers": [SERVER], "tools": [{**TOOLSET, "mood": 1}]}, "tools[0].mood"),
        (
            {"mcp_servers": [SERVER], "tools": [{**TOOLSET, "configs": {"f": {"mood": 1}}}]},
            "tools[0].configs.f.mood",
        ),
        ({"service_tier": "priority"}, "service_tier"),
        ({"metadata": {"mood": "x"}}, "metadata.mood"),
        ({"thinking": {**ENABLED, "mood": 1}}, "thinking.mood"),
        ({"inference_geo": "us"}, "inference_geo"),
        ({"compaction": {"type": "summarize"}}, "compaction"),
        ({"context_management": {"mood": 1}}, "context_management.mood"),
        (
            {"context_management": {"edits": [{"type": "forget"}]}},
            "context_management.edits[0].type",
        ),
        ({"output_config": {"task_budget": 1}}, "output_config.task_budget"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{**WEATHER, "mood": 1}]}, "tools[0].mood"),
        ({"tools": [WEATHER], "tool_choice": {"type": "auto", "name": "f"}}, "tool_choice.name"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_path(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        message(**fields)
    assert caught.value.param == param
    assert not jsonschema.Draft202012Validator(MESSAGE.schema()).is_valid({**BODY, **fields})


@each_case("name", ["max_tokens", "temperature", "stream", "metadata", "stop"])
def test_a_count_has_no_fields_of_an_answer(name: str) -> None:
    body = {"model": "m", "messages": BODY["messages"], name: 1}
    with pytest.raises(SaxError) as caught:
        CountRequest.model_validate_json(json.dumps(body)).check()
    assert caught.value.param == name
    assert not jsonschema.Draft202012Validator(COUNT.schema()).is_valid(body)
