"""What is particular to Granite; its logits are in test_families.py."""

from __future__ import annotations

from tests.model_server.models.layer_shapes import TINY, decoder_of

MULTIPLIERS = {
    "attention_multiplier": 0.5,
    "embedding_multiplier": 12.0,
    "logits_scaling": 8.0,
    "residual_multiplier": 0.25,
}
GRANITE = TINY | {"model_type": "granite"}


def test_each_multiplier_reaches_its_place() -> None:
    decoder = decoder_of(GRANITE | MULTIPLIERS)
    assert (decoder.embedding_scale, decoder.logits_scale) == (12.0, 0.125)
    assert {(layer.scale, layer.attention.shape.scale) for layer in decoder.layers} == {(0.25, 0.5)}


def test_multipliers_that_are_not_there_are_one() -> None:
    decoder = decoder_of(GRANITE)
    assert (decoder.embedding_scale, decoder.logits_scale) == (1.0, 1.0)
    assert {(layer.scale, layer.attention.shape.scale) for layer in decoder.layers} == {(1.0, 1.0)}
