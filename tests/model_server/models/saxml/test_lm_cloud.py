"""LmCloudSpmd as Saxml registers it, and its decoder, property by property."""

from __future__ import annotations

import math

import numpy as np
import pytest

from model_server.loading.random_weights import random_weights
from model_server.models.registry import make_recipe
from model_server.models.saxml.lm_cloud import model_classes
from model_server.models.weights.sharding import layout_of
from tests.model_server.tiny import WholeSequences

PACKAGE = "saxml.server.pax.lm.params.lm_cloud."
MESHES = {
    "LmCloudSpmd2B": 4,
    "LmCloudSpmd2BTest": 1,
    "LmCloudSpmd2B4Test": 4,
    "LmCloudSpmd2B8Test": 8,
    "LmCloudSpmd2B16Test": 16,
    "LmCloudSpmd2B32Test": 32,
    "LmCloudSpmd175B": 16,
    "LmCloudSpmd175BTest": 16,
    "LmCloudSpmd175B32Test": 32,
    "LmCloudSpmd175B64Test": 64,
    "LmCloudSpmd175B128Test": 128,
    "LmCloudSpmd175B256Test": 256,
}


def test_every_variant_has_its_mesh() -> None:
    found = {
        entry.path.removeprefix(PACKAGE): math.prod(entry.overridable["ICI_MESH_SHAPE"])
        for entry in model_classes()
    }
    assert found == MESHES


def test_the_recipe_serves_as_saxml_declares_it() -> None:
    small, large = (
        make_recipe(f"{PACKAGE}LmCloudSpmd{name}", None, {}) for name in ("2BTest", "175B32Test")
    )
    assert (small.samples, small.max_context, small.defaults.max_tokens) == (2, 256 + 32, 32)
    assert small.defaults.temperature == pytest.approx(0.1)
    assert (large.samples, large.max_context, large.defaults.max_tokens) == (1, 256, 128)
    assert (large.defaults.temperature, large.defaults.top_p) == (0.5, 0.95)


def test_the_tutorials_model_takes_a_byte_for_each_of_its_parameters() -> None:
    """175B on 32 chips of 16 GB: 174.3 billion parameters in int8, and scales."""
    module = make_recipe(f"{PACKAGE}LmCloudSpmd175B32Test", None, {}).blueprint(
        layout_of((1, 1, 32))
    )
    assert sum(math.prod(weight.shape) for weight in module.declarations) == pytest.approx(
        174.3e9, rel=1e-3
    )
    assert module.bytes == pytest.approx(174.4e9, rel=1e-3)


def test_more_kv_heads_are_no_key_of_it() -> None:
    assert "NUM_KV_HEADS" not in model_classes()[0].overridable


LM_CLOUD = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"
C4 = "saxml.server.pax.lm.params.c4.C4SpmdGpt3AdamOrgHP"
SHRUNK = {
    "NUM_LAYERS": "2",
    "MODEL_DIMS": "32",
    "HIDDEN_DIMS": "64",
    "NUM_HEADS": "2",
    "DIMS_PER_HEAD": "16",
    "VOCAB_SIZE": "50",
    "DTYPE": '"float32"',
}


def shrunk_logits(prompt: list[int], path: str = LM_CLOUD, times: float = 1.0) -> np.ndarray:
    recipe = make_recipe(path, None, SHRUNK)
    module = recipe.blueprint()
    leaves = random_weights(module.declarations, 0, lambda _: None)
    model = module.assemble([leaf * times for leaf in leaves])
    return WholeSequences(model, recipe, 4).logits(prompt)


def test_logits_stay_within_the_soft_cap() -> None:
    assert 29.0 < np.abs(shrunk_logits([1, 2, 3], times=20.0)).max() <= 30.0


@pytest.mark.parametrize("path", [LM_CLOUD, C4])
def test_a_token_sees_what_came_before_and_nothing_after(path: str) -> None:
    short, changed = shrunk_logits([4, 5, 6], path), shrunk_logits([4, 5, 6, 7], path)
    np.testing.assert_allclose(changed[:3], short, rtol=1e-5, atol=1e-5)
    other_past = shrunk_logits([9, 5, 6], path)
    assert np.abs(other_past[2] - short[2]).max() > 1e-6


@pytest.mark.parametrize("path", [LM_CLOUD, C4])
def test_the_same_tokens_at_other_positions_give_other_logits(path: str) -> None:
    logits = shrunk_logits([8, 8, 8], path)
    assert np.abs(logits[1] - logits[2]).max() > 1e-5
