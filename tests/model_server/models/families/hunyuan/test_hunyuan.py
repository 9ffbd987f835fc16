"""What is particular to Hunyuan; its logits are in test_families.py."""

from __future__ import annotations

import numpy as np

from model_server.models.layers.rope import rope_frequencies
from tests.model_server.models.layer_shapes import TINY, decoder_of

HUNYUAN = TINY | {"model_type": "hunyuan_v1_dense", "head_dim": 8, "rope_theta": 10000.0}


def test_alpha_raises_the_base_of_the_positions() -> None:
    scaling = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32}
    (rope, *_) = decoder_of(HUNYUAN | {"rope_scaling": scaling}).ropes
    wanted = rope_frequencies(8, 10000.0 * 1000.0 ** (8 / 6))
    np.testing.assert_allclose(rope.frequencies, wanted, rtol=1e-6)


def test_heads_are_normed_after_they_are_rotated() -> None:
    assert all(layer.attention.rotates_first for layer in decoder_of(HUNYUAN).layers)
