"""LmCloudSpmd: no checkpoint to compare with, so its recipe is checked property by property."""

from __future__ import annotations

import numpy as np
import pytest

from model_server.models.lm_cloud import sinusoids
from model_server.models.registry import make_recipe
from model_server.models.weight import blueprint
from model_server.weights import random_weights
from tests.model_server.tiny import logits_of

PATH = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"
SHRUNK = {
    "NUM_LAYERS": "2",
    "MODEL_DIMS": "32",
    "HIDDEN_DIMS": "64",
    "NUM_HEADS": "2",
    "DIMS_PER_HEAD": "16",
    "VOCAB_SIZE": "50",
    "DTYPE": '"float32"',
}


def shrunk_logits(prompt: list[int], seed: int = 0) -> np.ndarray:
    recipe = make_recipe(PATH, None, SHRUNK)
    module = blueprint(recipe.build)
    model = module.assemble(random_weights(module.declarations, seed, lambda _: None))
    return np.asarray(logits_of(model, recipe, np.asarray(prompt)))


def test_logits_stay_within_the_soft_cap() -> None:
    assert np.abs(shrunk_logits([1, 2, 3])).max() <= 30.0


def test_a_token_sees_what_came_before_and_nothing_after() -> None:
    short, changed = shrunk_logits([4, 5, 6]), shrunk_logits([4, 5, 6, 7])
    np.testing.assert_allclose(changed[:3], short, rtol=1e-5, atol=1e-5)
    other_past = shrunk_logits([9, 5, 6])
    assert np.abs(other_past[2] - short[2]).max() > 1e-4


def test_the_same_tokens_at_other_positions_give_other_logits() -> None:
    logits = shrunk_logits([8, 8, 8])
    assert np.abs(logits[1] - logits[2]).max() > 1e-5


def test_positions_are_sines_and_cosines() -> None:
    table = np.asarray(sinusoids(np.asarray([0, 1]), 4))
    np.testing.assert_allclose(table[0], [0, 0, 1, 1], atol=1e-6)
    np.testing.assert_allclose(
        table[1], [np.sin(1), np.sin(1e-4), np.cos(1), np.cos(1e-4)], atol=1e-6
    )


def test_the_recipe_serves_as_saxml_declares_it() -> None:
    recipe = make_recipe(PATH, None, {})
    assert (recipe.samples, recipe.max_context) == (2, 256 + 32)
    assert recipe.defaults.temperature == pytest.approx(0.1)
    assert recipe.defaults.max_tokens == 32
