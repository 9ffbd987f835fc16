"""What is particular to Qwen3; its logits are in test_families.py."""

from __future__ import annotations

from tests.model_server.models.layer_shapes import TINY, shapes_of

QWEN3 = TINY | {"model_type": "qwen3"}


def test_heads_do_not_follow_from_the_width() -> None:
    assert {shape.head_dim for shape in shapes_of(QWEN3)} == {128}
    assert {shape.head_dim for shape in shapes_of(QWEN3 | {"head_dim": 20})} == {20}


def test_scores_are_scaled_by_the_heads_of_the_config() -> None:
    assert {shape.scale for shape in shapes_of(QWEN3 | {"head_dim": 64})} == {0.125}
