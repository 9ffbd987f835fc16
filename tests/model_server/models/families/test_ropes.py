"""Part of each head rotates, by the config's part in any of its places; and by triples."""

from __future__ import annotations

from typing import Any

import pytest

from model_server.models.registry import make_recipe
from sax.errors import CheckpointError
from tests.model_server.models.layer_shapes import TINY, decoder_of
from tests.model_server.models.refusals import refused_otherwise

GLM = TINY | {"model_type": "glm", "head_dim": 12}


def rotated(**config: Any) -> int:
    return 2 * len(decoder_of(GLM | config).ropes[0].frequencies)


def test_the_part_is_the_usual_one_or_the_configs() -> None:
    assert rotated() == 6
    assert rotated(partial_rotary_factor=1.0) == 12
    given = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.34}
    assert rotated(rope_parameters=given) == 4


def test_parts_that_are_no_whole_pairs_are_refused() -> None:
    for part in (0.0, 1.5, 0.25, "half", True):
        with pytest.raises(CheckpointError, match="partial_rotary_factor = "):
            make_recipe("auto", GLM | {"partial_rotary_factor": part}, {})


def test_settings_that_are_no_object_are_refused() -> None:
    with pytest.raises(CheckpointError, match="where its rope scaling should be"):
        make_recipe("auto", GLM | {"rope_scaling": ["yarn"]}, {})


QWEN = TINY | {"model_type": "qwen3_vl_text", "head_dim": 12}


def axes(**config: Any) -> tuple[int, ...]:
    return decoder_of(QWEN | config).ropes[0].axes


def test_positions_that_are_triples_turn_pairs_in_turn_or_in_a_row() -> None:
    assert axes(rope_scaling={"mrope_section": [2, 2, 2]}) == (0, 1, 2, 0, 1, 2)
    older = {"type": "mrope", "mrope_section": [1, 2, 3]}
    assert axes(model_type="qwen2_vl_text", rope_scaling=older) == (0, 1, 1, 2, 2, 2)
    assert axes() == (0, 1, 2, 0, 1, 2), "the first of the usual sections"


def test_other_sections_are_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"mrope_section": [2, 2, 3]}, r"mrope_section = \[2, 2, 3\]; .*the 6 that a head rotates"),
        ({"mrope_section": [6]}, "mrope_section"),
        ({"mrope_section": [2, 2, 2], "mrope_interleaved": False}, "supports True"),
        ({"mrope_section": [2, 2, 2], "rope_type": "dynamic"}, "'dynamic' is not supported"),
    ]
    assert (
        refused_otherwise(
            lambda given: make_recipe("auto", QWEN | {"rope_scaling": given}, {}),
            cases,
            CheckpointError,
        )
        == {}
    )
