"""A state goes on from right draft tokens alone, whatever was tried, and every page comes back.

The fake runner carries a hash in the pages of such layers, and asserts that each row goes on with
the state of all tokens before it, a draft token with that of the row before.
"""

from __future__ import annotations

from hypothesis import strategies as st
from msgspec.structs import replace

from model_server.engine.limits import EngineLimits, lane_limits
from model_server.engine.paging.window_pages import window_page_count
from tests.model_server.engine import test_grammar_states as guides
from tests.model_server.engine.drafting.test_drafting import Oracle
from tests.model_server.engine.paging.test_prefix_cache import alike_asks, small_limits
from tests.model_server.engine.paging.test_states import recurrent, sharings
from tests.model_server.engine.test_scheduler import (
    ask_for,
    assert_answers,
    limits_of,
    some_asks,
    some_limits,
    tight_asks,
    tight_limits,
)
from tests.model_server.engine.trace import Ask, Trace, context_of, run
from tests.model_server.examples import examples

drafted = st.integers(1, 5)


def drafting(limits: EngineLimits, most: int) -> EngineLimits:
    """Limits of a model with states, and of so many draft tokens in a step."""
    return replace(recurrent(limits), draft_tokens=most)


def checked(limits: EngineLimits, asks: list[Ask], oracle: Oracle) -> Trace:
    """A run whose answers are right and whose steps keep to the states that are planned."""
    trace = run(limits, asks, oracle)
    assert_answers(trace, asks)
    assert trace.scheduler.load().window_pages_used == 0, "a page of a draft token was lost"
    for step in trace.steps:
        states = [row.state for row in step.rows if row.state]
        assert len(states) == len(set(states)) <= limits.draft_states
    return trace


@examples(st.data(), few=40, many=200)
def test_answers_are_those_without_draft_tokens(data: st.DataObject) -> None:
    """Draft tokens right and wrong, cancels, stop ids, ends in the middle of a run."""
    limits = drafting(replace(data.draw(some_limits()), slots=6), data.draw(drafted))
    limits = replace(limits, max_logit_rows=8, token_budget=24)
    asks = data.draw(some_asks(limits))
    checked(limits, asks, Oracle(asks, limits, data.draw(st.integers(0, 1000))))


@examples(st.data(), few=40, many=200)
def test_answers_are_those_without_under_preemption(data: st.DataObject) -> None:
    limits = drafting(data.draw(tight_limits()), data.draw(drafted))
    asks = data.draw(tight_asks(context_of(limits)))
    checked(limits, asks, Oracle(asks, limits, data.draw(st.integers(0, 1000))))


@examples(st.data(), few=40, many=200)
def test_a_shared_prefix_has_the_states_of_right_tokens(data: st.DataObject) -> None:
    drawn = data.draw(small_limits())
    limits = drafting(
        replace(
            drawn, prefix_cache=data.draw(sharings), pages=data.draw(st.integers(drawn.pages, 60))
        ),
        data.draw(drafted),
    )
    asks = data.draw(alike_asks(limits))
    checked(limits, asks, Oracle(asks, limits, data.draw(st.integers(0, 1000))))


def eager(asks: list[Ask], limits: EngineLimits, wrong: float = 0.0) -> Oracle:
    oracle = Oracle(asks, limits, 0, wrong=wrong)
    oracle.pays_to_wait = lambda: True  # type: ignore[method-assign]
    return oracle


def test_right_draft_tokens_save_steps_over_the_borders_of_pages() -> None:
    limits = drafting(limits_of(slots=8), 6)
    asks = [Ask(ask_for((5, 8), 40))]
    oracle = eager(asks, limits)
    trace = checked(limits, asks, oracle)
    assert oracle.proposed == oracle.accepted > 20
    assert len(trace.steps) == 40 - oracle.accepted


def test_all_sequences_together_try_no_more_than_there_are_pages_for() -> None:
    limits = drafting(limits_of(slots=8, pages=60), 3)
    asks = [Ask(ask_for((5, 8 + n), 30)) for n in range(4)]
    oracle = eager(asks, limits, wrong=0.3)
    trace = checked(limits, asks, oracle)
    most = max(sum(row.state > 0 for row in step.rows) for step in trace.steps)
    assert (most, limits.draft_states) == (3, 3)
    assert oracle.accepted > 20


def test_pages_are_planned_for_them_and_only_where_layers_keep_states() -> None:
    limits = replace(limits_of(slots=4, pages=50), page_size=64)
    plain, tries = recurrent(limits), drafting(limits, 5)
    assert window_page_count(tries) == window_page_count(plain) + 5
    assert (plain.draft_states, replace(limits, draft_tokens=5).draft_states) == (0, 0)
    lanes = lane_limits(replace(tries, pages=99), 2)
    assert (lanes.draft_states, lanes.draft_tokens) == (2, 2), "of all lanes no more than planned"


@examples(
    sizes=st.lists(st.integers(1, 14), min_size=1, max_size=5),
    fussy=st.integers(2, 4),
    pages=st.integers(16, 60),
    few=8,
    many=30,
)
def test_a_token_that_does_not_fit_is_chosen_anew(sizes: list[int], fussy: int, pages: int) -> None:
    limits = drafting(replace(guides.LIMITS, pages=pages), 4)
    guides.check_together(limits, guides.Counting(30, modulus=7, fussy=fussy), sizes)
