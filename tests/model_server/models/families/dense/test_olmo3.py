"""What is particular to OLMo 3; its logits are in test_families.py."""

from __future__ import annotations

from tests.model_server.models.layer_shapes import TINY, decoder_of, windows_of

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16}
OLMO3 = TINY | {"model_type": "olmo3", "sliding_window": 8, "rope_scaling": YARN}


def test_three_of_four_layers_slide() -> None:
    assert windows_of(OLMO3) == [8, 8, 8, None]


def test_only_layers_that_see_everything_are_stretched() -> None:
    first, *_, last = decoder_of(OLMO3).ropes
    plain = decoder_of(OLMO3 | {"rope_scaling": None}).ropes
    assert first == plain[0] == plain[-1]
    assert last.scale > 1.0
    assert last.frequencies != first.frequencies
