"""Answers with a draft model are those without, and it is asked where that pays."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from model_server.engine.buckets import closed_set
from model_server.engine.drafting.drafting import Drafting
from model_server.engine.drafting.drafts import Drafts, Odds, StepCosts, allot_drafted
from model_server.engine.engine import Engine
from model_server.engine.limits import EngineLimits
from model_server.engine.running.ops import Proposals, Propose
from model_server.engine.step_times import StepTimes
from model_server.engine.watchdog import StepHung
from tests.model_server.engine.conftest import Start
from tests.model_server.engine.drafting.fake_drafted_runner import FakeDraftedRunner
from tests.model_server.engine.test_scheduler import (
    ask_for,
    assert_answers,
    limits_of,
    some_asks,
    some_limits,
    tight_asks,
    tight_limits,
)
from tests.model_server.engine.trace import Ask, Trace, alone, context_of, run
from tests.model_server.examples import examples

MOST = 6


def drafted(
    limits: EngineLimits, asks: list[Ask], device: FakeDraftedRunner
) -> tuple[Trace, Drafts]:
    drafts = Drafts(device, limits.page_size)
    trace = run(limits, asks, Drafting(MOST, limits.slots, None, drafts), device)
    return trace, drafts


@examples(st.data(), few=40, many=200)
def test_every_sequence_gets_the_answer_it_would_get_without_a_draft_model(
    data: st.DataObject,
) -> None:
    """Shared pages, copies, preemption, cancels and ends in the middle of a run."""
    limits = replace(data.draw(some_limits()), short_context=None)
    if data.draw(st.booleans()):
        limits = replace(limits, slots=8, max_logit_rows=12, token_budget=16)
    asks = [ask for ask in data.draw(some_asks(limits)) if not ask.engine_request.computed]
    wrong = data.draw(st.sampled_from([0.0, 0.3, 1.0]))
    device = FakeDraftedRunner(limits, wrong=wrong, seed=data.draw(st.integers(0, 1000)))
    trace, drafts = drafted(limits, asks, device)
    assert_answers(trace, asks)
    assert drafts.accepted <= drafts.proposed <= device.asked


@examples(st.data(), few=40, many=150)
def test_answers_survive_a_pool_that_is_always_too_small(data: st.DataObject) -> None:
    limits = replace(data.draw(tight_limits()), short_context=None)
    asks = data.draw(tight_asks(context_of(limits)))
    asks = [ask for ask in asks if not ask.engine_request.computed]
    trace, _ = drafted(limits, asks, FakeDraftedRunner(limits, wrong=0.3))
    assert_answers(trace, asks)


def test_a_draft_model_that_is_right_saves_steps_across_page_borders() -> None:
    limits = limits_of(slots=8, pages=40, max_context=100)
    asks = [Ask(ask_for((5, 8), 60))]
    trace, drafts = drafted(limits, asks, FakeDraftedRunner(limits))
    assert_answers(trace, asks)
    assert drafts.proposed == drafts.accepted > 40
    assert len(trace.steps) < 20


def test_a_draft_model_that_is_wrong_is_asked_seldom_but_again() -> None:
    limits = limits_of(slots=8, pages=300, max_context=600)
    asks = [Ask(ask_for((5, 8), 500))]
    trace, drafts = drafted(limits, asks, FakeDraftedRunner(limits, wrong=1.0, token_s=0.2))
    assert_answers(trace, asks)
    late = sum(len(step.rows) > 1 for step in trace.steps[250:])
    assert 0 < late < 30, "it is tried once in a while"
    assert drafts.proposed < 100


class Slow(FakeDraftedRunner):
    """Its first proposals take as long as many steps."""

    slow = 1

    def propose(self, op: Propose) -> Proposals:
        made = super().propose(op)
        self.slow -= 1
        return made if self.slow < 0 else Proposals(made.tokens, 1000 * made.seconds)


@pytest.mark.parametrize(("slow", "least"), [(1, 200), (20, 30)])
def test_a_draft_model_that_was_slow_for_a_while_is_asked_again(slow: int, least: int) -> None:
    limits = limits_of(slots=8, pages=300, max_context=600)
    asks, device = [Ask(ask_for((5, 8), 500))], Slow(limits)
    device.slow = slow
    trace, drafts = drafted(limits, asks, device)
    assert_answers(trace, asks)
    assert drafts.accepted > least


def test_a_full_batch_asks_nobody() -> None:
    limits = limits_of(slots=4)
    asks = [Ask(ask_for((7, 7, 7, 7, 7, 7), 12)) for _ in range(4)]
    device = FakeDraftedRunner(limits)
    trace, _ = drafted(limits, asks, device)
    assert device.asked == 0
    assert [len(step.rows) for step in trace.steps] == [
        len(step.rows) for step in run(limits, asks).steps
    ]


def test_a_draft_model_that_is_as_slow_as_the_model_is_not_asked() -> None:
    limits = limits_of(slots=8)
    asks = [Ask(ask_for((5, 8), 30))]
    device = FakeDraftedRunner(limits, token_s=2.0)
    trace, _ = drafted(limits, asks, device)
    assert_answers(trace, asks)
    assert device.asked == 0


def costs_of(seconds: dict[int, float]) -> StepCosts:
    buckets = closed_set(max(seconds), (1,))
    times = StepTimes.measured(buckets, [seconds.get(b.decodes, 9.0) for b in buckets], 1)
    return StepCosts(times, max(seconds))


CHEAP = costs_of({2: 1.0, 8: 1.1, 16: 1.2})
SURE = [0.95**place for place in range(1, 9)]
FAIR = [0.6**place for place in range(1, 9)]


def test_draft_tokens_go_as_deep_as_the_draft_models_time_is_worth() -> None:
    depths = []
    for draft_s in (0.01, 0.2, 0.5, 2.0):
        made = allot_drafted({}, {1: SURE}, 1, 16, CHEAP, draft_s, ahead=False)
        depths.append(made.counts.get(1, 0))
    assert depths == sorted(depths, reverse=True)
    assert depths[0] >= 7
    assert depths[-1] == 0


def test_each_sequence_has_draft_tokens_of_the_better_kind() -> None:
    looked = {1: SURE, 2: [0.1, 0.01]}
    made = allot_drafted(looked, {1: FAIR, 2: FAIR}, 2, 16, CHEAP, 0.05, ahead=False)
    assert made.drafted == {2}
    assert made.counts[1] > 0
    assert made.counts[2] > 0


def test_a_dear_draft_model_leaves_the_lookups_draft_tokens() -> None:
    made = allot_drafted({1: FAIR}, {1: SURE}, 1, 16, CHEAP, 5.0, ahead=False)
    assert made.counts[1] > 0
    assert not made.drafted


@pytest.mark.parametrize("wrong", [0.0, 0.5])
def test_an_engine_asks_the_draft_model_of_its_runner(start: Start, wrong: float) -> None:
    limits = replace(limits_of(slots=8, pages=40, max_context=100), draft_tokens=MOST)
    request = ask_for((5, 8), 60)
    runner = FakeDraftedRunner(limits, wrong=wrong)
    engine, inbox = start(runner)
    sequence = engine.submit(request)
    assert inbox.end(sequence) == "length"
    assert inbox.tokens(sequence) == alone(request, limits)[0]
    stats = engine.stats()
    assert stats.draft_tokens >= stats.draft_tokens_accepted > 20


class Hanging(FakeDraftedRunner):
    """Its draft model answers only once it may."""

    def __init__(self, limits: EngineLimits) -> None:
        super().__init__(limits)
        self.may = threading.Event()

    def propose(self, op: Propose) -> Proposals:
        assert self.may.wait(60), "the test never let it go on"
        return super().propose(op)


@pytest.mark.extended
def test_a_draft_model_that_hangs_is_noticed() -> None:
    limits = replace(limits_of(slots=8, pages=40, max_context=100), draft_tokens=MOST)
    runner, seen, noticed = Hanging(limits), [], threading.Event()

    def hung(what: StepHung) -> None:
        seen.append(str(what))
        noticed.set()

    engine = Engine(runner, lambda updates: None, step_limit_s=1.0, on_hang=hung)
    engine.submit(ask_for((5, 8), 60))
    assert noticed.wait(60)
    runner.may.set()
    engine.close()
    assert "the draft model's tokens for step" in seen[0]


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=60), st.integers(0, 20))
def test_chances_are_chances_and_fall(noted: list[tuple[int, bool]], run: int) -> None:
    odds = Odds()
    for place, right in noted:
        odds.note(place, right)
    chances = odds.of_runs(run, 8)
    assert all(0 <= chance <= 1 for chance in chances)
    assert chances == sorted(chances, reverse=True)


@pytest.mark.parametrize("right", [True, False])
def test_a_long_run_of_one_outcome_is_believed(right: bool) -> None:
    odds = Odds()
    for _ in range(60):
        odds.note(0, right)
    assert odds.of_runs(0, 1)[0] == pytest.approx(float(right), abs=0.01)


def test_a_new_sequence_begins_with_the_odds_of_those_before() -> None:
    shared = Odds()
    for _ in range(20):
        one = Odds(shared)
        for _ in range(30):
            one.note(0, False)
    assert Odds(shared).of_runs(0, 1)[0] < 0.05


def test_runs_of_other_lengths_keep_their_own_odds() -> None:
    odds = Odds()
    before = odds.of_runs(8, 1)
    for _ in range(50):
        odds.note(0, False)
    assert odds.of_runs(8, 1) == before
