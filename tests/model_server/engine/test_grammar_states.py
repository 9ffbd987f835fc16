"""Guided sequences: every token is one that the guide allowed after all tokens before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced

import numpy as np
from hypothesis import strategies as st
from msgspec.structs import replace

from model_server.config import PrefixSharing
from model_server.engine.engine import Engine, EngineRequest
from model_server.engine.limits import EngineLimits, WindowLimits
from sax.errors import InvalidRequest
from tests.model_server.engine.conftest import Inbox, Start
from tests.model_server.engine.fake_drafts import FakeDrafts, bits_of
from tests.model_server.engine.fake_runner import (
    GREEDY,
    VOCAB,
    FakeRunner,
    first_allowed,
    next_token,
)
from tests.model_server.examples import examples

LIMITS = EngineLimits(
    slots=4,
    pages=24,
    page_size=4,
    max_context=64,
    token_budget=16,
    max_logit_rows=8,
    prefill_block=2,
)


@dataclass
class Counting(FakeDrafts):
    """Allows only tokens that leave the answer's length as remainder; ends after `length`."""

    length: int
    modulus: int = 5
    stuck_at: int = -1  # from here on no token is allowed
    fussy: int = 0  # one of so many tokens does not fit; 0: all fit
    taken: list[int] = field(default_factory=list)
    slow: int = 0  # steps for which each fourth mask is late
    waited: int = 0
    refused: bool = False

    def begin(
        self, answer: Sequence[int], allowed: tuple[int, ...] | None, left: int | None
    ) -> Counting:
        return replaced(self, taken=list(answer))

    @property
    def finished(self) -> bool:
        return len(self.taken) == self.length

    @property
    def late(self) -> bool:
        """As if the mask were still being made, for as many questions as steps."""
        self.waited += self.waited > 0
        return 0 < self.waited <= self.slow

    def fits(self, token: int) -> bool:
        self.refused = bool(self.fussy) and (token + len(self.taken)) % self.fussy == 0
        return not self.refused

    def accept(self, token: int) -> None:
        assert token % self.modulus == len(self.taken) % self.modulus, "it was not allowed"
        self.taken.append(token)
        self.refused, self.waited = False, 0

    def forced(self) -> tuple[int, ...]:
        return ()

    def mask(self) -> bytes | None:
        if self.waited < self.slow and len(self.taken) % 4 == 1:
            self.waited += 1
            return None
        if len(self.taken) == self.stuck_at:
            raise InvalidRequest("stuck")
        flags = np.zeros(128, np.uint8)
        flags[len(self.taken) % self.modulus : VOCAB : self.modulus] = 1
        if self.refused:
            flags[np.flatnonzero((np.arange(128) + len(self.taken)) % self.fussy == 0)] = 0
        return np.packbits(flags, bitorder="little").tobytes()


def alone(request: EngineRequest, grammar: Counting, window: int | None = None) -> list[int]:
    """The answer, by hand."""
    guide, tokens = grammar.begin((), None, None), list(request.prompt)
    while not guide.finished and len(tokens) < len(request.prompt) + request.max_tokens:
        if (made := guide.mask()) is None:
            continue
        token = first_allowed(next_token(tokens, request.sampling, window), bits_of(made))
        if guide.fits(token):
            guide.accept(token)
            tokens.append(token)
    return tokens[len(request.prompt) :]


def asked(size: int, grammar: Counting | None, max_tokens: int = 40) -> EngineRequest:
    return EngineRequest(
        prompt=tuple(range(size)),
        sampling=replace(GREEDY, guided=grammar is not None),
        max_tokens=max_tokens,
        stop_ids=frozenset(),
        grammar=grammar,
    )


def test_guided_and_free_sequences_of_one_step_get_their_own_answers(start: Start) -> None:
    engine, inbox = start(FakeRunner(LIMITS))
    requests = [
        asked(3, Counting(9)),
        asked(7, None, 12),
        asked(5, Counting(20, modulus=7)),
        asked(6, Counting(30), 10),
    ]
    for request in requests:
        id = engine.submit(request)
        if isinstance(request.grammar, Counting):
            wanted = alone(request, request.grammar)
            assert inbox.end(id) == ("complete" if len(wanted) < request.max_tokens else "length")
            assert inbox.tokens(id) == wanted
        else:
            assert inbox.end(id) == "length"


def test_preempted_sequences_go_on_where_their_guides_are(start: Start) -> None:
    engine, inbox = start(FakeRunner(replace(LIMITS, pages=16)))
    requests = {engine.submit(asked(n, Counting(30))): n for n in (9, 10, 11, 12, 13, 14)}
    for id, size in requests.items():
        assert inbox.end(id) == "complete"
        assert inbox.tokens(id) == alone(asked(size, Counting(30)), Counting(30))
    assert engine.stats().preemptions > 0


def test_a_guide_that_allows_nothing_ends_its_own_sequence_with_its_error(start: Start) -> None:
    engine, inbox = start(FakeRunner(LIMITS))
    stuck, other = engine.submit(asked(4, Counting(9, stuck_at=3))), engine.submit(asked(5, None))
    assert inbox.end(other) == "length"
    assert isinstance(inbox.end(stuck), InvalidRequest)
    assert inbox.tokens(stuck) == alone(asked(4, Counting(3)), Counting(3))


def test_an_answer_begun_elsewhere_is_taken_in_first(start: Start) -> None:
    engine, inbox = start(FakeRunner(LIMITS))
    whole = alone(asked(5, Counting(12)), Counting(12))
    id = engine.submit(replace(asked(5, Counting(12)), answer=tuple(whole[:4])))
    assert inbox.end(id) == "complete"
    assert inbox.tokens(id) == whole[4:]


@examples(
    sizes=st.lists(st.integers(1, 14), min_size=1, max_size=8),
    fussy=st.integers(2, 4),
    slow=st.integers(0, 3),
    pages=st.integers(16, 24),
    window=st.sampled_from([None, 6]),
    cache=st.sampled_from(["off", "tenant"]),
    few=15,
    many=40,
)
def test_a_token_that_does_not_fit_or_whose_mask_is_late_is_chosen_anew_where_it_was(
    sizes: list[int], fussy: int, slow: int, pages: int, window: int | None, cache: PrefixSharing
) -> None:
    limits = replace(LIMITS, pages=pages, windows=WindowLimits(every=window), prefix_cache=cache)
    check_together(limits, Counting(30, modulus=7, fussy=fussy, slow=slow), sizes)


def check_together(limits: EngineLimits, grammar: Counting, sizes: Sequence[int]) -> None:
    """Prompts of these sizes have the answers that each has alone."""
    inbox = Inbox()
    engine = Engine(FakeRunner(limits), inbox.deliver)
    try:
        asked_for = {engine.submit(asked(size, grammar)): size for size in sizes}
        for id, size in asked_for.items():
            assert inbox.end(id) == "complete"
            assert inbox.tokens(id) == alone(asked(size, grammar), grammar, limits.windows.every)
    finally:
        engine.close()


def test_neighbours_go_on_while_a_mask_is_late(start: Start) -> None:
    engine, inbox = start(FakeRunner(LIMITS))
    slow = engine.submit(asked(4, Counting(9, slow=10**9)))
    for size in (3, 5):
        id = engine.submit(asked(size, Counting(9)))
        assert inbox.end(id) == "complete"
        assert inbox.tokens(id) == alone(asked(size, Counting(9)), Counting(9))
    assert slow not in inbox.ends
    engine.cancel(slow)
    assert inbox.end(slow) == "cancelled"


def test_scores_of_a_prompt_come_although_the_first_mask_is_late(start: Start) -> None:
    engine, inbox = start(FakeRunner(LIMITS))

    @dataclass
    class SlowAtFirst(Counting):
        def mask(self) -> bytes | None:
            self.waited += 1
            return None if self.waited < 3 else super().mask()

        def begin(
            self, answer: Sequence[int], allowed: tuple[int, ...] | None, left: int | None
        ) -> Counting:
            return SlowAtFirst(self.length)

    request = replace(asked(6, None), score_from=1, score_tops=0)
    id = engine.submit(
        replace(request, grammar=SlowAtFirst(5), sampling=asked(1, Counting(1)).sampling)
    )
    assert inbox.end(id) == "complete"
    assert sum(len(result.target_logprobs) for result in inbox.results[id]) == 5
