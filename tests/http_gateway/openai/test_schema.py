from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from http_gateway.openai.completions import CompletionRequest
from http_gateway.openai.schema import ChatRequest
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.types import ReplyOptions, SamplingParams
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell


def chat(**fields: object) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    request = ChatRequest.model_validate_json(json.dumps(body))
    request.check()
    return request


def completion(**fields: object) -> CompletionRequest:
    request = CompletionRequest.model_validate_json(
        json.dumps({"model": "m", "prompt": "x", **fields})
    )
    request.check()
    return request


def test_every_honoured_field_of_a_chat_reaches_the_sampling():
    request = chat(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        seed=7,
        stop=["a", "b"],
        stop_token_ids=[2],
        ignore_eos=True,
        max_completion_tokens=9,
        logprobs=True,
        top_logprobs=3,
        min_p=0.125,
        typical_p=0.5,
        presence_penalty=-2,
        frequency_penalty=2,
        repetition_penalty=1.5,
        logit_bias={"50": -100, "0": 2.5},
        allowed_token_ids=[1, 50],
        bad_words=["c"],
        min_tokens=3,
        max_thinking_tokens=0,
    )
    assert request.sampling() == SamplingParams(
        temperature=0.5,
        top_k=40,
        top_p=0.9,
        seed=7,
        max_tokens=9,
        stop=("a", "b"),
        stop_token_ids=(2,),
        ignore_eos=True,
        logprobs=3,
        min_p=0.125,
        typical_p=0.5,
        presence_penalty=-2,
        frequency_penalty=2,
        repetition_penalty=1.5,
        logit_bias={50: -100, 0: 2.5},
        allowed_token_ids=(1, 50),
        bad_words=("c",),
        min_tokens=3,
        max_thinking_tokens=0,
    )


def test_the_defaults_are_openais():
    assert chat().sampling() == SamplingParams(temperature=1.0, top_p=1.0, max_tokens=None)
    assert completion().sampling() == SamplingParams(max_tokens=16)
    assert chat(temperature=None, n=None, stop=None, max_tokens=None).sampling() == SamplingParams()


def test_small_forms_mean_the_same_as_long_ones():
    assert chat(stop="a").sampling().stop == ("a",)
    assert chat(top_k=-1).sampling().top_k == 0
    assert chat(seed=-1).sampling().seed == 2**64 - 1
    assert chat(logprobs=True).sampling().logprobs == 0
    assert chat(max_tokens=5).sampling().max_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=5).sampling().max_tokens == 5
    both = {"thinking_token_budget": 5, "max_thinking_tokens": 5}
    for sent in ({"thinking_token_budget": 5}, {"max_thinking_tokens": 5}, both):
        assert chat(**sent).sampling().max_thinking_tokens == 5
        assert completion(**sent).sampling().max_thinking_tokens == 5
    for made in (chat, completion):
        with pytest.raises(InvalidRequest, match="differ"):
            made(thinking_token_budget=0, max_thinking_tokens=5)


# Every field of OpenAI's reference that this server has no use for, with a value that asks.
REFUSED = {
    "audio": {"voice": "alloy"},
    "function_call": {"name": "f"},
    "functions": [{"name": "f"}],
    "modalities": ["text", "audio"],
    "moderation": {"model": "x"},
    "service_tier": "fast",
    "store": True,
    "verbosity": "low",
    "web_search_options": {},
    "no_such_field": None,
}


@each_case("field", REFUSED)
def test_a_field_that_would_have_to_be_ignored_is_refused_by_name(field: str):
    with pytest.raises(UnsupportedParameter, match=f"^{field} is ") as caught:
        chat(**{field: REFUSED[field]})
    assert caught.value.param == field


def test_a_refusal_says_what_to_do_instead():
    with pytest.raises(UnsupportedParameter, match=r"No model that chats speaks"):
        chat(audio=REFUSED["audio"])


@each_case(
    "field, value",
    [
        ("frequency_penalty", 0),
        ("frequency_penalty", 0.0),
        ("presence_penalty", None),
        ("logit_bias", {}),
        ("response_format", {"type": "text"}),
        ("tools", []),
        ("tool_choice", "auto"),
        ("parallel_tool_calls", True),
        ("service_tier", "auto"),
        ("service_tier", "priority"),
        ("prediction", {"type": "content", "content": "x"}),
        ("prompt_cache_options", {"x": 1}),
        ("prompt_cache_retention", "24h"),
        ("function_call", "auto"),
        ("store", False),
        ("mm_processor_kwargs", {"use_audio_in_video": False}),
        ("modalities", ["text"]),
        ("reasoning_effort", None),
        ("repetition_penalty", 1.0),
        ("user", "bob"),
        ("metadata", {"a": "b"}),
        ("safety_identifier", "h"),
        ("prompt_cache_key", "k"),
    ],
)
def test_a_value_that_changes_nothing_is_accepted(field: str, value: object):
    assert chat(**{field: value}).sampling() == SamplingParams()


def test_a_number_is_not_a_truth_value():
    with pytest.raises(InvalidRequest, match="frequency_penalty is false: give a number from -2"):
        chat(frequency_penalty=False)
    with pytest.raises(InvalidRequest, match="parallel_tool_calls is 1: give true or false"):
        chat(parallel_tool_calls=1)


@each_case(
    "field, value, said",
    [
        ("n", 9, "9: give a whole number from 1 to 8"),
        ("n", 0, "0: give"),
        ("n", True, "true: give"),
        ("temperature", 2.1, "2.1: give a number from 0 to 2"),
        ("temperature", -0.1, "-0.1: give"),
        ("temperature", "hot", '"hot": give a number from 0 to 2'),
        ("temperature", [], r"\[\]: give a number from 0 to 2"),
        ("top_p", -1, "-1: give a number from 0 to 1"),
        ("top_p", 1.1, "1.1: give"),
        ("top_k", -2, "-2: give a whole number from -1"),
        ("min_p", 1.5, "1.5: give a number from 0 to 1"),
        ("typical_p", 0, "0: give a number above 0"),
        ("presence_penalty", 2.5, "2.5: give a number from -2 to 2"),
        ("frequency_penalty", -3, "-3: give a number from -2 to 2"),
        ("repetition_penalty", 0, "0: give a number from 0.01 to 100"),
        ("logit_bias", {"5": 101}, "101: give a number per token id from -100 to 100"),
        ("logit_bias", {"05": 1}, 'the key "05": give token ids'),
        ("logit_bias", {"-1": 1}, 'the key "-1": give token ids'),
        ("logit_bias", [5], r"\[5\]: give a number per token id"),
        ("logit_bias", {"5": True}, "true: give"),
        ("allowed_token_ids", [-1], "-1: give token ids from 0"),
        ("allowed_token_ids", ["a"], '"a": give token ids'),
        ("bad_words", [""], '"": give texts that are not empty'),
        ("bad_words", [5], "5: give texts"),
        ("min_tokens", -1, "-1: give a whole number from 0"),
        ("max_tokens", -1, "-1: give"),
        ("stop", [""], '"": give texts that are not empty'),
        ("stop", 5, "5: give texts that are not empty"),
        ("stop_token_ids", [1.5], "1.5: give token ids"),
        ("ignore_eos", 1, "1: give true or false"),
        ("seed", 2**64, "18446744073709551616: give"),
        ("seed", 10**4000, "a number of 13288 bits: give"),
        ("seed", 1.5, "1.5: give"),
        ("top_logprobs", 21, "21: give a whole number from 0 to 20"),
        ("stream", "yes", '"yes": give true or false'),
        ("priority", -1001, "-1001: give a whole number from -1000 to 1000"),
        ("priority", True, "true: give"),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_field_with_value_and_range(
    field: str, value: object, said: str
):
    with pytest.raises(InvalidRequest, match=f"^{field} (is|has) {said}") as caught:
        chat(**{field: value})
    assert caught.value.param == field


def test_messages_must_be_there():
    with pytest.raises(ValidationError) as caught:
        chat(messages=[])
    assert caught.value.errors()[0]["loc"][0] == "messages"


@each_case(
    "field, value, size, bound",
    [
        ("stop", ["x"] * 17, "17 entries", "16"),
        ("stop", ["x" * 1025], "1025 bytes", "1024"),
        ("stop", "\u00e9" * 513, "1026 bytes", "1024"),
        ("stop", [1] * 1000, "1000 entries", "16"),
        ("stop_token_ids", [1] * 129, "129 entries", "128"),
        ("model", "m" * 201, "201 bytes", "200"),
        ("messages", [{}] * 4097, "4097 entries", "4096"),
        ("user", "u" * 513, "513 bytes", "512"),
        ("metadata", dict.fromkeys(map(str, range(17)), ""), "17 entries", "16"),
        ("metadata", {"k": "v" * 513}, "513 bytes", "512"),
    ],
)
def test_a_value_that_is_too_large_is_refused_with_its_size_and_bound(
    field: str, value: object, size: str, bound: str
):
    with pytest.raises(InvalidRequest) as caught:
        chat(**{field: value}).check()
    assert caught.value.param == field
    assert size in caught.value.text
    assert f"at most {bound} " in caught.value.text


def test_unknown_fields_are_counted_and_their_names_measured():
    with pytest.raises(InvalidRequest, match="65 unknown fields; at most 64"):
        chat(**{f"x{i}": 1 for i in range(65)}).check()
    with pytest.raises(InvalidRequest, match="a field name of 7800000 characters") as caught:
        chat(**{"x" * 7_800_000: 1}).check()
    assert len(caught.value.text) < 200


@pytest.mark.parametrize("value", ["NaN", "Infinity"])
def test_a_number_that_is_none_is_refused(value: str):
    body = '{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":' + value + "}"
    with pytest.raises(InvalidRequest, match=f"temperature is -?{value}: give a number"):
        ChatRequest.model_validate_json(body)


@each_case("fields, param", [
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}},
     "stream_options.include_obfuscation"),
    ({"stream": True, "stream_options": {"continuous_usage_stats": True}},
     "stream_options.continuous_usage_stats"),
    ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
    ({"return_tokens_as_token_ids": True}, "return_tokens_as_token_ids"),
    ({"echo": True}, "echo"),
])  # fmt: skip
def test_fields_that_contradict_each_other_are_refused(fields: dict[str, object], param: str):
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param


@each_case(
    "prompt, prompts",
    [
        ("ab", ("ab",)),
        (["ab", ""], ("ab", "")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
    ],
)
def test_a_prompt_has_four_forms(prompt: object, prompts: tuple[object, ...]):
    assert completion(prompt=prompt).prompts() == prompts


@each_case("prompt", [[], None, 5, [1, "a"], [-1], [2**31], [True], [[]], [[1.5]]])
def test_any_other_prompt_is_refused_by_its_field(prompt: object):
    with pytest.raises(ValidationError) as caught:
        completion(prompt=prompt)
    assert [line["loc"] for line in caught.value.errors()] == [("prompt",)]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3),
                    lambda inner: st.lists(inner, max_size=3), max_leaves=6))  # fmt: skip
def test_a_prompt_is_read_whole_or_refused(prompt: object):
    try:
        read = completion(prompt=prompt).prompts()
    except ValidationError:
        return
    flat = prompt if isinstance(prompt, list) else [prompt]
    one_list_of_ids = bool(flat) and isinstance(flat[0], int)
    written = [flat] if one_list_of_ids else flat
    assert [one if isinstance(one, str) else list(one) for one in read] == written


@each_case(
    "fields, param",
    [
        ({"suffix": "end", "prompt": [1, 2]}, "suffix"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"n": 2, "best_of": 3, "stream": True}, "best_of"),
        ({"prompt": ["x"] * 20, "best_of": 8}, "prompt"),
        ({"return_tokens_as_token_ids": True}, "return_tokens_as_token_ids"),
        ({"tools": []}, "tools"),
        ({"max_completion_tokens": 1}, "max_completion_tokens"),
        ({"prompt": ["x"] * 65, "n": 2}, "prompt"),
    ],
)
def test_a_completion_refuses_what_it_cannot_do(fields: dict[str, object], param: str):
    with pytest.raises(InvalidRequest) as caught:
        completion(**fields)
    assert caught.value.param == param


def test_echoed_and_listed_logprobs_of_a_prompt_are_asked_for_together():
    """Each is cut to its own number afterwards."""
    assert completion(echo=True, logprobs=2).reply().prompt_logprobs == 2
    assert completion(echo=True).reply() == ReplyOptions(echo=True)
    both = completion(echo=True, logprobs=2, prompt_logprobs=5)
    assert both.reply().prompt_logprobs == 5
    assert (both.shape().echoed_tops, both.shape().prompt_logprobs) == (2, 5)
    assert completion(logprobs=2).reply().prompt_logprobs is None


def test_a_text_behind_the_answer_is_told_to_the_model():
    assert completion(suffix="}", prompt=["a", "b"]).reply() == ReplyOptions(suffix="}")
    assert completion(suffix="").reply() == ReplyOptions()


def test_a_completion_of_no_tokens_is_not_one_of_the_default_length():
    assert completion(max_tokens=0, echo=True).sampling().max_tokens == 0
    assert chat(max_tokens=0, prompt_logprobs=1).sampling().max_tokens == 0
    with pytest.raises(InvalidRequest, match="differ"):
        chat(max_tokens=0, max_completion_tokens=1)


def test_a_completion_accepts_what_changes_nothing():
    assert completion(echo=False, suffix=None, best_of=1, n=1, logprobs=2).sampling().logprobs == 2
    assert completion(n=3, best_of=3).choices == 3


@each_case("priority", [-1001, 1001, 1.5, True])
def test_a_priority_is_a_whole_number_within_bounds(priority: object):
    assert chat(priority=-1000).priority == -1000
    with pytest.raises(InvalidRequest, match="priority"):
        chat(priority=priority)


COMPLETION = {"model": "smollm2", "prompt": "abcd", "use_beam_search": True}
CHAT = {"model": "smollm2", "messages": [{"role": "user", "content": "abc"}]}


async def test_the_choices_of_a_completion_are_the_hypotheses_best_first(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    body = {**COMPLETION, "n": 2, "length_penalty": 0.8, "early_stopping": True}
    answer = (await http.post("/v1/completions", json={**body, "return_token_ids": True})).json()
    assert [choice["text"] for choice in answer["choices"]] == [" 4", " 4 5"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert [choice["score"] for choice in answer["choices"]] == [0, -0.25]
    assert [choice["stop_reason"] for choice in answer["choices"]] == [0, 1]
    assert [choice["token_ids"] for choice in answer["choices"]] == [[0], [0, 1]]
    assert answer["usage"]["prompt_tokens"] == 4
    assert answer["usage"]["completion_tokens"] == 3
    (asked,) = cell.requests
    sampling = asked.sampling
    assert (sampling.beam_size, sampling.length_penalty, sampling.early_stopping) == (2, 0.8, True)


async def test_best_of_is_the_width_and_n_are_returned(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    body = {**COMPLETION, "prompt": ["abcd", "ab"], "n": 1, "best_of": 3}
    answer = (await http.post("/v1/completions", json=body)).json()
    assert [choice["text"] for choice in answer["choices"]] == [" 4", " 2"]
    assert [asked.sampling.beam_size for asked in cell.requests] == [3, 3]
    assert answer["usage"]["completion_tokens"] == 2 * (1 + 2 + 3), "all that were found"


async def test_a_chat_searches_too(http: httpx.AsyncClient) -> None:
    body = {**CHAT, "use_beam_search": True, "n": 2}
    answer = (await http.post("/v1/chat/completions", json=body)).json()
    assert [each["message"]["content"] for each in answer["choices"]] == [" 3", " 3 4"]
    assert [each["score"] for each in answer["choices"]] == [0, -0.25]


async def test_samples_have_no_score(http: httpx.AsyncClient) -> None:
    answer = (await http.post("/v1/chat/completions", json=CHAT)).json()
    assert "score" not in answer["choices"][0]


@each_case(
    "fields, param",
    [
        ({"stream": True}, "stream"),
        ({"best_of": 17}, "best_of"),
        ({"use_beam_search": False, "length_penalty": 0.5}, "length_penalty"),
        ({"use_beam_search": False, "early_stopping": True}, "early_stopping"),
        ({"use_beam_search": 1}, "use_beam_search"),
        ({"length_penalty": 11}, "length_penalty"),
    ],
)
async def test_what_contradicts_a_search_is_refused_by_name(
    fields: dict[str, Any], param: str, http: httpx.AsyncClient
) -> None:
    answer = await http.post("/v1/completions", json={**COMPLETION, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
