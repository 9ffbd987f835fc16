"""What GPT-2's configs may say. (Its logits: test_families.py.)"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from model_server.loading.random_weights import random_weights
from model_server.models.registry import make_recipe
from sax.errors import InvalidRequest
from tests.model_server.tiny import WholeSequences

CONFIG = {
    "model_type": "gpt2",
    "n_embd": 32,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 48,
    "vocab_size": 61,
}
PROMPT = np.asarray([5, 9, 9, 2, 40, 7, 7, 7])


def logits(**changes: Any) -> np.ndarray:
    """With random weights that do not depend on the changes."""
    recipe = make_recipe("gpt2", CONFIG | changes, {"DTYPE": '"float32"'})
    module = recipe.blueprint()
    model = module.assemble(
        [leaf * 10 for leaf in random_weights(module.declarations, 3, lambda _: None)]
    )
    return WholeSequences(model, recipe, len(PROMPT)).logits(PROMPT)


def test_the_context_ends_with_the_table_of_positions() -> None:
    assert make_recipe("gpt2", CONFIG, {}).max_context == 48
    with pytest.raises(InvalidRequest, match="more than the 48 tokens"):
        make_recipe("gpt2", CONFIG, {"MAX_CONTEXT": "49"})


def test_the_same_token_at_another_position_gives_other_logits() -> None:
    made = logits()
    assert np.abs(made[6] - made[7]).max() > 1e-3


def test_scores_may_be_divided_by_the_layers_number_or_left_unscaled() -> None:
    plain = logits()
    by_layer = logits(scale_attn_by_inverse_layer_idx=True)
    unscaled = logits(scale_attn_weights=False)
    assert np.abs(by_layer - plain).max() > 1e-3
    assert np.abs(unscaled - plain).max() > 1e-3


def test_a_first_layer_is_not_changed_by_dividing_by_its_number() -> None:
    same = logits(scale_attn_by_inverse_layer_idx=True, n_layer=1)
    np.testing.assert_allclose(same, logits(n_layer=1), rtol=1e-6)


def test_reordered_attention_is_the_same_in_float32() -> None:
    np.testing.assert_array_equal(logits(reorder_and_upcast_attn=True), logits())


def test_an_untied_head_has_its_own_weights() -> None:
    def heads(**changes: Any) -> list[str]:
        declared = make_recipe("gpt2", CONFIG | changes, {}).blueprint().declarations
        return [weight.path for weight in declared if weight.path.startswith("head")]

    assert heads() == []
    assert heads(tie_word_embeddings=False) == ["head.kernel"]


def test_traced_layers_are_shared_but_for_their_scale() -> None:
    """A config whose layers differ in nothing must not be traced layer by layer."""
    modules = [
        make_recipe("gpt2", CONFIG | {"scale_attn_by_inverse_layer_idx": by_layer}, {})
        for by_layer in (False, True)
    ]
    shared, apart = (
        len({jax.tree.structure(_layer(recipe, index)) for index in range(2)}) for recipe in modules
    )
    assert (shared, apart) == (1, 2)


def _layer(recipe: Any, index: int) -> Any:
    module = recipe.blueprint()
    leaves = [
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        for weight in module.declarations
        for leaf in weight.leaves
    ]
    return module.assemble(leaves).layers[index]
