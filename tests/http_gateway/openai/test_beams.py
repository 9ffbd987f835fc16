"""Beam search in vLLM's dialect, over the fake cell."""

from __future__ import annotations

from typing import Any

import httpx

from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell

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
