"""Forced tokens are computed together, and the answer is the one that single steps give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from msgspec.structs import replace

from model_server.config import PrefixSharing
from model_server.engine.buckets import Bucket
from model_server.engine.engine import Engine, EngineRequest, EngineStats
from model_server.engine.limits import EngineLimits, WindowLimits
from model_server.engine.paging.allocation import Allocation
from model_server.engine.parts.grammar import ForcedRows
from model_server.engine.registry import new_sequence
from model_server.engine.step_builder import StepBuilder
from model_server.engine.step_times import StepTimes
from tests.model_server.engine.conftest import Inbox
from tests.model_server.engine.fake_drafts import FakeDrafts, bits_of
from tests.model_server.engine.fake_runner import (
    GREEDY,
    VOCAB,
    FakeRunner,
    first_allowed,
    likeliest,
    logprob,
    next_token,
)
from tests.model_server.examples import examples

LIMITS = EngineLimits(
    slots=4,
    pages=40,
    page_size=4,
    max_context=64,
    token_budget=16,
    max_logit_rows=8,
    prefill_block=4,
)


@dataclass
class Forcing(FakeDrafts):
    """After a token that `every` divides, the next `run` tokens count up from it; then any odd one.

    The answer is complete after `length` tokens.
    """

    length: int
    every: int = 3
    run: int = 5
    skips: bool = True
    taken: list[int] = field(default_factory=list)
    due: list[int] = field(default_factory=list)
    masked: bool = False

    def begin(
        self, answer: Sequence[int], allowed: tuple[int, ...] | None, left: int | None
    ) -> Forcing:
        made = Forcing(self.length, self.every, self.run, self.skips)
        for token in answer:
            made.accept(token)
        return made

    @property
    def finished(self) -> bool:
        return len(self.taken) == self.length

    @property
    def late(self) -> bool:
        return False

    def fits(self, token: int) -> bool:
        return True

    def accept(self, token: int) -> None:
        assert not self.finished, "nothing may follow"
        self.taken.append(token)
        if self.due:
            assert token == self.due.pop(0), "it was not allowed"
            return
        self.masked = False
        if token % self.every == 0:
            left = self.length - len(self.taken)
            self.due = [(token + n) % VOCAB for n in range(1, self.run + 1)][:left]

    def forced(self) -> tuple[int, ...]:
        return tuple(self.due) if self.skips and self.masked else ()

    def mask(self) -> bytes:
        self.masked = True
        flags = np.zeros(128, np.uint8)
        flags[self.due[0] if self.due else slice(0, VOCAB)] = 1
        return np.packbits(flags, bitorder="little").tobytes()


def asked(size: int, grammar: Forcing, max_tokens: int = 40, tops: int = 0) -> EngineRequest:
    return EngineRequest(
        prompt=tuple(range(size)),
        sampling=replace(GREEDY, guided=True, logprobs=tops),
        max_tokens=max_tokens,
        stop_ids=frozenset({11}),
        grammar=grammar,
    )


def alone(request: EngineRequest, window: int | None = None) -> list[int]:
    """The answer, one token after the other."""
    assert isinstance(request.grammar, Forcing)
    guide, tokens = request.grammar.begin((), None, None), list(request.prompt)
    while len(tokens) < len(request.prompt) + request.max_tokens:
        mask = bits_of(guide.mask())
        tokens.append(first_allowed(next_token(tokens, request.sampling, window), mask))
        if tokens[-1] in request.stop_ids:
            break
        guide.accept(tokens[-1])
        if guide.finished:
            break
    return tokens[len(request.prompt) :]


def served(
    limits: EngineLimits,
    requests: Sequence[EngineRequest],
    runner: Callable[[EngineLimits], FakeRunner] = FakeRunner,
) -> tuple[Inbox, list[int], EngineStats]:
    inbox = Inbox()
    engine = Engine(runner(limits), inbox.deliver)
    try:
        ids = [engine.submit(request) for request in requests]
        for id in ids:
            inbox.end(id)
        return inbox, ids, engine.stats()
    finally:
        engine.close()


@examples(
    sizes=st.lists(st.tuples(st.integers(1, 14), st.integers(1, 40)), min_size=1, max_size=8),
    every=st.integers(1, 4),
    run=st.integers(1, 9),
    tops=st.integers(0, 3),
    pages=st.integers(17, 40),
    window=st.sampled_from([None, 6]),
    cache=st.sampled_from(["off", "tenant"]),
    few=30,
    many=60,
)
def test_answers_and_their_scores_are_those_of_single_steps(
    sizes: list[tuple[int, int]],
    every: int,
    run: int,
    tops: int,
    pages: int,
    window: int | None,
    cache: PrefixSharing,
) -> None:
    limits = replace(LIMITS, pages=pages, windows=WindowLimits(every=window), prefix_cache=cache)
    requests = [asked(size, Forcing(30, every, run), most, tops) for size, most in sizes]
    inbox, ids, _ = served(limits, requests)
    for id, request in zip(ids, requests, strict=True):
        wanted, tokens = alone(request, window), list(request.prompt)
        assert inbox.tokens(id) == wanted
        for result in inbox.results[id]:
            assert result.token is not None
            if window is None:  # the fake scores by all pages, of which some are freed
                assert result.logprob == logprob(tokens, result.token)
                assert result.top == likeliest(tokens, result.token, tops)
            tokens.append(result.token)
        ended = wanted[-1] in request.stop_ids and "stop"
        assert inbox.ends[id] == ended or ("complete" if len(wanted) == 30 else "length")


def test_a_run_of_forced_tokens_takes_one_step() -> None:
    stats = {}
    for skips in (False, True):
        request = asked(3, Forcing(30, every=1, run=4, skips=skips))
        _, _, stats[skips] = served(replace(LIMITS, page_size=64, pages=2), [request])
    assert stats[True].tokens == stats[False].tokens == 30
    assert stats[False].steps >= 30
    assert stats[True].steps <= 2 + 2 * 6  # a free token, then four forced ones


def test_tokens_that_the_device_must_count_are_chosen_one_by_one() -> None:
    request = asked(3, Forcing(20, every=1, run=4))
    for edit in ({"presence_penalty": 0.5}, {"bad_words": ((7, 8),)}):
        edited = replace(request, sampling=replace(request.sampling, **edit))
        _, _, stats = served(replace(LIMITS, page_size=64, pages=2), [edited])
        assert stats.steps >= 20, edit


def test_a_row_of_forced_tokens_must_be_worth_its_block() -> None:
    """Of five tokens beside another sequence, four decodes are saved: two steps' worth."""
    for block_s, rows in ((1.0, 1), (3.0, 1), (9.0, 0)):
        times = StepTimes((Bucket(4, 0), Bucket(4, 1)), (1.0, block_s), 4)
        sequence = new_sequence(1, asked(3, Forcing(30, every=1, run=5)), LIMITS)
        guide = Forcing(30, every=1, run=5)
        guide.accept(3)
        guide.mask()
        sequence.tokens.append(3)
        sequence.launched, sequence.slot, sequence.pages = 4, 0, [1, 2, 3]
        limits = replace(LIMITS, prefill_block=8)
        forced = ForcedRows(limits, times)
        forced.begin(StepBuilder(Allocation(limits), []), 2)
        row = forced.row(sequence, guide)
        assert [row and row.tokens] == ([(4, 5, 6, 7, 8)] if rows else [None]), block_s
