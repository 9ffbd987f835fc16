"""Layers that keep a state in place of keys and values: no token goes into one twice or is missed.

The fake runner carries a hash from row to row in the pages of these layers, and asserts that each
row goes on with the state of all tokens before it.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from model_server.config import PrefixSharing
from model_server.engine.limits import EngineLimits, WindowLimits, check_limits
from model_server.engine.registry import new_sequence
from sax.errors import InvalidRequest
from tests.model_server.engine import test_grammar_states as guides
from tests.model_server.engine.paging.test_prefix_cache import (
    alike_asks,
    in_turn,
    rows_of,
    small_limits,
)
from tests.model_server.engine.parts import test_grammar as forced
from tests.model_server.engine.parts.test_beam_slots import beams_for
from tests.model_server.engine.test_scheduler import (
    ask_for,
    assert_answers,
    limits_of,
    tight_asks,
    tight_limits,
)
from tests.model_server.engine.trace import context_of, run
from tests.model_server.examples import examples

sharings = st.sampled_from(["off", "tenant"])


def recurrent(limits: EngineLimits, **changes: object) -> EngineLimits:
    """The limits of a model with states: the block divides the page."""
    block = max(b for b in range(1, limits.prefill_block + 1) if limits.page_size % b == 0)
    changes = {
        "prefill_block": block,
        "windows": WindowLimits(sliding=2, recurrent=True),
        **changes,
    }
    return replace(limits, **changes)


@examples(st.data(), few=40, many=250)
def test_every_answer_is_the_one_without_a_cache(data: st.DataObject) -> None:
    drawn = data.draw(small_limits())
    limits = recurrent(
        drawn,
        prefix_cache=data.draw(sharings),
        pages=data.draw(st.integers(drawn.pages, 60)),
    )
    asks = data.draw(alike_asks(limits))
    assert_answers(run(limits, asks), asks)


@examples(st.data(), few=40, many=150)
def test_answers_survive_a_pool_that_is_always_too_small(data: st.DataObject) -> None:
    limits = recurrent(data.draw(tight_limits()))
    asks = data.draw(tight_asks(context_of(limits)))
    assert_answers(run(limits, asks), asks)


@examples(
    sizes=st.lists(st.integers(1, 14), min_size=1, max_size=8),
    fussy=st.integers(2, 4),
    slow=st.integers(0, 3),
    pages=st.integers(16, 60),
    cache=sharings,
    few=8,
    many=30,
)
def test_a_token_that_does_not_fit_is_chosen_anew_from_a_state_without_it(
    sizes: list[int], fussy: int, slow: int, pages: int, cache: PrefixSharing
) -> None:
    limits = recurrent(guides.LIMITS, pages=pages, prefix_cache=cache)
    grammar = guides.Counting(30, modulus=7, fussy=fussy, slow=slow)
    guides.check_together(limits, grammar, sizes)


@examples(
    sizes=st.lists(st.tuples(st.integers(1, 14), st.integers(1, 40)), min_size=1, max_size=8),
    every=st.integers(1, 4),
    length=st.integers(1, 9),
    pages=st.integers(17, 60),
    cache=sharings,
    few=15,
    many=30,
)
def test_forced_tokens_are_those_of_single_steps(
    sizes: list[tuple[int, int]], every: int, length: int, pages: int, cache: PrefixSharing
) -> None:
    limits = recurrent(forced.LIMITS, pages=pages, prefix_cache=cache)
    asked = [forced.asked(size, forced.Forcing(30, every, length), most, 0) for size, most in sizes]
    inbox, ids, _ = forced.served(limits, asked)
    for id, request in zip(ids, asked, strict=True):
        assert inbox.tokens(id) == forced.alone(request)


def test_a_prompt_begins_behind_the_full_pages_of_one_like_it() -> None:
    """Pages of 4 tokens: what follows the sixth one has no state of its own."""
    limits = recurrent(limits_of(1, 200, token_budget=4, prefill_block=4, prefix_cache="tenant"))
    first = ask_for(tuple(range(26)), 1)
    trace = in_turn(limits, first, ask_for((*range(26), 50, 51), 1))
    assert rows_of(trace, 2)[0] == (24, 4)


def test_a_search_is_refused_in_words() -> None:
    with pytest.raises(InvalidRequest, match="hypotheses cannot share"):
        new_sequence(1, beams_for((1, 2)), recurrent(limits_of(4, 100)))


def test_blocks_must_fit_a_page() -> None:
    limits = recurrent(limits_of(4, 100))
    check_limits(limits)
    with pytest.raises(ValueError, match="layers with a state"):
        check_limits(replace(limits, page_size=6, prefill_block=4))
    beside = WindowLimits(sliding=8, recurrent=True)
    with pytest.raises(ValueError, match="must not have keys"):
        check_limits(replace(limits, windows=beside, draft_tokens=2))
