"""A sequence knows its own bounds, and refuses what can never be served, in words."""

from __future__ import annotations

import pytest

from model_server.engine.limits import EngineLimits
from model_server.engine.registry import new_sequence
from model_server.engine.request import EngineRequest
from model_server.engine.sequence import Sequence
from model_server.engine.types import Sampling
from sax.errors import InvalidRequest, PromptTooLong

GREEDY = Sampling(0.0, 0, 1.0, seed=0)


def sequence(
    prompt: int,
    max_tokens: int | None = None,
    *,
    max_context: int = 16,
    pages: int = 8,
    stop_ids: frozenset[int] = frozenset(),
    score_from: int | None = None,
) -> Sequence:
    if max_tokens is None:
        max_tokens = 4 if score_from is None else 0
    limits = EngineLimits(
        slots=1,
        pages=pages,
        page_size=4,
        max_context=max_context,
        token_budget=4,
        max_logit_rows=1,
    )
    engine_request = EngineRequest(
        prompt=tuple(range(prompt)),
        sampling=GREEDY,
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        score_from=score_from,
    )
    return new_sequence(1, engine_request, limits)


def test_the_last_token_of_an_answer_is_never_computed() -> None:
    assert sequence(5, 4).end == 5 + 4 - 1


def test_the_last_token_of_a_scored_prompt_is_never_computed() -> None:
    assert sequence(16, score_from=3).end == 15


def test_a_prompt_that_is_scored_and_answered_is_computed_to_the_end_of_the_answer() -> None:
    assert sequence(5, 4, score_from=2).end == 5 + 4 - 1
    with pytest.raises(PromptTooLong, match="one of them for the answer"):
        sequence(16, 1, score_from=1)


def test_an_answer_ends_with_the_context_or_the_page_pool() -> None:
    assert sequence(5, 100).finish_at == 16
    assert sequence(5, 100, pages=2).finish_at == 8


def test_a_stop_id_ends_an_answer_before_its_length_does() -> None:
    short = sequence(2, 2, stop_ids=frozenset({7}))
    assert short.append(3) is None
    assert short.append(7) == "stop"
    full = sequence(2, 1)
    assert full.append(7) == "length"


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused_with_both_numbers() -> None:
    with pytest.raises(PromptTooLong, match="has 16 tokens .* length is 16 tokens, one of them"):
        sequence(16)


def test_a_prompt_larger_than_the_page_pool_is_refused_with_both_numbers() -> None:
    with pytest.raises(PromptTooLong, match="has 9 tokens and .* length is 8 tokens"):
        sequence(9, pages=2)


def test_a_scored_prompt_may_fill_the_context_but_not_more() -> None:
    assert sequence(16, score_from=1).end == 15
    with pytest.raises(PromptTooLong, match="has 17 tokens and .* length is 16 tokens:"):
        sequence(17, score_from=1)


def test_a_score_of_nothing_or_from_nothing_is_refused() -> None:
    for score_from in (0, 5, 6):
        with pytest.raises(InvalidRequest, match=f"cannot score from token {score_from} of 5"):
            sequence(5, score_from=score_from)


def test_an_empty_prompt_and_an_empty_answer_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="no tokens") as empty:
        sequence(0)
    with pytest.raises(InvalidRequest, match="max_tokens is 0") as nothing:
        sequence(3, 0)
    assert (empty.value.param, nothing.value.param) == ("prompt", "max_tokens")
