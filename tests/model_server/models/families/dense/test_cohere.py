"""What is particular to Command R; its logits are in test_families.py."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from model_server.models.layers.layers import OwnHeadNorm
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import layout_of
from model_server.models.weights.source import Tensor
from tests.model_server.models.layer_shapes import TINY, decoder_of

COHERE = TINY | {"model_type": "cohere", "num_key_value_heads": 1, "use_qk_norm": True}


def test_the_context_is_the_one_of_training() -> None:
    assert make_recipe("auto", COHERE, {}).max_context == 128
    assert make_recipe("auto", COHERE | {"model_max_length": 512}, {}).max_context == 512


def test_every_head_is_normed_by_itself_with_its_own_scales() -> None:
    norm = OwnHeadNorm(2, 4, Tensor("scale"), None, epsilon=1e-6)
    norm.scale[...] = jnp.arange(8.0).reshape(2, 4)
    x = np.random.default_rng(1).normal(size=(3, 2, 4)).astype(np.float32)
    centred = x - x.mean(-1, keepdims=True)
    root = np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-6)
    wanted = centred / root * np.arange(8.0).reshape(2, 4)
    np.testing.assert_allclose(norm(jnp.asarray(x)), wanted, rtol=1e-4, atol=1e-6)


def test_scales_of_copied_heads_are_copied_with_them() -> None:
    declared = make_recipe("auto", COHERE, {}).blueprint(layout_of((1, 1, 4))).declarations
    scale = next(d for d in declared if d.path == "layers.0.attention.k_norm.scale")
    assert scale.shape == (4, 8)
    assert scale.axes == ("heads", None)


def test_windowed_layers_of_command_r7b_rotate_and_the_others_do_not() -> None:
    config = TINY | {"model_type": "cohere2", "sliding_window": 8}
    decoder = decoder_of(config)
    assert [layer.attention.shape.window for layer in decoder.layers] == [8, 8, 8, None]
    assert [rope is None for rope in decoder.ropes] == [False, False, False, True]
