"""Real models with layers that keep a state, in steps of the engine, give their own tokens."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from msgspec.structs import replace

from model_server.config import PrefixSharing
from model_server.engine.buckets import Bucket, closed_set
from model_server.engine.limits import EngineLimits, WindowLimits
from model_server.engine.paging.window_pages import window_page_count
from model_server.engine.request import EngineRequest
from model_server.engine.running.runner import ModelRunner
from model_server.engine.sequence import Sequence
from model_server.engine.step_program import StepProgram
from model_server.kernels import xla
from model_server.kernels.pages import allocate
from tests.model_server.engine.drafting.driving import answers, tokens_of
from tests.model_server.engine.drafting.test_real_draft_tokens import WARM, Eager
from tests.model_server.engine.paging.test_shared_pages import prompts_of, served, storm
from tests.model_server.models.family_cases import load_leaves
from tests.model_server.tiny import PAGE, WholeSequences

LIMITS = EngineLimits(
    slots=3,
    pages=30,
    page_size=PAGE,
    max_context=64,
    token_budget=18,
    max_prefill_blocks=4,
    max_logit_rows=3,
    prefill_block=4,
    windows=WindowLimits(sliding=2, recurrent=True),
)
# A step has rows for five draft tokens of three sequences, but pages for three states behind them.
DRAFTED = replace(
    LIMITS,
    pages=13,  # not enough for three long sequences: some are preempted
    max_decodes=8,
    token_budget=24,
    max_logit_rows=8,
    max_prefill_blocks=1,
    prefix_cache="tenant",
    draft_tokens=3,
)
# One size of steps: XLA's products round differently in another.
ONE_SIZE = (Bucket(8, 0), Bucket(8, 1))
# Layers of Nemotron-H may keep nothing, those of Falcon-H1 keep keys and values as well.
MORE = ("mamba2", "qwen3_next", "nemotron_h", "falcon_h1", "minimax")
CASES = ["lfm2", *(pytest.param(n, marks=pytest.mark.nightly) for n in MORE)]


class Tiny:
    """A golden case's model."""

    def __init__(self, name: str) -> None:
        self._module, self._leaves, recipe = load_leaves(name)
        self.recipe: Any = recipe
        model = self._module.assemble(self._leaves)
        self._whole = WholeSequences(model, recipe, LIMITS.max_context)

    def runner(
        self, limits: EngineLimits, buckets: Seq[Bucket] = closed_set(LIMITS.slots, (1, 2, 4))
    ) -> ModelRunner:
        leaves = [leaf.copy() for leaf in self._leaves]
        window_layers = tuple(window is not None for window in self.recipe.windows)
        counts = tuple(window_page_count(limits) if its else limits.pages for its in window_layers)
        pages = allocate(self.recipe.cache(1), counts, PAGE, jnp.dtype("float32"))
        program = StepProgram(
            self._module,
            leaves,
            pages,
            limits,
            xla.KERNEL,
            vocab=self.recipe.vocab,
            window_layers=window_layers,
        )
        runner = ModelRunner(program, leaves, pages, buckets)
        runner.compile(lambda _: None)
        runner.warm(0)
        return runner

    def lacking(self, prompt: Seq[int], answer: Seq[int]) -> float:
        """By how much a token's logit is below the highest, at most, computed all at once."""
        tokens = [*prompt, *answer]
        logits = self._whole.logits(tokens)[len(prompt) - 1 : -1]
        chosen = np.take_along_axis(logits, np.asarray(answer)[:, None], axis=-1)
        return float((logits.max(-1) - chosen[:, 0]).max())


@pytest.fixture(scope="module", params=CASES)
def tiny(request: pytest.FixtureRequest) -> Tiny:
    return Tiny(request.param)


@pytest.mark.parametrize("sharing", [pytest.param("off", marks=pytest.mark.nightly), "tenant"])
def test_tokens_are_those_of_whole_sequences(tiny: Tiny, sharing: PrefixSharing) -> None:
    got, scheduler = served(tiny.runner(replace(LIMITS, prefix_cache=sharing)), storm())
    assert (scheduler.load().prefix_hits > 0) == (sharing != "off")
    assert scheduler.load().window_pages_used == 0
    for prompt, answer in zip(prompts_of(storm(), got), got, strict=True):
        # Two tokens of Mamba-2 are equally likely but for the last bit, which no two CPUs share.
        assert tiny.lacking(prompt, answer) < 1e-5


class Pair(NamedTuple):
    """Runners of one model, without draft tokens and with them."""

    tiny: Tiny
    plain: ModelRunner
    drafted: ModelRunner


@pytest.fixture(scope="module")
def pair(tiny: Tiny) -> Pair:
    plain, drafted = (
        tiny.runner(replace(DRAFTED, draft_tokens=count), ONE_SIZE) for count in (0, 3)
    )
    return Pair(tiny, plain, drafted)


def mostly(known: Seq[Seq[int]]) -> Callable[[Sequence, int], int]:
    """Draft tokens of which every third is wrong. known: the answer of each sequence, by id."""

    def draft_token(sequence: Sequence, ahead: int) -> int:
        place, answer = len(sequence.tokens) - sequence.prompt + ahead, known[sequence.id - 1]
        right = answer[place] if place < len(answer) else 0
        return right ^ (place % 3 == 0)

    return draft_token


def test_a_row_has_the_same_bits_behind_draft_tokens(pair: Pair) -> None:
    """Greedy and seeded answers. Two programs, with and without room for draft tokens, are not
    compiled alike, so that the last bit of a log-probability may differ between these."""
    requests = [
        EngineRequest(
            prompt=(3, 1, 4),
            sampling=replace(WARM, seed=seed, temperature=float(seed > 0)),
            max_tokens=20,
            stop_ids=frozenset(),
        )
        for seed in range(3)
    ]
    wanted = answers(pair.drafted, requests)
    for one, other in zip(answers(pair.plain, requests), wanted, strict=True):
        assert tokens_of(one) == tokens_of(other)
        logprobs = ([each.logprob for each in results] for results in (one, other))
        np.testing.assert_allclose(*logprobs, rtol=0, atol=3e-6)
    drafting = Eager(mostly([tokens_of(each) for each in wanted]), 3)
    assert answers(pair.drafted, requests, drafting) == wanted
    assert drafting.accepted > 10
    assert drafting.proposed - drafting.accepted > 5


def test_shared_prefixes_and_preempted_sequences_go_on_from_right_states(pair: Pair) -> None:
    wanted, _ = served(pair.plain, storm())
    drafting = Eager(mostly(wanted), 3)
    got, scheduler = served(pair.drafted, storm(), drafting)
    assert min(scheduler.preemptions, scheduler.load().prefix_hits, drafting.accepted) > 0
    assert scheduler.load().window_pages_used == 0
    for prompt, answer in zip(prompts_of(storm(), got), got, strict=True):
        assert pair.tiny.lacking(prompt, answer) < 1e-5
