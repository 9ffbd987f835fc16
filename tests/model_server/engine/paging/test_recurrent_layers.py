"""Real models with layers that keep a state, in steps of the engine, give their own tokens."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from msgspec.structs import replace

from model_server.config import PrefixSharing
from model_server.engine.buckets import closed_set
from model_server.engine.limits import EngineLimits, WindowLimits
from model_server.engine.paging.window_page_count import window_page_count
from model_server.engine.running.runner import ModelRunner
from model_server.engine.step_program import StepProgram
from model_server.kernels import xla
from model_server.kernels.pages import allocate
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

    def runner(self, limits: EngineLimits) -> ModelRunner:
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
        runner = ModelRunner(program, leaves, pages, closed_set(limits.slots, (1, 2, 4)))
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
