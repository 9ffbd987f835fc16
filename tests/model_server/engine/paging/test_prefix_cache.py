"""Sequences that begin alike share pages, and every answer is the one without a cache."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from model_server.config import PrefixSharing
from model_server.engine.limits import EngineLimits, WindowLimits
from model_server.engine.paging.prefix import NOTHING, Prefix
from model_server.engine.paging.prefix_cache import PrefixCache
from model_server.engine.registry import new_sequence
from model_server.engine.request import EngineRequest
from model_server.engine.sequence import Sequence
from model_server.engine.types import Sampling
from tests.model_server.engine.fake_runner import GREEDY, next_token
from tests.model_server.engine.test_scheduler import ask_for, assert_answers, limits_of
from tests.model_server.engine.trace import Ask, Trace, context_of, run
from tests.model_server.examples import examples

PROMPT = tuple(range(10, 20))  # two pages of 4, and half of one


def salted(prompt: tuple[int, ...], salt: str, max_tokens: int = 4) -> EngineRequest:
    return EngineRequest(
        prompt=prompt, sampling=GREEDY, max_tokens=max_tokens, stop_ids=frozenset(), salt=salt
    )


def rows_of(trace: Trace, id: int) -> list[tuple[int, int]]:
    """Start and size of each chunk of a sequence's prompt."""
    rows = [row for step in trace.steps for row in step.rows if row.sequence == id]
    return [(row.start, row.count) for row in rows if not row.is_decode]


def in_turn(limits: EngineLimits, *asked: EngineRequest) -> Trace:
    """Serve requests one after the other."""
    trace = Trace(limits)
    for id, engine_request in enumerate(asked, 1):
        trace.add(id, engine_request)
        trace.finish()
    assert_answers(trace, [Ask(each) for each in asked])
    return trace


def cached_limits(**sizes: int) -> EngineLimits:
    return replace(limits_of(**sizes), prefix_cache="tenant")


def test_a_second_turn_computes_only_what_is_new() -> None:
    """The first leaves 13 of its 14 tokens: the last is never computed."""
    first = ask_for(PROMPT, 4)
    answer = [next_token(PROMPT)]
    while len(answer) < 4:
        answer.append(next_token((*PROMPT, *answer)))
    second = ask_for((*PROMPT, *answer, 50, 51, 52))
    trace = in_turn(cached_limits(), first, second)
    assert rows_of(trace, 2) == [(13, 4)]
    assert trace.scheduler.load().prefix_queries == 10 + 17
    assert trace.scheduler.load().prefix_hits == 13
    assert trace.scheduler.prefill_tokens == 10 + 4


def test_an_equal_prompt_computes_its_last_token_alone() -> None:
    for size in (10, 9, 8, 5, 4):
        trace = in_turn(cached_limits(), ask_for(PROMPT[:size], 1), ask_for(PROMPT[:size], 1))
        assert rows_of(trace, 2) == [(size - 1, 1)], size


def test_an_equal_prompt_is_found_in_a_page_that_an_answer_has_filled() -> None:
    trace = in_turn(cached_limits(), ask_for(PROMPT, 9), ask_for(PROMPT, 9))
    assert rows_of(trace, 2) == [(9, 1)]


def test_without_the_cache_everything_is_computed_again() -> None:
    trace = in_turn(limits_of(), ask_for(PROMPT), ask_for(PROMPT))
    assert rows_of(trace, 2) == [(0, 10)]
    assert trace.scheduler.load().pages_cached == 0


def test_nothing_is_shared_across_salts() -> None:
    trace = in_turn(cached_limits(), salted(PROMPT, "ann"), salted(PROMPT, "bob"))
    assert rows_of(trace, 2) == [(0, 10)]
    assert trace.scheduler.load().prefix_hits == 0


def test_samples_of_one_prompt_compute_it_once_and_copy_its_last_page() -> None:
    """They wait a step for the first of them; then each computes one token."""
    limits = cached_limits(token_budget=64, max_logit_rows=8)
    samples = [ask_for(PROMPT, 6, sampling=Sampling(1.0, 0, 1.0, seed=seed)) for seed in range(4)]
    trace = run(limits, [Ask(each) for each in samples])
    assert_answers(trace, [Ask(each) for each in samples])
    assert [rows_of(trace, id) for id in (1, 2, 3, 4)] == [[(0, 10)], [(9, 1)], [(9, 1)], [(9, 1)]]
    assert sum(len(step.copies) for step in trace.steps) == 3
    grants = [grant.pages for step in trace.steps for grant in step.grants if grant.first == 0]
    assert len({pages[:2] for pages in grants}) == 1, "full pages are shared"
    assert len({pages[2] for pages in grants}) == 4, "the page that is written to is not"


def test_a_fork_of_an_answer_goes_on_from_any_of_its_tokens() -> None:
    """A beam is a request whose answer so far is another's, with a token of its own at the end."""
    trace = Trace(cached_limits())
    trace.add(1, ask_for(PROMPT, 20))
    while len(trace.answers[1].tokens) < 5:
        trace.turn()
    answer = (*trace.answers[1].tokens[:4], 77)
    fork = EngineRequest(
        prompt=PROMPT, answer=answer, sampling=GREEDY, max_tokens=8, stop_ids=frozenset()
    )
    trace.add(2, fork)
    trace.cancel(1)  # its pages stay readable
    trace.finish()
    assert rows_of(trace, 2) == [(14, 1)]
    tokens = [*PROMPT, *answer]
    for token in trace.answers[2].tokens:
        assert token == next_token(tokens)
        tokens.append(token)
    assert len(tokens) == 10 + 8


def test_a_score_computes_every_position_that_it_scores() -> None:
    limits = cached_limits(token_budget=64, max_logit_rows=16)
    for score_from, max_tokens, chunk in (
        (6, 0, (5, 4)),
        (6, 3, (5, 5)),
        (1, 0, (0, 9)),
        (1, 3, (0, 10)),
    ):
        scored = ask_for(PROMPT, max_tokens, score_from=score_from, score_tops=2)
        trace = in_turn(limits, ask_for(PROMPT), scored)
        assert rows_of(trace, 2) == [chunk]


def test_what_is_cached_makes_room_for_what_is_needed() -> None:
    """The oldest is evicted, its last page first."""
    limits = cached_limits(pages=6, max_context=24)
    trace = in_turn(
        limits,
        ask_for(PROMPT, 1),
        ask_for(tuple(range(30, 38)), 1),
        ask_for(tuple(range(60, 72)), 1),
        ask_for(PROMPT, 1),
    )
    assert rows_of(trace, 4) == [(4, 6)]
    assert trace.scheduler.load().prefix_evictions > 0


def test_a_preempted_sequence_comes_back_through_the_cache() -> None:
    limits = cached_limits(slots=2, pages=8, page_size=2, max_context=14, token_budget=8)
    asks = [Ask(ask_for((1, 2), 12)), Ask(ask_for((3, 4), 12))]
    with_cache, without = run(limits, asks), run(limits_of(**sizes_of(limits)), asks)
    assert_answers(with_cache, asks)
    assert with_cache.scheduler.preemptions
    assert without.scheduler.prefill_tokens > with_cache.scheduler.prefill_tokens


def sizes_of(limits: EngineLimits) -> dict[str, int]:
    names = ("slots", "pages", "page_size", "max_context", "token_budget")
    return {name: getattr(limits, name) for name in names}


@st.composite
def alike_asks(draw: st.DrawFn, limits: EngineLimits) -> list[Ask]:
    """Requests that begin alike, some as others and their answers do, of two tenants."""
    asks: list[Ask] = []
    context = context_of(limits)
    for seed in range(draw(st.integers(2, 9))):
        scored = context > 3 and draw(st.integers(0, 4)) == 0
        size = draw(st.integers(2 if scored else 1, context - 1))
        prompt = list((PROMPT * 8)[:size])
        if draw(st.booleans()):
            prompt[draw(st.integers(0, size - 1))] = 90
        if asks and draw(st.booleans()):
            prompt = _next_turn(draw(st.sampled_from(asks)).engine_request, prompt, context)
        turn = draw(st.integers(0, 20))
        leaves = draw(st.integers(0, 3)) == 0
        engine_request = EngineRequest(
            prompt=tuple(prompt),
            sampling=Sampling(float(draw(st.booleans())), 0, 1.0, seed=seed % 2),
            max_tokens=draw(st.integers(0 if scored else 1, 12)),
            stop_ids=frozenset({draw(st.integers(0, 20))}),
            score_from=draw(st.integers(1, len(prompt) - 1)) if scored else None,
            score_tops=draw(st.none() | st.integers(0, 3)) if scored else None,
            account=draw(st.sampled_from("ab")),
            salt=draw(st.sampled_from(["", "", "other"])),
        )
        asks.append(Ask(engine_request, turn, turn + draw(st.integers(0, 9)) if leaves else None))
    return asks


def _next_turn(before: EngineRequest, more: list[int], context: int) -> list[int]:
    tokens = list(before.prompt)
    while len(tokens) < len(before.prompt) + before.max_tokens:
        tokens.append(next_token(tokens, before.sampling))
    return [*tokens, *more][: context - 1]


@st.composite
def small_limits(draw: st.DrawFn) -> EngineLimits:
    slots = draw(st.integers(1, 5))
    block = draw(st.sampled_from([1, 2, 4]))
    pages, page_size = draw(st.integers(4, 24)), draw(st.sampled_from([1, 2, 3, 4]))
    return EngineLimits(
        slots=slots,
        pages=pages,
        page_size=page_size,
        max_context=draw(st.integers(8, 40)),
        token_budget=slots - 1 + block + draw(st.integers(0, 12)),
        max_logit_rows=slots + draw(st.integers(0, 4)),
        prefill_block=block,
        short_context=draw(st.none() | st.integers(3, 20)),
        prefix_cache="tenant",
    )


@examples(st.data(), few=50, many=200)
def test_every_answer_is_the_one_without_a_cache(data: st.DataObject) -> None:
    """The fake runner reads every token back from the pages, so a wrong one changes the answer."""
    limits = data.draw(small_limits())
    asks = data.draw(alike_asks(limits))
    trace = run(limits, asks)
    assert_answers(trace, asks)
    scheduler = trace.scheduler
    assert scheduler.load().prefix_hits <= scheduler.load().prefix_queries


@examples(st.data(), few=40, many=150)
def test_pages_before_the_window_are_freed_and_missed_by_nobody(data: st.DataObject) -> None:
    drawn = data.draw(small_limits())
    limits = replace(
        drawn,
        short_context=None,
        windows=WindowLimits(every=data.draw(st.integers(1, 12))),
        prefix_cache=data.draw(st.sampled_from(["off", "tenant"])),
    )
    asks = [ask for ask in data.draw(alike_asks(limits)) if ask.engine_request.score_from is None]
    trace = run(limits, asks)
    assert_answers(trace, asks)


@pytest.mark.parametrize("sharing", ["off", "tenant"])
def test_a_long_answer_holds_no_more_pages_than_its_window(sharing: PrefixSharing) -> None:
    limits = replace(limits_of(), windows=WindowLimits(every=8), prefix_cache=sharing)
    trace = Trace(limits)
    trace.add(1, ask_for(PROMPT, 50))
    most = 0
    while trace.scheduler.load().live:
        trace.turn()
        most = max(most, trace.scheduler.load().pages_used)
    trace.finish()
    assert most <= 4
    assert_answers(trace, [Ask(ask_for(PROMPT, 50))])


@dataclass
class Owners:
    """Drives a cache as the scheduler does, without steps."""

    cache: PrefixCache
    page_size: int
    here: list[Sequence] = field(default_factory=list[Sequence])
    contents: dict[int, tuple[str, list[int]]] = field(default_factory=dict)  # salt and tokens

    def come(self, sequence: Sequence) -> None:
        pool = self.cache.pool
        found = self.cache.find(sequence, sequence.reusable)
        for number, page in enumerate(found.pages):
            salt, tokens = self.contents[page]
            assert salt == sequence.request.salt, "a page crosses from one tenant to another"
            assert tokens == sequence.tokens[: (number + 1) * self.page_size]
        if found.source:
            salt, tokens = self.contents[found.source]
            most = len(found.pages) * self.page_size + found.copied
            assert (salt, tokens[:most]) == (sequence.request.salt, sequence.tokens[:most])
        wanted = -(-len(sequence.tokens) // self.page_size) - len(found.pages)
        if pool.free - sum(not pool.holders(page) for page in found.pages) < wanted:
            return
        for page in found.pages:
            pool.share(page)
        sequence.pages = [*found.pages, *(pool.allocate() for _ in range(wanted))]
        sequence.paging.kept = len(found.pages)
        self.cache.follow(sequence)
        sequence.paging.written = len(sequence.tokens)
        for number, page in enumerate(sequence.pages):
            held = sequence.tokens[: (number + 1) * self.page_size]
            self.contents[page] = (sequence.request.salt, held)
        self.cache.note(sequence)
        self.here.append(sequence)

    def leave(self, number: int) -> None:
        sequence = self.here.pop(number % len(self.here))
        self.cache.leave(sequence)
        for page in reversed(sequence.pages):
            self.cache.pool.release(page)

    def check(self) -> None:
        pool = self.cache.pool
        held = Counter(page for sequence in self.here for page in sequence.pages)
        for page in range(1, pool.pages + 1):
            assert pool.holders(page) == held[page]
        assert pool.used == len(held)
        assert pool.idle <= pool.free


@examples(st.data(), few=40, many=150)
def test_a_page_is_held_by_those_that_have_it_and_found_by_those_alike(
    data: st.DataObject,
) -> None:
    page_size = data.draw(st.integers(1, 4))
    owners = Owners(PrefixCache(data.draw(st.integers(4, 20)), page_size), page_size)
    limits = limits_of(pages=1000, page_size=page_size, max_context=1000)
    for id in range(1, data.draw(st.integers(2, 30))):
        if owners.here and data.draw(st.booleans()):
            owners.leave(data.draw(st.integers(0, 50)))
        else:
            tokens = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=12))
            salt = data.draw(st.sampled_from(["ann", "bob"]))
            owners.come(new_sequence(id, salted(tuple(tokens), salt), limits))
        owners.check()
    while owners.here:
        owners.leave(0)
    owners.check()


def test_a_page_granted_anew_is_found_no_more() -> None:
    cache = PrefixCache(2, 2)
    owners = Owners(cache, 2)
    limits = limits_of()
    owners.come(new_sequence(1, salted((1, 2, 3), ""), limits))
    owners.leave(0)
    assert cache.find(new_sequence(2, salted((1, 2, 3), ""), limits), 2) == Prefix((1,))
    owners.come(new_sequence(3, salted((7, 7, 7), ""), limits))
    assert cache.find(new_sequence(4, salted((1, 2, 3), ""), limits), 2) == NOTHING
