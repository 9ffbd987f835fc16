"""Ollama's bodies: each field is honoured, changes nothing, or is refused by name."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from http_gateway.ollama.bodies import CHAT, EMBED, GENERATE, SHOW
from http_gateway.ollama.schema import OllamaChat, OllamaEmbed, OllamaGenerate, OllamaShow
from sax.errors import InvalidRequest, SaxError, UnsupportedParameter
from sax.types import ChatOptions, Message, SamplingParams, Tool, ToolCall
from tests.each_case import each_case

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
DEFAULTS: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}


def chat(**fields: Any) -> OllamaChat:
    body = OllamaChat.model_validate_json(json.dumps({**BODY, **fields}))
    body.check()
    return body


def generate(**fields: Any) -> OllamaGenerate:
    body = OllamaGenerate.model_validate_json(json.dumps({"model": "m", "prompt": "Hi", **fields}))
    body.check()
    return body


def is_described(fields: dict[str, Any]) -> bool:
    return jsonschema.Draft202012Validator(CHAT.schema()).is_valid({**BODY, **fields})


def test_the_defaults_are_ollamas() -> None:
    assert chat().sampling() == SamplingParams(**DEFAULTS)
    assert chat().streamed
    assert not chat(stream=False).streamed
    assert chat().chat == ChatOptions(divided=True)


def test_options_are_sampling_fields() -> None:
    options = {
        "temperature": 0,
        "top_k": 5.0,
        "top_p": 0.5,
        "min_p": 0.1,
        "typical_p": 0.9,
        "seed": 7,
        "num_predict": 9,
        "stop": ["a", "b"],
        "repeat_penalty": 1.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
    }
    assert chat(options=options).sampling() == SamplingParams(
        temperature=0,
        top_k=5,
        top_p=0.5,
        min_p=0.1,
        typical_p=0.9,
        seed=7,
        max_tokens=9,
        stop=("a", "b"),
        repetition_penalty=1.1,
        presence_penalty=0.1,
        frequency_penalty=0.2,
    )
    assert is_described({"options": options})


@each_case(
    "options",
    [
        {"seed": -1, "num_predict": -1},
        {"num_predict": -2},
        {"num_predict": 0},
        {"num_ctx": 4096, "num_gpu": -1, "num_thread": 8, "num_keep": 4, "num_batch": 512},
        {"use_mmap": True, "use_mlock": False, "low_vram": False, "numa": False},
        {"mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "tfs_z": 1.0},
        {"repeat_last_n": 64, "penalize_newline": True},
        {"temperature": None, "num_ctx": None},
    ],
)
def test_options_that_mean_nothing_here_pass(options: dict[str, Any]) -> None:
    assert chat(options=options).sampling() == SamplingParams(**DEFAULTS)
    assert is_described({"options": options})


@each_case("fields, param", [
    ({"options": {"mirostat": 2}}, "options.mirostat"),
    ({"options": {"repeat_last_n": 5}}, "options.repeat_last_n"),
    ({"options": {"penalize_newline": False}}, "options.penalize_newline"),
    ({"options": {"logits_all": True}}, "options.logits_all"),
    ({"tools": [{**TOOL, "type": "web"}]}, "tools[0].type"),
])  # fmt: skip
def test_what_is_not_supported_is_refused_by_its_path(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert not is_described(fields)


@each_case("fields, param", [
    ({"options": {"temperature": -1}}, "options.temperature"),
    ({"options": {"temperature": "hot"}}, "options.temperature"),
    ({"options": {"num_predict": -3}}, "options.num_predict"),
    ({"options": {"num_ctx": "large"}}, "options.num_ctx"),
    ({"options": {"use_mmap": 1}}, "options.use_mmap"),
    ({"options": {"num_gpu": True}}, "options.num_gpu"),
    ({"options": {"stop": [""]}}, "options.stop"),
    ({"keep_alive": 0}, "keep_alive"),
    ({"keep_alive": "0s"}, "keep_alive"),
    ({"keep_alive": "soon"}, "keep_alive"),
    ({"format": "xml"}, "format"),
    ({"think": "hard"}, "think"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": "x", "thinking": "y"}]},
     "messages[0].thinking"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]},
     "messages[0].tool_calls[0].function"),
])  # fmt: skip
def test_what_is_wrong_is_refused_by_its_path(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert not is_described(fields)


@each_case("keep", ["5m", "1h30m", "-1", "-1m", 300, -1, 0.5, "90", None])
def test_a_model_may_be_kept_for_any_time(keep: object) -> None:
    chat(keep_alive=keep)
    assert is_described({"keep_alive": keep})


def test_messages_and_tools_reach_the_template() -> None:
    call = {"function": {"name": "f", "arguments": {"a": 1}, "index": 0}}
    turns = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "1?", "images": []},
        {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_name": "f", "tool_call_id": "c"},
    ]
    body = chat(messages=turns, tools=[TOOL])
    assert body.prompt == (
        Message("system", "Be kind."),
        Message("user", "1?"),
        Message("assistant", "", tool_calls=(ToolCall("", "f", '{"a": 1}'),), reasoning="Hm."),
        Message("tool", "3", "f", "c"),
    )
    assert body.chat.tools == (Tool("f", "d", json.dumps(SCHEMA)),)
    assert body.shape().tools == ("f",)
    assert is_described({"messages": turns, "tools": [TOOL]})


def test_a_last_message_of_the_assistant_is_continued() -> None:
    begun = [*BODY["messages"], {"role": "assistant", "content": "So"}]
    options = chat(messages=begun).chat
    assert (options.continue_final_message, options.add_generation_prompt) == (True, False)


def test_thinking_is_a_variable_of_the_template() -> None:
    def variables(think: object) -> object:
        return json.loads(chat(think=think).chat.chat_template_kwargs or "null")

    assert variables(True) == {"enable_thinking": True}
    assert variables(False) == {"reasoning_effort": "none"}
    assert variables("high") == {"reasoning_effort": "high"}
    assert variables(None) is None
    assert not chat(think=False).shape().include_reasoning


def test_a_format_is_a_constraint() -> None:
    assert json.loads(chat(format=SCHEMA).sampling().json_schema) == SCHEMA
    assert chat(format="json").sampling().json_object
    assert chat(format="").sampling() == chat().sampling()


def test_a_prompt_is_a_chat_unless_it_is_raw() -> None:
    assert generate(system="Be kind.").text == (
        Message("system", "Be kind."),
        Message("user", "Hi"),
    )
    assert generate(raw=True).text == "Hi"
    assert generate(prompt="").text == ""
    for fields in ({"raw": True, "system": "x"}, {"raw": True, "think": True}):
        with pytest.raises(InvalidRequest):
            generate(**fields)
        schema = jsonschema.Draft202012Validator(GENERATE.schema())
        assert not schema.is_valid({"model": "m", "prompt": "Hi", **fields})


@each_case("name", ["template", "context", "width"])
def test_parts_of_other_servers_prompts_are_refused(name: str) -> None:
    value = [1] if name == "context" else 5 if name == "width" else "x"
    with pytest.raises(UnsupportedParameter) as caught:
        generate(**{name: value})
    assert caught.value.param == name


def test_a_text_behind_the_answer_makes_the_prompt_bare() -> None:
    body = generate(suffix="}", raw=None)
    assert (body.text, body.reply().suffix) == ("Hi", "}")
    assert generate(suffix="").reply().suffix is None
    for fields in ({"system": "s"}, {"think": True}):
        with pytest.raises(InvalidRequest):
            generate(suffix="}", **fields)
        schema = jsonschema.Draft202012Validator(GENERATE.schema())
        assert not schema.is_valid({"model": "m", "prompt": "Hi", "suffix": "}", **fields})


def test_texts_to_embed_are_one_or_many() -> None:
    def read(value: object) -> list[str]:
        body = OllamaEmbed.model_validate({"model": "m", "input": value, "truncate": True})
        body.check()
        return body.input

    assert read("a") == ["a"]
    assert read(["a", "b"]) == ["a", "b"]
    with pytest.raises(ValidationError):
        read([1])
    assert not jsonschema.Draft202012Validator(EMBED.schema()).is_valid(
        {"model": "m", "input": [1]}
    )


def test_a_model_is_shown_by_either_name() -> None:
    assert OllamaShow.model_validate({"model": "m"}).asked == "m"
    assert OllamaShow.model_validate({"name": "m"}).asked == "m"
    schema = jsonschema.Draft202012Validator(SHOW.schema())
    for wrong in ({}, {"model": "m", "system": "x"}):
        assert not schema.is_valid(wrong)
        with pytest.raises(SaxError):
            OllamaShow.model_validate(wrong).asked  # noqa: B018
