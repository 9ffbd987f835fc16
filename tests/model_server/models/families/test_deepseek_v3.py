"""What a DeepSeek-V3 config.json means beyond the golden cases (see test_families.py)."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.opening import open_checkpoint
from model_server.loading.weights import mismatches
from model_server.models.config_keys import ConfigKeys
from model_server.models.families import deepseek_v3
from model_server.models.families.deepseek_v3 import configure
from model_server.models.families.latent_recipe import latent_shape
from model_server.models.layers.routing import GroupedSigmoidChoice
from model_server.models.recipe import SERVING_DEFAULTS, Recipe
from tests.model_server.models.family_cases import checkpoint_of, config_of
from tests.model_server.models.layer_shapes import decoder_of

CONFIG = config_of("deepseek_v3")


def recipe_of(**changes: Any) -> Recipe:
    return configure(CONFIG | changes, SERVING_DEFAULTS)


def scale_of(**changes: Any) -> float:
    return latent_shape(ConfigKeys(CONFIG | changes, deepseek_v3.KEYS)).scale


def problems(recipe: Recipe) -> list[str]:
    """Of loading the golden case, which has one layer behind the last."""
    with closing(open_checkpoint(str(checkpoint_of("deepseek_v3")))) as checkpoint:
        needed = without_prefixes(checkpoint, recipe.unused)
        return list(mismatches(recipe.blueprint().declarations, needed, shown=1))


def test_the_layers_that_draft_further_tokens_are_passed_over() -> None:
    assert recipe_of().unused == ("model.layers.3.",)
    assert problems(recipe_of()) == []


def test_a_layer_that_the_config_does_not_announce_is_an_unknown_one() -> None:
    assert recipe_of(num_nextn_predict_layers=0).unused == ()
    (problem,) = problems(recipe_of(num_nextn_predict_layers=0))
    assert "does not use: model.layers.3." in problem


def test_the_first_layers_are_dense() -> None:
    layers = decoder_of(CONFIG | {"first_k_dense_replace": 2}).layers
    assert [hasattr(layer.ffw, "router") for layer in layers] == [False, False, True]


def test_a_stretched_rope_sharpens_the_scores_by_mscale_all_dim() -> None:
    """0.1 * 1.0 * ln 40 + 1, squared, as in the published config of V3."""
    yarn = CONFIG["rope_scaling"] | {"factor": 40}
    plain = scale_of(rope_scaling=None)
    assert plain == pytest.approx(18**-0.5)
    assert scale_of(rope_scaling=yarn) == pytest.approx(plain * 1.3688879**2)
    assert scale_of(rope_scaling=yarn | {"mscale_all_dim": 0}) == pytest.approx(plain)


def test_rotated_pairs_are_neighbours_unless_the_config_says_otherwise() -> None:
    assert decoder_of(CONFIG).ropes[0].interleaved
    assert not decoder_of(CONFIG | {"rope_interleave": False}).ropes[0].interleaved


def test_sizes_that_a_config_leaves_out_are_the_published_ones() -> None:
    left_out = ("n_group", "topk_group", "routed_scaling_factor", "norm_topk_prob")
    config = {k: v for k, v in CONFIG.items() if k not in left_out} | {"n_routed_experts": 16}
    choice = decoder_of(config).layers[-1].ffw.router.choice
    assert choice == GroupedSigmoidChoice(3, groups=8, kept=4, normalised=True, scale=2.5)


def test_no_shared_experts_is_a_choice() -> None:
    assert decoder_of(CONFIG | {"n_shared_experts": None}).layers[-1].ffw.shared is None
