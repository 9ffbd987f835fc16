"""Prompts whose tokens see each other, on the arithmetic runner, where each counts as those after
it say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from model_server.engine.limits import EngineLimits, check_limits
from model_server.engine.media import RowMedia
from model_server.engine.registry import new_sequence
from model_server.engine.request import EngineRequest
from model_server.engine.types import BeamSettings
from sax.errors import InvalidRequest, PromptTooLong
from tests.model_server.engine.fake_runner import (
    GREEDY,
    FakeRunner,
    logprob,
    next_token,
    seeing_ahead,
)
from tests.model_server.engine.media import fake_images
from tests.model_server.engine.media.driven import Driven
from tests.model_server.engine.media.fake_images import MEDIA, request, seen

MOST = 16  # tokens of a prompt, and of a chunk


def limits(**changes: Any) -> EngineLimits:
    return fake_images.limits(**{"bidirectional_prompt": MOST, **changes})


def driven_by(**changes: Any) -> Driven:
    sizes = limits(**changes)
    return Driven(sizes, FakeRunner(sizes))


def answer(asked: EngineRequest) -> list[int]:
    """The greedy answer of the whole model."""
    prompt = seen(asked)
    tokens = [*seeing_ahead(prompt, [(0, len(prompt))]), *asked.answer]
    for _ in range(asked.max_tokens - len(asked.answer)):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def prompt_rows(driven: Driven, id: int) -> list[tuple[int, int, tuple[tuple[int, int], ...]]]:
    """Of each chunk of a sequence where it begins and ends, and the runs that see each other."""
    rows = (row for step in driven.steps for row in step.rows if row.tokens and row.sequence == id)
    return [(r.start, r.start + r.count, (r.media or RowMedia()).together) for r in rows]


def test_a_prompt_is_computed_in_one_piece_when_all_its_images_are_encoded():
    driven = driven_by(media=replace(MEDIA, rows=8), max_mixed_blocks=1)
    stream = driven.add(request((8,), max_tokens=30))
    asked = request((1, 2), [50, 51, 52], (3,), [60] * 5, (4, 5))
    for _ in range(3):
        driven.turn()
    id = driven.add(asked)
    driven.run()
    assert driven.tokens(id) == answer(asked)
    assert driven.tokens(stream) == answer(request((8,), max_tokens=30))
    assert prompt_rows(driven, id) == [(0, 13, ((0, 13),))]


def test_a_preempted_answer_is_computed_again_behind_its_prompt():
    driven = driven_by(pages=12, max_context=40)
    asked = [request((n, n + 1), [50 + n] * 4, (3,), max_tokens=24) for n in range(3)]
    ids = [driven.add(each) for each in asked]
    driven.run()
    assert driven.scheduler.preemptions > 0
    assert [driven.tokens(id) for id in ids] == [answer(each) for each in asked]
    again = [row for id in ids for row in prompt_rows(driven, id) if row[1] > 7]
    assert again
    assert all(row[2] == ((0, 7),) for row in again if row[0] == 0)


def test_an_answer_begun_elsewhere_goes_on():
    asked = request((1, 2, 3, 4), max_tokens=24)
    begun = replace(asked, answer=tuple(answer(asked)[:20]))
    driven = driven_by()
    id = driven.add(begun)
    driven.run()
    assert [*begun.answer, *driven.tokens(id)] == answer(asked)
    assert prompt_rows(driven, id) == [(0, 20, ((0, 4),)), (20, 24, ())]


def test_pages_serve_the_same_prompt_and_no_other_that_begins_alike():
    driven = driven_by(prefix_cache="all")
    asked = request((1, 2, 3, 4, 5, 6, 7, 8, 9, 10), max_tokens=3)
    longer = request((*asked.prompt, 11), max_tokens=3)
    chat = request((*asked.prompt, *answer(asked)), max_tokens=3)
    for each, cached in ((asked, 0), (asked, 9), (longer, 0), (chat, 0), (longer, 10)):
        id = driven.add(each)
        driven.run()
        assert driven.tokens(id) == answer(each)
        assert driven.last(id).cached == cached
    assert prompt_rows(driven, 2) == [(9, 10, ())]


def test_a_text_behind_a_prompt_is_scored_in_chunks():
    """One logit row is left of two, and the prompt ends within a block."""
    tokens = (1, 2, 3, 4, 5, 6, 7, 8, 9)
    driven = driven_by(slots=2, max_logit_rows=2, prefix_cache="all")
    asked = replace(request(tokens, max_tokens=0), score_from=6)
    kept = [*seeing_ahead(tokens, [(0, 6)])]
    wanted = tuple(logprob(kept[:at], tokens[at]) for at in (6, 7, 8))
    for _ in range(2):
        id = driven.add(asked)
        driven.run()
        assert driven.last(id).result.target_logprobs == wanted
    assert prompt_rows(driven, 1)[0] == (0, 7, ((0, 6),))


def test_beams_begin_behind_one_prompt():
    beams = BeamSettings(size=2, length_penalty=0.0)
    ways = {"beams": beams, "sampling": replace(GREEDY, logprobs=4), "stop_ids": frozenset({96})}
    asked = request((1, 2), [50, 51], (3,), **ways)
    found = list[Any]()
    for sizes in ({"pages": 64}, {"pages": 9, "max_context": 16, "slots": 2, "max_logit_rows": 2}):
        driven = driven_by(**sizes)
        id = driven.add(asked)
        driven.run()
        found.append(driven.last(id).hypotheses)
    assert found[0] == found[1]
    assert found[0]


def test_what_the_model_cannot_take_is_refused():
    long, echoed = request((1,) * 17), replace(request((1, 2, 3)), score_from=1)
    images = request([1] * 5, [2] * 5, [3] * 5)
    for asked, sizes, kind, words in (
        (long, {}, PromptTooLong, "has 17 tokens.*at most 16 tokens here: shorten"),
        (echoed, {}, InvalidRequest, "no log-probabilities"),
        (replace(echoed, max_tokens=0, score_tops=1), {}, InvalidRequest, "no log-probabilities"),
        (images, {"media": replace(MEDIA, rows=14)}, InvalidRequest, "have 15 vectors.*for 14"),
    ):
        with pytest.raises(kind, match=words):
            new_sequence(1, asked, limits(**sizes))
    new_sequence(1, replace(long, max_tokens=0, score_from=16), limits())
    new_sequence(1, request([1] * 5, [2] * 5, [1] * 5), limits(media=replace(MEDIA, rows=14)))
    new_sequence(1, long, fake_images.limits())
    with pytest.raises(ValueError, match="one chunk must hold a prompt of 20"):
        check_limits(limits(bidirectional_prompt=20))


def test_short_prompts_of_others_keep_no_long_one_waiting():
    driven = driven_by(slots=8, token_budget=8 + 16, max_logit_rows=8, max_context=48)
    long = -1
    for turn in range(40):
        for account in "abcd":
            driven.add(request((turn, turn), max_tokens=1, account=account))
        if turn == 3:
            long = driven.add(request((7,) * 16, max_tokens=1, account="long"))
        driven.turn()
    assert driven.tokens(long)
    driven.run()


def test_images_of_many_prompts_never_wait_for_each_other_for_ever():
    """Each needs all rows. The second's first image is there from before: it lets go of it."""
    driven = driven_by(media=replace(MEDIA, rows=12))
    driven.add(request([3] * 6))
    driven.run()
    asked = [
        request([1] * 6, (9,), [2] * 6, account="a"),
        request([3] * 6, (8,), [4] * 6, account="b"),
    ]
    ids = [driven.add(each) for each in asked]
    driven.run()
    assert [driven.tokens(id) for id in ids] == [answer(each) for each in asked]


def test_prompts_of_several_callers_are_not_cut_where_one_step_cannot_hold_them():
    driven = driven_by()
    asked = [request((n,) * 12, max_tokens=3, account=str(n)) for n in range(4)]
    ids = [driven.add(each) for each in asked]
    driven.run()
    assert [driven.tokens(id) for id in ids] == [answer(each) for each in asked]
    assert [prompt_rows(driven, id) for id in ids] == [[(0, 12, ((0, 12),))]] * 4


PARTS = st.lists(
    st.one_of(
        st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple),
        st.sampled_from([[50], [51, 52], [53] * 4]),
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(PARTS, st.integers(0, 6), st.sampled_from("abc")), min_size=1, max_size=7),
    st.sampled_from(["off", "all"]),
    st.integers(12, 40),
    st.sampled_from([None, 1]),
    st.sampled_from([11, 16]),
)
def test_answers_are_those_of_the_whole_model(
    asked: list[tuple[list[Any], int, str]],
    sharing: Any,
    pages: int,
    mixed: int | None,
    rows: int,
) -> None:
    sizes = {"prefix_cache": sharing, "pages": pages, "max_mixed_blocks": mixed}
    driven = driven_by(media=replace(MEDIA, rows=rows), max_context=40, **sizes)
    ids: list[tuple[int, EngineRequest]] = []
    for parts, turns, account in asked:
        each = request(*parts, max_tokens=8, account=account)
        ids.append((driven.add(each), each))
        for _ in range(turns):
            driven.turn()
    driven.run()
    assert [driven.tokens(id) for id, _ in ids] == [answer(each) for _, each in ids]
