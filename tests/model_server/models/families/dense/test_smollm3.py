"""What is particular to SmolLM3; its logits are in test_families.py."""

from __future__ import annotations

from typing import Any

from tests.model_server.models.layer_shapes import TINY, decoder_of, windows_of

SMOLLM3 = TINY | {"model_type": "smollm3", "num_hidden_layers": 5}


def rotates(**config: Any) -> list[bool]:
    return [rope is not None for rope in decoder_of(SMOLLM3 | config).ropes]


def test_every_fourth_layer_does_not_rotate_unless_the_config_says_otherwise() -> None:
    assert rotates() == [True, True, True, False, True]
    assert rotates(no_rope_layer_interval=2) == [True, False, True, False, True]
    assert rotates(no_rope_layers=[0, 1, 1, 1, 0, 0]) == [False, True, True, True, False]


def test_layers_that_do_not_rotate_have_the_window() -> None:
    wide = {"sliding_window": 8, "use_sliding_window": True}
    assert windows_of(SMOLLM3 | wide) == [None, None, None, 8, None]
    assert windows_of(SMOLLM3 | wide | {"use_sliding_window": False}) == [None] * 5
