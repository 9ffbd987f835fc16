"""What config.json of Mistral Small 4 may say, alone and as the text part of Mistral 3."""

from __future__ import annotations

from typing import Any

import pytest

from model_server.checkpoints.text_part import text_config
from model_server.models.registry import make_recipe
from sax.errors import CheckpointError
from tests.model_server.models.family_cases import config_of


def test_its_image_input_is_that_of_mistral_3() -> None:
    outer: dict[str, Any] = config_of("mistral3_with_ministral3")
    config = text_config(outer | {"text_config": config_of("mistral4")})
    recipe: Any = make_recipe("auto", config, {})
    assert recipe.media is not None
    assert recipe.cache(1).value_dim == 0  # a latent vector, as of the text model alone
    assert recipe.embed == config_of("mistral4")["hidden_size"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_group": 2}, "n_group"),
        ({"rope_parameters": {"rope_type": "default"}}, "mistral4 family needs two numbers"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        make_recipe("auto", config_of("mistral4") | changes, {})


def test_a_head_rotates_the_part_that_its_sizes_say() -> None:
    rope = config_of("mistral4")["rope_parameters"] | {"partial_rotary_factor": 1.0}
    with pytest.raises(CheckpointError, match="8 of 20 dimensions rotate"):
        make_recipe("auto", config_of("mistral4") | {"rope_parameters": rope}, {})
