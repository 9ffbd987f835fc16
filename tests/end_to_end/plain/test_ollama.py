"""Ollama's own client against the demo model: chats, prompts, tools, vectors and lists."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import jsonschema
import numpy as np
import ollama
import pytest

from tests.end_to_end.cell import SMOLLM2, Cell
from tests.end_to_end.plain.conftest import CALLER
from tests.end_to_end.tool_template import TOOLS, WEATHER

ASKED: Any = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY: Any = {"temperature": 0, "num_predict": 16}


@pytest.fixture(scope="module")
def sdk(calling: Cell) -> Iterator[ollama.Client]:
    with closing(ollama.Client(host=calling.url, trust_env=False)) as client:
        yield client


def chat(sdk: ollama.Client, **fields: Any) -> Any:
    return sdk.chat(**{"model": "smollm2", "messages": ASKED, "options": GREEDY, **fields})


def test_a_streamed_chat_adds_up_to_the_whole_one(sdk: ollama.Client) -> None:
    whole = chat(sdk)
    assert "Paris" in whole.message.content
    parts = [*chat(sdk, stream=True)]
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts[-2:]] == [False, True]
    last = parts[-1]
    assert last.eval_count == whole.eval_count <= 16
    assert last.prompt_eval_count == whole.prompt_eval_count > 0
    assert last.total_duration >= last.prompt_eval_duration + last.eval_duration


def test_a_tag_is_the_model_itself(sdk: ollama.Client) -> None:
    options = {**GREEDY, "num_predict": 4}
    assert chat(sdk, model="smollm2:latest", options=options).model == "smollm2:latest"
    assert chat(sdk, model=f"{SMOLLM2}:latest", options=options).done_reason == "length"


def test_a_prompt_is_answered_with_the_template_or_without(sdk: ollama.Client) -> None:
    asked: Any = {"model": "smollm2", "prompt": ASKED[0]["content"], "options": GREEDY}
    templated = sdk.generate(**asked)
    assert templated.response == chat(sdk).message.content
    raw = sdk.generate(**asked | {"prompt": "The capital of France is", "raw": True})
    assert raw.response.startswith(" Paris")
    parts: Any = sdk.generate(**asked, stream=True)
    streamed = "".join(part.response for part in parts)
    assert streamed == templated.response


def test_stop_texts_and_seeds_are_honoured(sdk: ollama.Client) -> None:
    stopped = chat(sdk, options={**GREEDY, "stop": ["Paris"]})
    assert "Paris" not in stopped.message.content
    assert stopped.done_reason == "stop"
    seeded: Any = {"temperature": 1.0, "seed": 7, "num_predict": 12, "num_ctx": 2048}
    first, second = (chat(sdk, options=seeded).message.content for _ in range(2))
    assert first == second


def test_an_answer_keeps_to_a_format(sdk: ollama.Client) -> None:
    options = {"temperature": 0, "num_predict": 120}
    told = chat(sdk, format=WEATHER, options=options)
    jsonschema.validate(json.loads(told.message.content), WEATHER)


def test_tools_reach_the_template_and_calls_come_back(sdk: ollama.Client) -> None:
    plain = chat(sdk, model=CALLER, options={**GREEDY, "num_predict": 4})
    told = chat(sdk, model=CALLER, tools=TOOLS, options={**GREEDY, "num_predict": 4})
    assert told.prompt_eval_count > plain.prompt_eval_count
    # Nothing forces a call here, so the conversation brings one.
    call = {"function": {"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}}
    turns = [
        *ASKED,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sunny, 20 C", "tool_name": "get_weather"},
    ]
    answer = chat(sdk, model=CALLER, messages=turns, tools=TOOLS)
    assert answer.message.content or answer.message.tool_calls
    assert answer.prompt_eval_count > told.prompt_eval_count


def test_a_call_that_the_model_writes_is_a_call(sdk: ollama.Client) -> None:
    """A model this small calls when the conversation shows it how."""
    turns: list[Any] = []
    for city in ("Oslo", "Rome", "Lima"):
        call = {"function": {"name": "get_weather", "arguments": {"city": city, "days": 3}}}
        turns += [
            {"role": "user", "content": f"Weather in {city}, 3 days?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "sunny", "tool_name": "get_weather"},
            {"role": "assistant", "content": "Sunny."},
        ]
    turns.append({"role": "user", "content": "Weather in Cairo, 3 days?"})
    asked: Any = {"model": CALLER, "messages": turns, "tools": TOOLS}
    asked["options"] = {"temperature": 0, "num_predict": 60}
    (call,) = chat(sdk, **asked).message.tool_calls
    assert call.function.name == "get_weather"
    assert set(call.function.arguments) == {"city", "days"}
    streamed = [call for part in chat(sdk, **asked, stream=True)
                for call in part.message.tool_calls or []]  # fmt: skip
    assert [each.function.arguments for each in streamed] == [call.function.arguments]


def test_thinking_comes_apart(sdk: ollama.Client) -> None:
    told = chat(sdk, model=CALLER, think=True, options={**GREEDY, "num_predict": 8})
    assert told.message.thinking
    assert not told.message.content
    parts = [
        *chat(sdk, model=CALLER, think=True, stream=True, options={**GREEDY, "num_predict": 8})
    ]
    assert "".join(part.message.thinking or "" for part in parts) == told.message.thinking
    with pytest.raises(ollama.ResponseError, match="think is not supported") as refused:
        chat(sdk, think=True)
    assert refused.value.status_code == 400


def test_models_are_listed_and_shown(sdk: ollama.Client) -> None:
    names = [model.model for model in sdk.list().models]
    assert {"smollm2:latest", "caller:latest"} <= {*names}
    assert "smollm2:latest" in [model.model for model in sdk.ps().models]
    assert sdk.show("smollm2").capabilities == ["completion", "tools"]
    caller = sdk.show("caller:latest")
    assert caller.capabilities == ["completion", "tools", "thinking"]
    assert caller.modelinfo == {
        "general.architecture": "llama",
        "general.basename": "caller",
        "llama.context_length": 2048,
    }


def test_an_empty_prompt_loads(sdk: ollama.Client) -> None:
    assert chat(sdk, messages=[]).done_reason == "load"
    assert sdk.generate(model="smollm2").done_reason == "load"


def test_vectors_are_those_of_the_other_doors(sdk: ollama.Client, embedding: Cell) -> None:
    both = sdk.embed(model="embedder:latest", input=["abc", "de"])
    body = {"model": "embedder", "input": ["abc", "de"]}
    other = embedding.http.post("/v1/embeddings", json=body).json()
    np.testing.assert_allclose(both.embeddings, [each["embedding"] for each in other["data"]])
    assert both.prompt_eval_count == other["usage"]["prompt_tokens"]
    one = sdk.embeddings(model="embedder", prompt="abc").embedding
    np.testing.assert_allclose(one, both.embeddings[0])
    assert sdk.show("embedder").capabilities == ["embedding"]


def test_errors_are_those_that_the_client_knows(sdk: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="nothing-of-the-kind") as missing:
        chat(sdk, model="nothing-of-the-kind")
    assert missing.value.status_code == 404
    pictured = [{"role": "user", "content": "x", "images": [b"a picture"]}]
    with pytest.raises(ollama.ResponseError, match=r"messages\[0\].images\[0\] is an image"):
        chat(sdk, messages=pictured)
    with pytest.raises(ollama.ResponseError, match=r"options.mirostat is not supported"):
        chat(sdk, options={"mirostat": 2})
    with pytest.raises(ollama.ResponseError, match="sax publish"):
        sdk.pull("llama3")
    with pytest.raises(ollama.ResponseError, match="sax unpublish"):
        sdk.delete("smollm2")
