"""A real model gives the same tokens with draft tokens, and samples from the same distribution."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from msgspec.structs import replace

from model_server.engine.buckets import closed_set
from model_server.engine.drafting.drafting import Drafting, DraftTokens
from model_server.engine.limits import EngineLimits
from model_server.engine.request import EngineRequest
from model_server.engine.running.runner import ModelRunner
from model_server.engine.sequence import Sequence
from model_server.engine.step_program import StepProgram
from model_server.engine.types import Sampling
from model_server.kernels import xla
from model_server.loading.random_weights import random_weights
from model_server.models.registry import make_recipe
from tests.model_server.engine.drafting.driving import answers, tokens_of
from tests.model_server.engine.running.test_runner import TINY
from tests.model_server.engine.test_grammar_states import Counting
from tests.model_server.tiny import PAGE, WholeSequences, empty_pages

SLOTS, TOP_K, SAMPLES = 8, 4, 1600
PROMPT = (3, 1, 4)
LIMITS = EngineLimits(
    slots=SLOTS,
    pages=64,
    page_size=PAGE,
    max_context=64,
    token_budget=24,
    max_logit_rows=SLOTS,
    prefill_block=4,
    max_prefill_blocks=4,
    draft_tokens=3,
)
WARM = Sampling(temperature=1.0, top_k=TOP_K, top_p=1.0, seed=0, logprobs=2)


class Tiny:
    """A tiny model, whole and behind a runner."""

    def __init__(self) -> None:
        self.recipe: Any = make_recipe(
            "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest", None, TINY
        )
        module = self.recipe.blueprint()
        leaves = random_weights(module.declarations, 3, lambda _: None)
        model = module.assemble([leaf.copy() for leaf in leaves])
        self._whole = WholeSequences(model, self.recipe, 32)
        pages = empty_pages(self.recipe, LIMITS.pages)
        program = StepProgram(module, leaves, pages, LIMITS, xla.KERNEL, vocab=self.recipe.vocab)
        self.runner = ModelRunner(program, leaves, pages, closed_set(SLOTS, (4,)))
        self._known: dict[tuple[int, ...], np.ndarray] = {}

    def chances(self, tokens: tuple[int, ...]) -> np.ndarray:
        """The distribution of the next token, of which the TOP_K likeliest are kept: f64[V]."""
        if tokens not in self._known:
            logits = self._whole.logits(tokens)[-1]
            kept = np.where(logits >= np.sort(logits)[-TOP_K], logits, -np.inf)
            self._known[tokens] = np.asarray(jax.nn.softmax(kept), np.float64)
        return self._known[tokens]


class Eager(Drafting):
    """Always waits to draft some tokens more of each sequence."""

    def __init__(self, draft_token: Callable[[Sequence, int], int], most: int = 1) -> None:
        """draft_token: of a sequence, so many places behind its last token."""
        super().__init__(most, SLOTS)
        self._draft = draft_token

    def pays_to_wait(self) -> bool:
        return True

    def choose(self) -> DraftTokens:
        left, made = SLOTS - len(self.live.running), dict[int, tuple[int, ...]]()
        for each in self.draftable:
            count = min(left, self.room(each))
            made[each.id] = tuple(self._draft(each, place) for place in range(count))
            left -= count
        return made


@pytest.fixture(scope="module")
def tiny() -> Iterator[Tiny]:
    made = Tiny()
    made.runner.compile(lambda _: None)
    yield made
    made.runner.close()


def asked(count: int, max_tokens: int) -> list[EngineRequest]:
    return [
        EngineRequest(
            prompt=PROMPT,
            sampling=replace(WARM, seed=seed),
            max_tokens=max_tokens,
            stop_ids=frozenset(),
        )
        for seed in range(count)
    ]


def test_a_seed_gives_the_same_tokens_and_scores_with_draft_tokens(tiny: Tiny) -> None:
    plain = answers(tiny.runner, asked(4, 20))
    known = [tokens_of(each) for each in plain]

    def draft_token(sequence: Sequence, ahead: int) -> int:
        """Every third one is wrong."""
        place = len(sequence.tokens) - len(PROMPT) + ahead
        return known[sequence.id - 1][place] ^ (place % 3 == 0)

    drafting = Eager(draft_token)
    drafted = answers(tiny.runner, asked(4, 20), drafting)
    assert drafting.accepted > 10
    assert drafting.proposed - drafting.accepted > 10
    for one, other in zip(plain, drafted, strict=True):
        assert tokens_of(one) == tokens_of(other)
        for result, twin in zip(one, other, strict=True):
            assert result.logprob == pytest.approx(twin.logprob, abs=1e-4)
            assert [token for token, _ in result.top] == [token for token, _ in twin.top]


def test_a_token_counts_the_draft_tokens_before_it_and_keeps_to_its_own_mask(tiny: Tiny) -> None:
    """Penalties, bad words, ends held back and a grammar, with several draft tokens in a row."""
    counted = replace(WARM, presence_penalty=1.5, frequency_penalty=0.5, repetition_penalty=1.3)
    barred = tuple((first, second) for first in range(0, 97, 2) for second in (5, 50))
    held = replace(counted, bad_words=barred, min_tokens=9, ends=(7, 8, 9), logit_bias=((3, 1.5),))
    grammar = Counting(20, modulus=3, fussy=4)
    samplings = (counted, held, replace(WARM, guided=True), replace(held, guided=True))
    requests = [
        replace(each, sampling=sampling, grammar=grammar if sampling.guided else None)
        for each, sampling in zip(asked(4, 20), samplings, strict=True)
    ]
    for request in requests:
        (plain,) = answers(tiny.runner, [request])
        known = tokens_of(plain)

        def draft_token(
            sequence: Sequence, ahead: int, known: list[int] = known, step: int = 3
        ) -> int:
            place = len(sequence.tokens) - len(PROMPT) + ahead
            return known[place] + step * (place % 5 == 4)

        drafting = Eager(draft_token, 3)
        (drafted,) = answers(tiny.runner, [request], drafting)
        assert tokens_of(drafted) == known, request.sampling
        assert drafting.accepted > 8, request.sampling
        assert drafting.accepted < drafting.proposed or request.grammar, request.sampling
        for result, twin in zip(plain, drafted, strict=True):
            assert result.logprob == pytest.approx(twin.logprob, abs=1e-4)


@pytest.mark.nightly
def test_draft_tokens_leave_the_distribution_as_it_is(tiny: Tiny) -> None:
    """Chi-square of the first three tokens together: 64 outcomes, many after draft tokens."""
    drafting = Eager(lambda sequence, _: int(tiny.chances(tuple(sequence.tokens)).argmax()))
    requests = asked(SAMPLES, 3)
    groups = [requests[first : first + SLOTS // 2] for first in range(0, SAMPLES, SLOTS // 2)]
    made = Counter(
        tuple(tokens_of(results))
        for group in groups  # nothing is drafted while requests wait for a slot
        for results in answers(tiny.runner, group, drafting)
    )
    assert drafting.accepted > SAMPLES / 10
    expected: dict[tuple[int, ...], float] = {}
    for places in itertools.product(range(TOP_K), repeat=3):
        tokens, chance = PROMPT, 1.0
        for place in places:
            row = tiny.chances(tokens)
            token = int(np.argsort(row)[-1 - place])
            tokens, chance = (*tokens, token), chance * row[token]
        expected[tokens[len(PROMPT) :]] = chance * SAMPLES
    assert made.keys() <= expected.keys()
    often = [outcome for outcome in expected if expected[outcome] >= 5]
    pairs = [(made[outcome], expected[outcome]) for outcome in often]
    rest = SAMPLES - sum(seen for seen, _ in pairs), SAMPLES - sum(want for _, want in pairs)
    if rest[1] >= 5:
        pairs.append(rest)
    square = sum((seen - want) ** 2 / want for seen, want in pairs)
    free = len(pairs) - 1
    # One in a thousand exceeds it, by Wilson and Hilferty's approximation; the seeds are fixed.
    most = free * (1 - 2 / (9 * free) + 3.09 * (2 / (9 * free)) ** 0.5) ** 3
    assert square < most
