"""What config.json of Mistral Small 4 may say, alone and as the text part of Mistral 3."""

from __future__ import annotations

from typing import Any

from model_server.checkpoints.text_part import text_config
from model_server.models.registry import make_recipe
from tests.model_server.models.family_cases import config_of


def test_its_image_input_is_that_of_mistral_3() -> None:
    outer: dict[str, Any] = config_of("mistral3_with_ministral3")
    config = text_config(outer | {"text_config": config_of("mistral4")})
    recipe: Any = make_recipe("auto", config, {})
    assert recipe.media
    assert recipe.cache(1).value_dim == 0  # a latent vector, as of the text model alone
    assert recipe.embed == config_of("mistral4")["hidden_size"]
