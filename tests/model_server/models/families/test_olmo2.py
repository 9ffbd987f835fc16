"""What is particular to OLMo 2; its logits are in test_families.py."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from model_server.checkpoints.region import deliver
from model_server.models.families.olmo2 import AllHeadsNorm
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import layout_of
from model_server.models.weights.source import Tensor
from tests.model_server.models.layer_shapes import TINY

OLMO2 = TINY | {"model_type": "olmo2", "num_key_value_heads": 1}


class Numbers:
    """A checkpoint of one vector, counted from 0."""

    def shape(self, name: str) -> tuple[int, ...]:
        return (8,)

    def read(self, name: str, region: Any = None, out: Any = None) -> np.ndarray:
        return deliver(np.arange(8)[region], out)


def test_one_mean_is_taken_over_all_heads() -> None:
    norm = AllHeadsNorm(2, 4, Tensor("scale"), None, epsilon=1e-6)
    norm.scale[...] = jnp.arange(8.0)
    x = np.random.default_rng(1).normal(size=(3, 2, 4)).astype(np.float32)
    root = np.sqrt(np.square(x).reshape(3, 8).mean(1) + 1e-6)
    wanted = x / root[:, None, None] * np.arange(8.0).reshape(2, 4)
    np.testing.assert_allclose(norm(jnp.asarray(x)), wanted, rtol=1e-5)


def test_scales_of_copied_heads_are_copied_with_them() -> None:
    declared = make_recipe("auto", OLMO2, {}).blueprint(layout_of((1, 1, 4))).declarations
    scale = next(d for d in declared if d.path == "layers.0.attention.k_norm.scale")
    assert scale.shape == (32,)
    assert scale.axes == ("heads",)
    read = scale.source.read(Numbers(), (slice(0, 32),))
    assert read.tolist() == list(range(8)) * 4
