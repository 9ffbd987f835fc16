"""What is particular to Gemma 3; its logits are in test_families.py and test_gemma3.py above."""

from __future__ import annotations

import numpy as np

from model_server.models.layers.rope import rope_frequencies
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from tests.model_server.models.layer_shapes import TINY, decoder_of, windows_of

GEMMA3 = TINY | {"model_type": "gemma3_text", "head_dim": 8}
# All that the config.json of the 4B says of its text part.
SPARSE_4B = {
    "model_type": "gemma3_text",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}


def test_a_sparse_config_means_the_published_model() -> None:
    recipe = make_recipe("auto", SPARSE_4B, {})
    parameters = sum(int(np.prod(d.shape)) for d in recipe.blueprint().declarations)
    assert parameters == 3_880_263_168
    assert recipe.max_context == 131072
    assert windows_of(SPARSE_4B)[:7] == [1024] * 5 + [None, 1024]


def test_only_layers_that_see_everything_are_stretched() -> None:
    ropes = decoder_of(SPARSE_4B).ropes
    np.testing.assert_allclose(ropes[0].frequencies, rope_frequencies(256, 1e4))
    np.testing.assert_allclose(ropes[5].frequencies, rope_frequencies(256, 1e6) / 8)
    assert len(set(ropes)) == 2


def test_the_cap_of_logits_is_applied_and_that_of_attention_is_not() -> None:
    """As in the reference, which stores the second and never uses it."""
    assert decoder_of(GEMMA3).logits_softcap is None
    capped = decoder_of(GEMMA3 | {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0})
    assert capped.logits_softcap == 30.0
    assert {layer.attention.shape.softcap for layer in capped.layers} == {None}


def test_attention_that_sees_both_ways_makes_a_model_that_only_embeds() -> None:
    recipes = [
        make_recipe("auto", GEMMA3 | {"use_bidirectional_attention": both}, {})
        for both in (False, True)
    ]
    assert [recipe.causal for recipe in recipes if isinstance(recipe, Recipe)] == [True, False]
