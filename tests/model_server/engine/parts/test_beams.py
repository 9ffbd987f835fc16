"""The search gives the answers of a plain loop over whole arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from model_server.engine.parts.beams import BeamSearch, length_norm, sampling_of
from model_server.engine.types import BeamSettings, Hypothesis, RowResult
from tests.model_server.engine.parts.beam_reference import search
from tests.model_server.examples import examples

VOCAB = 24


def _logits(seed: int, tokens: tuple[int, ...], grain: int) -> np.ndarray:
    """A random model; a coarse grain makes ties."""
    made = np.random.default_rng([seed, *tokens]).normal(size=VOCAB) * 2
    return np.round(made * grain) / grain


def _logprobs(seed: int, tokens: tuple[int, ...], grain: int) -> np.ndarray:
    logits = _logits(seed, tokens, grain)
    return logits - np.log(np.exp(logits).sum())


def _result(table: np.ndarray, tops: int, ends: frozenset[int]) -> RowResult:
    """What the device reports of one row of log-probabilities."""
    order = np.argsort(-table, kind="stable")
    end = next(int(token) for token in order if int(token) in ends)
    top = tuple((int(token), float(table[token])) for token in order[:tops])
    return RowResult(end, float(table[end]), top)


def _searched(
    seed: int, grain: int, beams: BeamSettings, ends: frozenset[int], most: int
) -> tuple[list[Hypothesis], int]:
    searching = BeamSearch(beams, ends, most)
    hypotheses: list[tuple[int, ...]] = [()]
    tops, steps = sampling_of(beams, ends).logprobs, 0
    while not searching.done:
        results = [_result(_logprobs(seed, each, grain), tops, ends) for each in hypotheses]
        choices = searching.advance(results)
        hypotheses = [(*hypotheses[choice.parent], choice.token) for choice in choices]
        steps += 1
    return searching.answers, steps


@examples(
    st.integers(0, 10**6),
    st.sampled_from([1, 4, 10**6]),
    st.integers(1, 5),
    st.sampled_from([-0.5, 0.0, 0.6, 0.8, 1.0, 2.0]),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from([0, 1, 2, 7]),
    st.integers(1, 8),
    st.frozensets(st.integers(0, VOCAB - 1), min_size=1, max_size=3),
    few=50,
    many=150,
)
def test_it_answers_like_a_loop_over_whole_arrays(
    seed: int,
    grain: int,
    size: int,
    alpha: float,
    early: bool,
    least: int,
    offers: int,
    room: int,
    ends: frozenset[int],
) -> None:
    beams, most = BeamSettings(size, alpha, early, least, offers), least + room
    found, steps = _searched(seed, grain, beams, ends, most)
    wanted = search(lambda tokens: _logprobs(seed, tokens, grain), beams, ends, most)
    assert steps <= most
    assert [each.score for each in found] == pytest.approx([each.score for each in wanted])
    if grain == 10**6:  # no ties, which rounding could break differently
        assert [each.tokens for each in found] == [each.tokens for each in wanted]


def test_a_search_that_cannot_improve_ends_before_its_last_token() -> None:
    """One beam, an end token of nearly all the probability: nothing later can be better."""
    searching = BeamSearch(BeamSettings(1, 0.0), frozenset({0}), 100)
    searching.advance([RowResult(0, -0.01, ((0, -0.01), (1, -5.0)))])
    assert searching.done
    assert [each.tokens for each in searching.answers] == [(0,)]


def test_scores_are_divided_by_the_length_to_a_power() -> None:
    assert length_norm(5, 1.0) == 2.0
    assert length_norm(15, 0.5) == 2.0
    assert length_norm(100, 0.0) == 1.0


def test_tokens_without_any_probability_are_never_chosen() -> None:
    searching = BeamSearch(BeamSettings(2, 1.0), frozenset({3}), 4)
    nothing = float("-inf")
    choices = searching.advance([RowResult(3, nothing, ((1, -0.1), (2, nothing)))])
    assert [choice.token for choice in choices] == [1]
    assert searching.answers == []
