"""Answers with draft tokens are those without, and draft tokens that come true save steps; a lookup
finds them in constant time per token.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from model_server.engine.buckets import closed_set
from model_server.engine.drafting.drafting import REACH, Drafting, DraftTokens, Lookup
from model_server.engine.drafting.drafts import Odds
from model_server.engine.limits import EngineLimits, WindowLimits
from model_server.engine.parts.beams import sampling_of
from model_server.engine.registry import new_sequence
from model_server.engine.step_times import StepTimes
from model_server.engine.types import BeamSettings
from tests.model_server.engine.conftest import Start
from tests.model_server.engine.fake_runner import GREEDY, VOCAB, FakeRunner, logprob
from tests.model_server.engine.test_scheduler import (
    ask_for,
    assert_answers,
    limits_of,
    some_asks,
    some_limits,
    tight_asks,
    tight_limits,
)
from tests.model_server.engine.trace import Ask, alone, context_of, run
from tests.model_server.examples import examples


class Oracle(Drafting):
    """Knows every answer, drafts it with some tokens wrong, and waits when it likes."""

    def __init__(self, asks: list[Ask], limits: Any, seed: int, *, wrong: float = 0.3) -> None:
        super().__init__(6, limits.slots)
        self._random = random.Random(seed)
        self._wrong = wrong
        self._rows_at_most = limits.slots
        self._whole: dict[int, list[int]] = {}
        ordered = sorted(asks, key=lambda ask: ask.turn)
        for id, ask in enumerate(ordered, 1):
            request = ask.engine_request
            tokens = alone(request, limits)[0] if request.max_tokens else []
            self._whole[id] = [*request.prompt, *tokens]

    def pays_to_wait(self) -> bool:
        return self._random.random() < 0.6

    def choose(self) -> DraftTokens:
        left = self._rows_at_most - len(self.live.running)
        made: dict[int, tuple[int, ...]] = {}
        for sequence in self.draftable:
            most = min(left, self.room(sequence), 6)
            if most < 1:
                continue
            count = self._random.randint(0, most)
            made[sequence.id] = tuple(
                self._draft(sequence, len(sequence.tokens) + place) for place in range(count)
            )
            left -= count
        return made

    def _draft(self, sequence: Any, index: int) -> int:
        whole = self._whole[sequence.id]
        if index >= len(whole) or self._random.random() < self._wrong:
            return self._random.randrange(VOCAB)
        return whole[index]


@examples(st.data(), few=40, many=200)
def test_every_sequence_gets_the_answer_it_would_get_without_draft_tokens(
    data: st.DataObject,
) -> None:
    """Draft tokens right and wrong, preemption, cancels, stop ids, ends in the middle of a run."""
    limits = data.draw(some_limits())
    if data.draw(st.booleans()):
        limits = replace(limits, slots=8, max_logit_rows=12, token_budget=16)
    asks = data.draw(some_asks(limits))
    oracle = Oracle(asks, limits, data.draw(st.integers(0, 1000)))
    trace = run(limits, asks, oracle)
    assert_answers(trace, asks)
    assert trace.scheduler.load().tokens == sum(len(each.tokens) for each in trace.answers.values())
    assert oracle.accepted <= oracle.proposed
    for answer, ask in zip(trace.answers.values(), asks, strict=True):
        seen = list(ask.engine_request.prompt)
        for result in answer.results:
            if result.token is not None:
                assert result.logprob == logprob(seen, result.token)
                seen.append(result.token)


@examples(st.data(), few=40, many=200)
def test_answers_with_draft_tokens_survive_a_pool_that_is_always_too_small(
    data: st.DataObject,
) -> None:
    limits = data.draw(tight_limits())
    asks = data.draw(tight_asks(context_of(limits)))
    trace = run(limits, asks, Oracle(asks, limits, data.draw(st.integers(0, 1000))))
    assert_answers(trace, asks)


@examples(st.data(), few=30, many=100)
def test_answers_with_draft_tokens_are_the_same_behind_a_window(data: st.DataObject) -> None:
    """A page that a draft token alone would have left behind must not be freed."""
    limits = replace(
        data.draw(some_limits()), windows=WindowLimits(every=data.draw(st.integers(1, 6))), slots=6
    )
    limits = replace(limits, short_context=None, max_logit_rows=8, token_budget=16)
    asks = data.draw(some_asks(limits))
    asks = [ask for ask in asks if ask.engine_request.score_from is None]
    trace = run(limits, asks, Oracle(asks, limits, data.draw(st.integers(0, 1000))))
    assert_answers(trace, asks)


def test_right_draft_tokens_save_steps_and_cost_no_token() -> None:
    limits = limits_of(slots=8)
    asks = [Ask(ask_for((5, 8), 30))]
    oracle = Oracle(asks, limits, 0, wrong=0.0)
    oracle.pays_to_wait = lambda: True  # type: ignore[method-assign]
    trace = run(limits, asks, oracle)
    assert_answers(trace, asks)
    assert oracle.proposed == oracle.accepted > 15
    assert len(trace.steps) == 30 - oracle.accepted


def test_all_but_beam_searches_are_drafted() -> None:
    limits = limits_of(slots=8)
    plain = ask_for((5, 8), 10)
    beams = BeamSettings(size=2, length_penalty=1.0)
    searched = replace(
        plain,
        beams=beams,
        stop_ids=frozenset({7}),
        sampling=sampling_of(beams, frozenset({7})),
    )
    penalised = replace(plain, sampling=replace(GREEDY, presence_penalty=0.5, guided=True))
    for request, drafted in ((plain, True), (penalised, True), (searched, False)):
        sequence = new_sequence(1, request, limits)
        assert (Drafting(4, 8).begin(sequence) is not None) == drafted


def test_a_full_batch_runs_as_without_draft_tokens() -> None:
    """No spare row: the same steps, none of them launched late."""
    limits = limits_of(slots=4)
    asks = [Ask(ask_for((7, 7, 7, 7, 7, 7), 12)) for _ in range(4)]
    plain, drafted = run(limits, asks), run(limits, asks, Drafting(8, 4))
    assert drafted.steps == plain.steps


def test_repeated_tokens_are_drafted_where_steps_of_more_rows_cost_little() -> None:
    """The prompt repeats the answer that it will get; the step of 8 rows takes 1.3 as long."""
    limits, prompt = looping()
    asks = [Ask(ask_for(prompt, 60))]
    drafting = Drafting(6, 8, times_of({2: 1.0, 8: 1.3}))
    trace = run(limits, asks, drafting)
    assert_answers(trace, asks)
    assert drafting.accepted > 30
    assert len(trace.steps) < 40


def test_no_step_grows_to_a_size_that_costs_more_than_draft_tokens_give() -> None:
    """A step of 2 rows has a row to spare for the last one running; one of 8 takes 9 times."""
    limits, prompt = looping()
    asks = [Ask(ask_for(prompt, 60)) for _ in range(2)]
    trace = run(limits, asks, Drafting(6, 8, times_of({2: 1.0, 8: 9.0})))
    assert_answers(trace, asks)
    decodes = [step for step in trace.steps if step.rows[-1].is_decode]
    assert max(len(step.rows) for step in decodes) == 2


def times_of(seconds: Mapping[int, float]) -> StepTimes:
    buckets = closed_set(max(seconds), (1,))
    found = StepTimes.measured(buckets, [seconds.get(each.decodes, 9.0) for each in buckets], 1)
    assert found is not None
    return found


def looping() -> tuple[EngineLimits, tuple[int, ...]]:
    """Limits under which every 98th token repeats, and a prompt that has been round once."""
    limits = replace(limits_of(slots=8, max_context=300, pages=100), windows=WindowLimits(every=1))
    return limits, (5, *alone(ask_for((5,), 110), limits)[0])


def test_an_engine_drafts_and_counts(start: Start) -> None:
    limits, prompt = looping()
    request = ask_for(prompt, 60)
    engine, inbox = start(FakeRunner(replace(limits, draft_tokens=6)))
    sequence = engine.submit(request)
    assert inbox.end(sequence) == "length"
    assert inbox.tokens(sequence) == alone(request, limits)[0]
    stats = engine.stats()
    assert stats.draft_tokens >= stats.draft_tokens_accepted > 30
    assert stats.tokens == 60


def test_an_engine_without_draft_tokens_counts_none(start: Start) -> None:
    limits, prompt = looping()
    engine, inbox = start(FakeRunner(limits))
    assert inbox.end(engine.submit(ask_for(prompt, 60))) == "length"
    assert engine.stats().draft_tokens == 0


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
