"""What is particular to Phi-3; its logits are in test_families.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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


def frequencies(config: dict[str, Any], **overrides: str) -> tuple[float, ...]:
    return decoder_of(config, **overrides).ropes[0].frequencies


def test_the_served_context_chooses_between_the_short_and_the_long_factors() -> None:
    plain = np.asarray(frequencies(PHI3 | {"rope_scaling": None}))
    short, long = LONGROPE["short_factor"], LONGROPE["long_factor"]
    np.testing.assert_allclose(frequencies(PHI3), plain / long, rtol=1e-6)
    np.testing.assert_allclose(frequencies(PHI3, MAX_CONTEXT="65"), plain / long, rtol=1e-6)
    np.testing.assert_allclose(frequencies(PHI3, MAX_CONTEXT="64"), plain / short, rtol=1e-6)


@pytest.mark.parametrize("name", ["su", "yarn"])
def test_the_first_names_of_longrope_mean_it(name: str) -> None:
    assert frequencies(PHI3 | {"rope_scaling": LONGROPE | {"type": name}}) == frequencies(PHI3)


def test_positions_that_are_not_computed_are_refused_by_name() -> None:
    rope = {"rope_type": "llama3", "factor": 8.0}
    with pytest.raises(CheckpointError, match="'llama3' is not supported; the phi3 family"):
        make_recipe("auto", PHI3 | {"rope_scaling": rope}, {})


@pytest.mark.parametrize("part", [0.0, 0.4, 1.5])
def test_a_part_of_a_head_that_cannot_be_rotated_is_refused(part: float) -> None:
    with pytest.raises(CheckpointError, match=f"partial_rotary_factor = {part}, which would"):
        make_recipe("auto", PHI3 | {"partial_rotary_factor": part, "rope_scaling": None}, {})


def test_a_fused_tensor_of_another_size_is_named() -> None:
    class Files:
        def shape(self, name: str) -> tuple[int, ...]:
            return (63, 32)

    declared = make_recipe("auto", PHI3, {}).blueprint().declarations
    fused = next(d for d in declared if "qkv_proj" in d.source.names[0])
    with pytest.raises(CheckpointError, match=r"qkv_proj.weight is \[63, 32\]; the config.* 64"):
        fused.source.shape(Files())
