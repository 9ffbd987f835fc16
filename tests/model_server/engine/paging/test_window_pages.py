"""Layers with a window beside others that see all: their pages are freed and missed by nobody.

The fake runner reads the last tokens from both kinds of pages, and answers as without a window as
long as they agree.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from model_server.config import PrefixSharing
from model_server.engine.limits import EngineLimits, WindowLimits
from model_server.engine.paging.window_pages import most_window_pages, window_page_count
from model_server.engine.request import EngineRequest
from model_server.engine.types import BeamSettings
from tests.model_server.engine import test_grammar_states as guides
from tests.model_server.engine.drafting.test_drafting import Oracle
from tests.model_server.engine.paging.test_prefix_cache import (
    PROMPT,
    alike_asks,
    in_turn,
    rows_of,
    small_limits,
)
from tests.model_server.engine.parts import test_beam_slots as beams
from tests.model_server.engine.parts import test_grammar as forced
from tests.model_server.engine.test_scheduler import (
    ask_for,
    assert_answers,
    limits_of,
    tight_asks,
    tight_limits,
)
from tests.model_server.engine.trace import Ask, Trace, context_of, run
from tests.model_server.examples import examples

windows = st.integers(1, 12)
sharings = st.sampled_from(["off", "tenant"])


@examples(st.data(), few=40, many=250)
def test_every_answer_is_the_one_without_a_cache(data: st.DataObject) -> None:
    """Prompts and answers that begin alike, and scores, which see a window at every position."""
    drawn = data.draw(small_limits())
    limits = replace(
        drawn,
        windows=WindowLimits(sliding=data.draw(windows)),
        prefix_cache=data.draw(sharings),
        pages=data.draw(st.integers(drawn.pages, 60)),
    )
    asks = data.draw(alike_asks(limits))
    assert_answers(run(limits, asks), asks)


@examples(st.data(), few=40, many=150)
def test_answers_survive_a_pool_that_is_always_too_small(data: st.DataObject) -> None:
    limits = replace(data.draw(tight_limits()), windows=WindowLimits(sliding=data.draw(windows)))
    asks = data.draw(tight_asks(context_of(limits)))
    assert_answers(run(limits, asks), asks)


@examples(st.data(), few=30, many=100)
def test_draft_tokens_change_no_answer(data: st.DataObject) -> None:
    drawn = data.draw(small_limits())
    limits = replace(
        drawn,
        windows=WindowLimits(sliding=data.draw(windows)),
        prefix_cache=data.draw(sharings),
        slots=6,
        max_logit_rows=8,
        token_budget=16,
        draft_tokens=6,
    )
    asks = data.draw(alike_asks(limits))
    trace = run(limits, asks, Oracle(asks, limits, data.draw(st.integers(0, 1000))))
    assert_answers(trace, asks)


@examples(st.data(), few=30, many=150)
def test_every_search_finds_what_it_would_find_alone(data: st.DataObject) -> None:
    drawn = replace(data.draw(beams.some_limits()), windows=WindowLimits())
    limits = replace(drawn, windows=WindowLimits(sliding=data.draw(windows)))
    asks = data.draw(beams.some_asks(limits))
    trace = run(limits, asks)
    for place, ask in enumerate(asks, 1):
        answer = trace.answers[place]
        if ask.engine_request.beams is not None and answer.finish != "cancelled":
            beams.check(answer.hypotheses, beams.found_alone(ask.engine_request, limits))


@pytest.mark.parametrize("sharing", ["off", "tenant"])
def test_a_preempted_search_goes_on_where_it_was(sharing: PrefixSharing) -> None:
    """Its hypotheses part before the window of the end of the one that is computed again first."""
    limits = replace(
        limits_of(slots=4, pages=57, page_size=2, max_context=40, prefix_cache=sharing),
        windows=WindowLimits(sliding=3),
    )
    search = beams.beams_for((3, 2, 8), 9, BeamSettings(3, 0.8, min_tokens=6))
    others = [replace(ask_for((9, n), 20), account="another") for n in range(3)]
    trace = run(limits, [Ask(search), *(Ask(each, 5 + n) for n, each in enumerate(others))])
    assert trace.scheduler.preemptions
    beams.check(trace.answers[1].hypotheses, beams.found_alone(search, limits))


@examples(
    sizes=st.lists(st.integers(1, 14), min_size=1, max_size=8),
    fussy=st.integers(2, 4),
    slow=st.integers(0, 3),
    pages=st.integers(16, 60),
    window=windows,
    cache=sharings,
    few=10,
    many=30,
)
def test_a_token_that_does_not_fit_is_chosen_anew_with_all_that_it_sees(
    sizes: list[int], fussy: int, slow: int, pages: int, window: int, cache: PrefixSharing
) -> None:
    limits = replace(
        guides.LIMITS, pages=pages, windows=WindowLimits(sliding=window), prefix_cache=cache
    )
    grammar = guides.Counting(30, modulus=7, fussy=fussy, slow=slow)
    guides.check_together(limits, grammar, sizes)


@examples(
    sizes=st.lists(st.tuples(st.integers(1, 14), st.integers(1, 40)), min_size=1, max_size=8),
    every=st.integers(1, 4),
    length=st.integers(1, 9),
    pages=st.integers(17, 60),
    window=windows,
    cache=sharings,
    few=10,
    many=30,
)
def test_forced_tokens_are_those_of_single_steps(
    sizes: list[tuple[int, int]],
    every: int,
    length: int,
    pages: int,
    window: int,
    cache: PrefixSharing,
) -> None:
    limits = replace(
        forced.LIMITS, pages=pages, windows=WindowLimits(sliding=window), prefix_cache=cache
    )
    asked = [forced.asked(size, forced.Forcing(30, every, length), most, 0) for size, most in sizes]
    inbox, ids, _ = forced.served(limits, asked)
    for id, request in zip(ids, asked, strict=True):
        assert inbox.tokens(id) == forced.alone(request)


@pytest.mark.parametrize("sharing", ["off", "tenant"])
def test_a_long_answer_holds_no_more_window_pages_than_its_window(sharing: PrefixSharing) -> None:
    limits = replace(limits_of(), windows=WindowLimits(sliding=8), prefix_cache=sharing)
    trace = Trace(limits)
    trace.add(1, ask_for(PROMPT, 50))
    most = window_pages = 0
    while trace.scheduler.load().live:
        trace.turn()
        most = max(most, trace.scheduler.load().pages_used)
        window_pages = max(window_pages, trace.scheduler.load().window_pages_used)
    trace.finish()
    assert window_pages <= 4
    assert most == 15
    assert_answers(trace, [Ask(ask_for(PROMPT, 50))])


def test_slots_with_any_context_need_as_many_window_pages_as_their_windows_take() -> None:
    """64 tokens are 4 pages, and one more where they lie askew."""
    limits = replace(
        limits_of(slots=8, pages=10_000, page_size=16), windows=WindowLimits(sliding=62)
    )
    assert most_window_pages(limits) == window_page_count(limits) == 8 * (4 + 1 + 2) + 16 // 16
    assert window_page_count(replace(limits, max_context=2**20)) == window_page_count(limits)
    assert window_page_count(replace(limits, pages=20)) == 20
    assert window_page_count(limits_of()) == 0


def windowed(sharing: PrefixSharing = "tenant") -> EngineLimits:
    """For one slot with a window of 4, 6 window pages of 4 tokens, and 6 that keep prefixes."""
    limits = limits_of(1, 200, token_budget=4, prefill_block=4, prefix_cache=sharing)
    return replace(limits, windows=WindowLimits(sliding=4))


def others(count: int) -> list[EngineRequest]:
    """Prompts of 8 pages that begin with tokens of their own."""
    return [ask_for((60 + n, *range(50, 79)), 1) for n in range(count)]


def test_a_prefix_cache_has_as_many_window_pages_again() -> None:
    assert (window_page_count(windowed("off")), window_page_count(windowed())) == (6, 12)


def test_a_chat_goes_on_where_it_ended_although_others_have_run_since() -> None:
    """What these freed in their middle was granted anew before its last window."""
    first = ask_for(tuple(range(30)), 1)
    trace = in_turn(windowed(), first, *others(3), ask_for((*range(30), 40, 41, 42)))
    assert rows_of(trace, 5) == [(30, 3)]


def test_a_prefix_whose_window_was_granted_anew_is_computed_again() -> None:
    """Its other pages are still there, but the end of many prompts took the window pages."""
    first = ask_for(tuple(range(30)), 1)
    trace = in_turn(windowed(), first, *others(6), first)
    assert trace.scheduler.load().prefix_evictions == 0
    assert rows_of(trace, 8)[0][0] == 0


def test_window_pages_that_are_computed_again_serve_those_who_come_next() -> None:
    """The page with the same tokens is found by contents, and the new window page beside it."""
    first = ask_for(tuple(range(30)), 1)
    trace = in_turn(windowed(), first, *others(6), first, first)
    assert rows_of(trace, 9) == [(29, 1)]


def test_the_place_where_prompts_part_is_kept_once_it_is_known() -> None:
    """The second finds that it begins like the first, whose window pages there are gone."""
    system = tuple(range(24))
    asked = [ask_for((*system, 90 + n, *range(30, 60)), 1) for n in range(3)]
    trace = in_turn(windowed(), asked[0], *others(6), asked[1], *others(3), asked[2])
    assert rows_of(trace, 8)[0][0] < 24
    assert rows_of(trace, 12)[0][0] == 24
