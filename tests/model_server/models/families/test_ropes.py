"""Part of each head rotates, by the config's part in any of its places; and by triples."""

from __future__ import annotations

from typing import Any

from tests.model_server.models.layer_shapes import TINY, decoder_of

GLM = TINY | {"model_type": "glm", "head_dim": 12}


def rotated(**config: Any) -> int:
    return 2 * len(decoder_of(GLM | config).ropes[0].frequencies)


def test_the_part_is_the_usual_one_or_the_configs() -> None:
    assert rotated() == 6
    assert rotated(partial_rotary_factor=1.0) == 12
    given = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.34}
    assert rotated(rope_parameters=given) == 4


QWEN = TINY | {"model_type": "qwen3_vl_text", "head_dim": 12}


def axes(**config: Any) -> tuple[int, ...]:
    return decoder_of(QWEN | config).ropes[0].axes


def test_positions_that_are_triples_turn_pairs_in_turn_or_in_a_row() -> None:
    assert axes(rope_scaling={"mrope_section": [2, 2, 2]}) == (0, 1, 2, 0, 1, 2)
    older = {"type": "mrope", "mrope_section": [1, 2, 3]}
    assert axes(model_type="qwen2_vl_text", rope_scaling=older) == (0, 1, 1, 2, 2, 2)
    assert axes() == (0, 1, 2, 0, 1, 2), "the first of the usual sections"
