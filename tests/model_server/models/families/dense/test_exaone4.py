"""What is particular to EXAONE 4; its logits are in test_families.py."""

from __future__ import annotations

from typing import Any

from tests.model_server.models.layer_shapes import TINY, decoder_of, windows_of

EXAONE4 = TINY | {"model_type": "exaone4", "sliding_window": 8}


def rotates(config: dict[str, Any]) -> list[bool]:
    return [rope is not None for rope in decoder_of(config).ropes]


def test_layers_that_see_everything_do_not_rotate() -> None:
    assert windows_of(EXAONE4) == [8, 8, 8, None]
    assert rotates(EXAONE4) == [True, True, True, False]


def test_without_windows_every_layer_rotates() -> None:
    small = EXAONE4 | {"sliding_window": None}
    assert windows_of(small) == [None] * 4
    assert rotates(small) == [True] * 4


def test_a_pattern_in_letters_needs_the_list_beside_it() -> None:
    lettered = EXAONE4 | {"sliding_window_pattern": "LLLG"}
    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    assert windows_of(lettered | {"layer_types": kinds}) == [8, 8, 8, None]
