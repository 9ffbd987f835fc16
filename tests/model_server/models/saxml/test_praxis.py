"""The decoder of Saxml's own models, property by property. (Its logits: test_families.py.)"""

from __future__ import annotations

import numpy as np
import pytest

from model_server.loading.random_weights import random_weights
from model_server.models.registry import make_recipe
from tests.model_server.tiny import WholeSequences

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
