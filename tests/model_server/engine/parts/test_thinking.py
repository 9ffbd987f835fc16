"""Reasoning ends at its budget, wherever and however the answer is computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from msgspec.structs import replace

from model_server.config import PrefixSharing
from model_server.engine.engine import EngineRequest
from model_server.engine.limits import WindowLimits
from model_server.engine.parts.thinking import (
    BoundedState,
    ReasoningForm,
    ReasoningTrack,
    ThinkingBudget,
    Thoughts,
)
from model_server.engine.types import Sampling
from tests.model_server.engine.drafting.fake_drafted_runner import FakeDraftedRunner
from tests.model_server.engine.drafting.test_drafting import looping
from tests.model_server.engine.fake_runner import (
    GREEDY,
    VOCAB,
    FakeRunner,
    logprob,
    next_token,
    truly_likeliest,
)
from tests.model_server.engine.parts.test_grammar import LIMITS, Forcing, served
from tests.model_server.examples import examples

ENDS = (50, 7, 51)  # of which the second is the closing mark
AGAIN = 32


def text_of(token: int) -> bytes:
    """Every tenth token opens the reasoning, and every tenth closes it."""
    return {3: b"<", 7: b">"}.get(token % 10, b"x")


def budget_of(most: int, *, is_open: bool) -> ThinkingBudget:
    return ThinkingBudget(most, ENDS, ReasoningForm(b"<", b">", is_open, text_of))


def asked(
    prompt: Sequence[int],
    most: int,
    *,
    is_open: bool = True,
    sampling: Sampling = GREEDY,
    answer: tuple[int, ...] = (),
    tokens: int = 50,
) -> EngineRequest:
    return EngineRequest(
        prompt=tuple(prompt),
        sampling=sampling,
        max_tokens=tokens,
        stop_ids=frozenset(),
        answer=answer,
        settings=(budget_of(most, is_open=is_open),),
    )


def alone(request: EngineRequest, window: int | None = None) -> list[int]:
    """The answer, one token after the other."""
    budget = request.setting(ThinkingBudget)
    assert budget is not None
    tokens, is_open, left = list(request.prompt), budget.form.is_open, budget.most
    due: list[int] = []
    for place in range(request.max_tokens):
        if is_open and not left and not due:
            due = list(ENDS)
        given = bool(due)
        token = due.pop(0) if due else next_token(tokens, request.sampling, window)
        tokens.append(token)
        mark = text_of(token)
        if is_open:
            is_open = mark != b">"
            left -= is_open and not given
        elif mark == b"<":
            is_open, left = True, max(left, AGAIN) if place else left
    return tokens[len(request.prompt) :]


def spent(tokens: Sequence[int], *, is_open: bool) -> int:
    """Tokens of the first reasoning of an answer that begins with it."""
    texts = [text_of(token) for token in tokens[0 if is_open else 1 :]]
    return texts.index(b">") if b">" in texts else len(texts)


@examples(
    sizes=st.lists(
        st.tuples(st.integers(1, 14), st.integers(0, 12), st.booleans()), min_size=1, max_size=7
    ),
    tops=st.integers(0, 3),
    pages=st.integers(17, 40),
    window=st.sampled_from([None, 6]),
    cache=st.sampled_from(["off", "tenant"]),
    steps=st.sampled_from([1, 4]),
    few=30,
    many=100,
)
def test_every_answer_is_the_one_of_single_steps(
    sizes: list[tuple[int, int, bool]],
    tops: int,
    pages: int,
    window: int | None,
    cache: PrefixSharing,
    steps: int,
) -> None:
    """In any batch, with preemptions, launches of several steps, and true log-probabilities."""
    windows = WindowLimits(every=window)
    limits = replace(
        LIMITS, pages=pages, windows=windows, prefix_cache=cache, steps_per_launch=steps
    )
    sampling = replace(GREEDY, logprobs=tops)
    requests = [
        asked(range(size), most, is_open=is_open, sampling=sampling)
        for size, most, is_open in sizes
    ]
    inbox, ids, _ = served(limits, requests)
    for id, request in zip(ids, requests, strict=True):
        wanted, tokens = alone(request, window), list(request.prompt)
        assert inbox.tokens(id) == wanted
        for result in inbox.results[id]:
            assert result.token is not None
            if window is None:
                assert result.logprob == logprob(tokens, result.token)
                if result.token != next_token(tokens):  # a given one
                    assert result.top == truly_likeliest(tokens, tops)
            tokens.append(result.token)


def test_the_closing_mark_comes_after_as_many_tokens_as_the_budget_has() -> None:
    prompts = [tuple(range(size, 2 * size)) for size in range(1, 9)]
    for most in (0, 1, 2, 5):
        inbox, ids, _ = served(LIMITS, [asked(prompt, most) for prompt in prompts])
        ended = 0
        for id in ids:
            tokens = inbox.tokens(id)
            free = spent(tokens, is_open=True)
            assert free <= most + 1, "of the given tokens one comes before the mark"
            if free == most + 1:
                assert tuple(tokens[most : most + 3]) == ENDS
                ended += 1
        assert ended > 2, most


@examples(
    size=st.integers(1, 14),
    most=st.integers(0, 12),
    is_open=st.booleans(),
    begun=st.integers(0, 49),
    few=60,
    many=300,
)
def test_another_replica_counts_what_the_answer_has_already(
    size: int, most: int, is_open: bool, begun: int
) -> None:
    whole = alone(asked(range(size), most, is_open=is_open))
    rest = asked(range(size), most, is_open=is_open, answer=tuple(whole[:begun]))
    inbox, (id,), _ = served(LIMITS, [rest])
    assert inbox.tokens(id) == whole[begun:]


def test_draft_tokens_change_nothing_and_come_true_within_the_reasoning() -> None:
    limits, prompt = looping()
    limits = replace(limits, draft_tokens=6, max_logit_rows=12, token_budget=24, prefill_block=4)
    for runner in (FakeRunner, FakeDraftedRunner):
        requests = [
            asked(prompt, most, is_open=is_open, tokens=120)
            for most in (0, 1, 7, 40, 90)
            for is_open in (True, False)
        ]
        inbox, ids, stats = served(replace(limits, slots=4), requests, runner)
        for id, request in zip(ids, requests, strict=True):
            assert inbox.tokens(id) == alone(request, limits.windows.every)
        assert stats.draft_tokens_accepted > 10


def test_a_sampling_with_penalties_is_its_own_again_behind_the_mark() -> None:
    """What the device gets: a list of one token for each given one, then all tokens so far."""
    sampling = replace(GREEDY, presence_penalty=0.5, bad_words=((50,),), allowed=(1, 2, 3))
    seen: list[tuple[Sampling, tuple[int, ...]]] = []

    class Recording(FakeRunner):
        def launch(self, *steps: object):  # type: ignore[no-untyped-def]
            for step in steps:
                seen.extend((each.sampling, each.tokens) for each in step.samplings)  # type: ignore[attr-defined]
            return super().launch(*steps)  # type: ignore[arg-type]

    inbox, (id,), _ = served(LIMITS, [asked((1, 2), 2, sampling=sampling, tokens=8)], Recording)
    assert tuple(inbox.tokens(id)[2:5]) == ENDS
    assert [each.allowed for each, _ in seen] == [sampling.allowed, (50,), (7,), (51,), (1, 2, 3)]
    assert all(not each.edits & ~4 for each, _ in seen[1:4])
    assert seen[-1] == (sampling, (1, 2, *inbox.tokens(id)[:5]))


def test_requests_without_a_budget_cost_nothing() -> None:
    plain = replace(asked((1, 2, 3), 5), settings=())
    _, _, bounded = served(LIMITS, [asked((1, 2, 3), 49)])
    inbox, (id,), stats = served(LIMITS, [plain])
    assert stats.steps <= bounded.steps
    assert inbox.tokens(id)[:5] == alone(asked((1, 2, 3), 5))[:5]


def _bits(*tokens: int) -> bytes:
    flags = np.zeros(128, np.uint8)
    flags[list(tokens)] = 1
    return np.packbits(flags, bitorder="little").tobytes()


def test_under_a_grammar_the_mask_allows_the_mark_alone_once_the_grammar_does() -> None:
    grammar = Forcing(30, run=0)  # anything
    state = BoundedState(grammar, Thoughts(budget_of(2, is_open=True)))
    assert state.mask() == _bits(*range(VOCAB))
    for token in (1, 2):
        state.accept(token)
    for token in ENDS:
        assert state.mask() == _bits(token)
        state.accept(token)
    assert state.mask() == _bits(*range(VOCAB))


def test_looking_at_draft_tokens_counts_none_of_them() -> None:
    form = ReasoningForm(b"<", b">", True, text_of)
    thoughts = Thoughts(ThinkingBudget(3, ENDS, form), (1,))
    ahead = thoughts.branched()
    for token in (1, 7, 1):
        ahead.take(token)
    assert (thoughts.room, ahead.room) == (2, None)


def test_a_grammar_that_forbids_the_mark_goes_on_until_it_allows_it() -> None:
    grammar = Forcing(30, every=5, run=3)  # after a multiple of 5 three tokens are forced
    state = BoundedState(grammar, Thoughts(budget_of(1, is_open=True)))
    state.mask()
    state.accept(5)
    for token in (6, 8 - 1, 8):  # 7 closes by itself
        assert state.mask() == _bits(token)
        state.accept(token)
    assert state.mask() == _bits(*range(VOCAB))


@examples(
    sizes=st.lists(st.tuples(st.integers(1, 14), st.integers(0, 9)), min_size=1, max_size=5),
    pages=st.integers(17, 40),
    few=20,
    many=60,
)
def test_guided_answers_end_their_reasoning_too(sizes: list[tuple[int, int]], pages: int) -> None:
    limits = replace(LIMITS, pages=pages)
    requests = [
        replace(
            asked(range(size), most, sampling=replace(GREEDY, guided=True)),
            grammar=Forcing(40, run=0),
        )
        for size, most in sizes
    ]
    inbox, ids, _ = served(limits, requests)
    for id, request in zip(ids, requests, strict=True):
        assert inbox.tokens(id) == alone(replace(request, max_tokens=40))


def test_marks_are_found_across_tokens_and_a_blank_start_is_none() -> None:
    words = {1: b"\n", 2: b"<th", 3: b"ink>", 4: b"</think", 5: b"> So", 6: b"a"}
    form = ReasoningForm(b"<think>", b"</think>", False, words.__getitem__)
    budget = ThinkingBudget(2, (4, 5), form)
    thoughts = Thoughts(budget, (1, 2, 3))
    assert (thoughts.room, thoughts.next) == (2, None)
    for token in (6, 6):
        thoughts.take(token)
    assert (thoughts.room, thoughts.next) == (0, 4)
    thoughts.take(4)
    assert thoughts.next == 5
    thoughts.take(5)
    assert (thoughts.room, thoughts.next) == (None, None)
    for token in (2, 3, *[6] * (AGAIN - 1)):
        thoughts.take(token)
    assert thoughts.next is None
    thoughts.take(6)
    assert thoughts.next == 4
    assert Thoughts(budget, (1, 2, 6)).room is None, "it answers without reasoning"


def test_tokens_between_the_marks_are_counted_and_the_marks_are_not() -> None:
    track = ReasoningTrack(ReasoningForm(b"<", b">", False, text_of))
    counts: list[int] = []
    for token in (3, 1, 1, 7, 1, 3, 1, 7):
        track.take(token)
        counts.append(track.tokens)
    assert counts == [0, 1, 2, 2, 2, 2, 3, 3]
