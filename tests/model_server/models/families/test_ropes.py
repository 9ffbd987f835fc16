"""Part of each head rotates: by the config's part, in any of its places."""

from __future__ import annotations

from typing import Any

import pytest

from model_server.models.registry import make_recipe
from sax.errors import CheckpointError
from tests.model_server.models.layer_shapes import TINY, decoder_of

GLM = TINY | {"model_type": "glm", "head_dim": 12}


def rotated(**config: Any) -> int:
    return 2 * len(decoder_of(GLM | config).ropes[0].frequencies)


def test_the_part_is_the_usual_one_or_the_configs() -> None:
    assert rotated() == 6
    assert rotated(partial_rotary_factor=1.0) == 12
    given = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.34}
    assert rotated(rope_parameters=given) == 4


@pytest.mark.parametrize("part", [0.0, 1.5, 0.25, "half", True])
def test_parts_that_are_no_whole_pairs_are_refused(part: Any) -> None:
    with pytest.raises(CheckpointError, match="partial_rotary_factor = "):
        make_recipe("auto", GLM | {"partial_rotary_factor": part}, {})


def test_settings_that_are_no_object_are_refused() -> None:
    with pytest.raises(CheckpointError, match="where its rope scaling should be"):
        make_recipe("auto", GLM | {"rope_scaling": ["yarn"]}, {})
