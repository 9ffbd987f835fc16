"""A beam search on the real runner gives the answers of a loop over whole sequences' logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np
import pytest
from msgspec.structs import replace

from model_server.engine.buckets import closed_set
from model_server.engine.limits import EngineLimits
from model_server.engine.running.runner import ModelRunner
from model_server.engine.step_program import StepProgram
from model_server.engine.types import BeamSettings
from model_server.kernels import xla
from model_server.loading.random_weights import random_weights
from model_server.models.registry import make_recipe
from tests.model_server.engine.parts.beam_reference import search
from tests.model_server.engine.parts.beam_searches import answers_of, search_for
from tests.model_server.tiny import PAGE, WholeSequences, empty_pages

GPT_J = "saxml.server.pax.lm.params.gptj.GPTJ"
TINY = {
    "NUM_LAYERS": "2",
    "MODEL_DIMS": "32",
    "HIDDEN_DIMS": "64",
    "NUM_HEADS": "4",
    "DIMS_PER_HEAD": "8",
    "ROTARY_DIM": "4",
    "VOCAB_SIZE": "97",
    "INPUT_SEQ_LEN": "48",
    "MAX_DECODE_STEPS": "16",
    "MIN_DECODE_STEPS": "3",
    "DTYPE": '"float32"',
}
LIMITS = EngineLimits(
    slots=6,
    pages=48,
    page_size=PAGE,
    max_context=64,
    token_budget=38,
    max_logit_rows=6,
    prefill_block=8,
)
ENDS = frozenset({5, 41})


@dataclass
class Tiny:
    """A tiny GPT-J, whole and behind a runner."""

    whole: WholeSequences
    runner: ModelRunner

    def logprobs(self, tokens: tuple[int, ...]) -> np.ndarray:
        """f64[V], after these tokens."""
        return np.asarray(jax.nn.log_softmax(self.whole.logits(tokens)[-1]), np.float64)


@pytest.fixture(scope="module", params=[pytest.param("off", marks=pytest.mark.nightly), "tenant"])
def tiny(request: pytest.FixtureRequest) -> Iterator[Tiny]:
    recipe = make_recipe(GPT_J, None, TINY)
    module = recipe.blueprint()
    leaves = random_weights(module.declarations, 3, lambda _: None)
    model = module.assemble([leaf.copy() for leaf in leaves])
    pages = empty_pages(recipe, LIMITS.pages)
    limits = replace(LIMITS, prefix_cache=request.param)
    program = StepProgram(module, leaves, pages, limits, xla.KERNEL, vocab=recipe.vocab)
    runner = ModelRunner(program, leaves, pages, closed_set(limits.slots, (1, 4)))
    runner.compile(lambda _: None)
    yield Tiny(WholeSequences(model, recipe, 32), runner)
    runner.close()


def test_answers_are_those_of_whole_sequences(tiny: Tiny) -> None:
    rng = np.random.default_rng(7)
    asked = []
    for size, early, alpha, count in [(4, False, 0.8, 13), (2, True, 1.0, 21)]:
        beams = BeamSettings(size, alpha, early, min_tokens=3)
        prompt = tuple(int(token) for token in rng.integers(0, 97, size=count))
        asked.append(search_for(prompt, beams, ENDS, 10))
    for one, found in zip(asked, answers_of(tiny.runner, asked), strict=True):
        assert one.beams is not None
        prompt = one.prompt
        wanted = search(lambda tokens: tiny.logprobs((*prompt, *tokens)), one.beams, ENDS, 10)  # noqa: B023
        assert [each.tokens for each in found] == [each.tokens for each in wanted]
        scores = [each.score for each in wanted]
        assert [each.score for each in found] == pytest.approx(scores, abs=1e-4)
