"""What is particular to Gemma 2; its logits are in test_families.py."""

from __future__ import annotations

from tests.model_server.models.layer_shapes import TINY, decoder_of, shapes_of, windows_of

GEMMA2 = TINY | {"model_type": "gemma2"}


def test_caps_are_the_published_ones_and_a_null_means_none() -> None:
    decoder = decoder_of(GEMMA2)
    assert decoder.logits_softcap == 30.0
    assert {layer.attention.shape.softcap for layer in decoder.layers} == {50.0}
    uncapped = decoder_of(
        GEMMA2 | {"final_logit_softcapping": None, "attn_logit_softcapping": None}
    )
    assert uncapped.logits_softcap is None
    assert {layer.attention.shape.softcap for layer in uncapped.layers} == {None}


def test_every_other_layer_slides_and_the_first_does() -> None:
    assert windows_of(GEMMA2) == [4096, None, 4096, None]


def test_scores_are_scaled_by_a_number_of_the_config() -> None:
    assert {shape.scale for shape in shapes_of(GEMMA2 | {"query_pre_attn_scalar": 144})} == {1 / 12}
