"""What is particular to Phi-3; its logits are in test_families.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from sax.errors import CheckpointError
from tests.model_server.models.layer_shapes import TINY, decoder_of

LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 4.0, 6.0, 8.0],
}
PHI3 = TINY | {
    "model_type": "phi3",
    "original_max_position_embeddings": 64,
    "rope_scaling": LONGROPE,
}


def made(config: dict[str, Any], **overrides: str) -> Recipe:
    recipe = make_recipe("auto", config, overrides)
    assert isinstance(recipe, Recipe)
    return recipe


def frequencies(config: dict[str, Any], **overrides: str) -> tuple[float, ...]:
    return decoder_of(config, **overrides).ropes[0].frequencies


def test_sequences_longer_than_the_original_context_have_factors_of_their_own() -> None:
    assert made(PHI3).short_context == 64
    assert made(PHI3, MAX_CONTEXT="65").short_context == 64
    rope = decoder_of(PHI3).ropes[0]
    plain = np.asarray(frequencies(PHI3 | {"rope_scaling": None}))
    np.testing.assert_allclose(rope.frequencies, plain / LONGROPE["short_factor"], rtol=1e-6)
    np.testing.assert_allclose(rope.long_frequencies, plain / LONGROPE["long_factor"], rtol=1e-6)


def test_a_context_within_the_original_one_needs_only_the_short_factors() -> None:
    assert made(PHI3, MAX_CONTEXT="64").short_context is None
    rope = decoder_of(PHI3, MAX_CONTEXT="64").ropes[0]
    assert rope.frequencies == frequencies(PHI3)
    assert rope.long_frequencies is None


@pytest.mark.parametrize("name", ["su", "yarn"])
def test_the_first_names_of_longrope_mean_it(name: str) -> None:
    assert frequencies(PHI3 | {"rope_scaling": LONGROPE | {"type": name}}) == frequencies(PHI3)


def test_a_fused_tensor_of_another_size_is_named() -> None:
    class Files:
        def shape(self, name: str) -> tuple[int, ...]:
            return (63, 32)

    declared = make_recipe("auto", PHI3, {}).blueprint().declarations
    fused = next(d for d in declared if "qkv_proj" in d.source.names[0])
    with pytest.raises(CheckpointError, match=r"qkv_proj.weight is \[63, 32\]; the config.* 64"):
        fused.source.shape(Files())
