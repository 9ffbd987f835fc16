"""What is particular to Gemma; its logits are in test_families.py."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from tests.model_server.models.layer_shapes import TINY, decoder_of, shapes_of

GEMMA = TINY | {"model_type": "gemma", "hidden_size": 3072}


def test_embeddings_are_scaled_by_a_number_rounded_as_the_weights_are() -> None:
    assert decoder_of(GEMMA).embedding_scale == pytest.approx(3072**0.5, rel=1e-7)
    assert decoder_of(GEMMA, jnp.bfloat16).embedding_scale == 55.5


def test_heads_are_of_256_unless_the_config_says_otherwise() -> None:
    assert {shape.head_dim for shape in shapes_of(GEMMA)} == {256}
