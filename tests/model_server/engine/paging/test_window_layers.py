"""A real Gemma 3, whose layers with a window have few pages of their own, gives its own tokens."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from msgspec.structs import replace

from model_server.config import PrefixSharing
from model_server.engine.buckets import closed_set
from model_server.engine.column_layout import WINDOW_PARTS, ColumnLayout
from model_server.engine.limits import EngineLimits, WindowLimits
from model_server.engine.paging.window_pages import window_page_count
from model_server.engine.running.runner import ModelRunner
from model_server.engine.step_program import COPIES, StepProgram
from model_server.kernels import xla
from model_server.kernels.pages import allocate, copy_pages_apart
from model_server.loading.random_weights import random_weights
from model_server.models.registry import make_recipe
from tests.model_server.engine.paging.test_shared_pages import prompts_of, served, storm
from tests.model_server.tiny import PAGE, WholeSequences

WINDOW = 10
GEMMA3 = {
    "model_type": "gemma3_text",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "vocab_size": 97,
    "max_position_embeddings": 64,
    "sliding_window": WINDOW,
    "sliding_window_pattern": 2,
}
LIMITS = EngineLimits(
    slots=3,
    pages=30,
    page_size=PAGE,
    max_context=64,
    token_budget=18,
    max_logit_rows=3,
    prefill_block=8,
    windows=WindowLimits(sliding=WINDOW),
)


class TinyGemma3:
    """Every second layer has a window."""

    def __init__(self) -> None:
        self.recipe: Any = make_recipe("auto", GEMMA3, {"DTYPE": '"float32"'})
        assert (self.recipe.window, self.recipe.sliding_window) == (None, WINDOW)
        self._module = self.recipe.blueprint()
        self._leaves = random_weights(self._module.declarations, 3, lambda _: None)
        model = self._module.assemble(self._leaves)
        self._whole = WholeSequences(model, self.recipe, LIMITS.max_context)

    def runner(self, limits: EngineLimits) -> ModelRunner:
        window_layers = tuple(window is not None for window in self.recipe.windows)
        counts = tuple(window_page_count(limits) if its else limits.pages for its in window_layers)
        pages = allocate(self.recipe.cache(1), counts, PAGE, jnp.dtype("float32"))
        leaves = [leaf.copy() for leaf in self._leaves]
        program = StepProgram(
            self._module,
            leaves,
            pages,
            limits,
            xla.KERNEL,
            vocab=self.recipe.vocab,
            window_layers=window_layers,
        )
        runner = ModelRunner(program, leaves, pages, closed_set(limits.slots, (1, 2)))
        runner.compile(lambda _: None)
        runner.warm(0)
        return runner

    def likeliest(self, tokens: list[int]) -> list[int]:
        """The likeliest token after each, from the whole sequence at once."""
        return self._whole.logits(tokens).argmax(-1).tolist()


@pytest.fixture(scope="module")
def tiny() -> TinyGemma3:
    return TinyGemma3()


@pytest.mark.parametrize("sharing", [pytest.param("off", marks=pytest.mark.nightly), "tenant"])
def test_tokens_are_those_of_whole_sequences(tiny: TinyGemma3, sharing: PrefixSharing) -> None:
    limits = replace(LIMITS, prefix_cache=sharing)
    got, scheduler = served(tiny.runner(limits), storm())
    assert (scheduler.load().prefix_hits > 0) == (sharing != "off")
    assert scheduler.load().window_pages_used == 0
    prompts = prompts_of(storm(), got)
    assert sum(map(len, prompts)) > window_page_count(limits) * PAGE, "some were granted anew"
    for prompt, answer in zip(prompts, got, strict=True):
        whole = tiny.likeliest([*prompt, *answer])
        assert whole[len(prompt) - 1 : -1] == answer


def test_a_step_without_window_pages_has_no_table_of_them() -> None:
    bucket = closed_set(LIMITS.slots, (1, 2))[-1]
    plain = ColumnLayout(bucket, replace(LIMITS, windows=WindowLimits())).parts
    assert set(ColumnLayout(bucket, LIMITS).parts) - set(plain) == set(WINDOW_PARTS)


def test_window_layers_copy_their_own_pages() -> None:
    recipe: Any = make_recipe("auto", GEMMA3, {"DTYPE": '"float32"'})
    numbers = np.random.default_rng(0)
    window_layers = (True, False, True, False)
    pages = jax.tree.map(
        lambda leaf: jnp.asarray(numbers.normal(size=leaf.shape), leaf.dtype),
        allocate(recipe.cache(1), (3, 4, 3, 4), PAGE, jnp.dtype("float32")),
    )
    copies = np.zeros((COPIES, 4), np.int32)
    copies[0] = 1, 4, 3, 2
    copied = copy_pages_apart(pages, jnp.asarray(copies), window_layers=window_layers)
    orders = {True: [0, 1, 3, 3], False: [0, 1, 2, 3, 1]}
    for before, after, its in zip(pages, copied, window_layers, strict=True):
        np.testing.assert_array_equal(after.keys, np.asarray(before.keys)[orders[its]])
