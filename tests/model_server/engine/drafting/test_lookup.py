"""A lookup predicts what followed the last three tokens before, in constant time per token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from model_server.engine.drafting.drafting import REACH, Lookup
from model_server.engine.drafting.odds import Odds


def lookup_of(tokens: list[int], prompt: int | None = None) -> Lookup:
    """All tokens taken in."""
    made = Lookup(tokens, len(tokens) if prompt is None else prompt, Odds())
    made.read(len(tokens))
    return made


def test_it_drafts_what_followed_the_last_three_tokens() -> None:
    lookup = lookup_of([1, 2, 3, 4, 5, 6, 9, 1, 2, 3])
    assert len(lookup.chances(4)) == 4
    assert lookup.draft_tokens(3) == (4, 5, 6)


def test_the_last_occurrence_counts() -> None:
    assert lookup_of([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3]).draft_tokens(1) == (5,)


def test_a_run_is_followed_although_its_tokens_occurred_elsewhere_since() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]
    lookup = lookup_of(tokens)
    tokens += [4, 5]
    assert lookup.behind == 2
    assert lookup.chances(1) == [], "it has not seen all tokens yet"
    assert lookup.read(10) == 2
    assert lookup.draft_tokens(2) == (6, 7)


def test_a_loop_is_drafted_beyond_the_tokens_there_are() -> None:
    assert lookup_of([5, 5, 5, 5]).draft_tokens(4) == (5, 5, 5, 5)
    assert lookup_of([1, 2, 1, 2, 1, 2]).draft_tokens(5) == (1, 2, 1, 2, 1)


def test_the_tokens_of_an_image_are_not_drafted() -> None:
    lookup = lookup_of([1, 2, 3, 4, -7, -8, 5, 1, 2, 3])
    assert len(lookup.chances(3)) == 1
    assert lookup_of([1, 2, 3, -7, 4, 1, 2, 3]).chances(3) == []


def test_nothing_is_drafted_without_a_repetition() -> None:
    assert lookup_of([1, 2, 3, 4, 5, 6]).chances(3) == []


def test_a_long_prompt_is_taken_in_piece_by_piece_from_its_end() -> None:
    tokens = list(range(2 * REACH))
    lookup = Lookup(tokens, len(tokens), Odds())
    assert lookup.behind == REACH
    assert lookup.read(512) == 512
    assert lookup.behind == REACH - 512


def test_right_predictions_of_the_answer_raise_the_odds_and_those_of_the_prompt_do_not() -> None:
    text = [*range(40), *range(40)]
    odds, of_prompt = Odds(), Odds()
    Lookup(list(text), 40, odds).read(80)
    Lookup(list(text), 80, of_prompt).read(80)
    assert of_prompt.of_runs(0, 5) == Odds().of_runs(0, 5)
    assert odds.of_runs(8, 5)[-1] > Odds().of_runs(8, 5)[-1]


@given(st.lists(st.integers(0, 3), min_size=4, max_size=60), st.integers(1, 9))
def test_what_it_drafts_has_followed_its_last_tokens(tokens: list[int], count: int) -> None:
    """Taken in piece by piece; the place that is followed ends as the tokens do."""
    lookup = Lookup(tokens, 2, Odds())
    while lookup.behind:
        lookup.read(3)
    if not lookup.chances(count):
        assert all(tokens[at : at + 3] != tokens[-3:] for at in range(len(tokens) - 3))
        return
    draft_tokens = list(lookup.draft_tokens(count))
    whole = [*tokens, *draft_tokens]
    places = [
        at
        for at in range(3, len(tokens))
        if whole[at : at + count] == draft_tokens and tokens[at - 3 : at] == tokens[-3:]
    ]
    assert places
