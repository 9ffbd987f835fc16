"""A family that puts an encoder in front of a text model of another family."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, anything
from model_server.models.media.media_recipe import MediaRecipe, encoders
from model_server.models.recipe import Recipe
from sax.errors import CheckpointError

Configure = Callable[[Mapping[str, Any] | None, Mapping[str, Any]], Recipe]

_TEXT_TYPE = "text_model_type"  # written by checkpoints/text_part


def around(
    family: str,
    config: Mapping[str, Any] | None,
    values: Mapping[str, Any],
    texts: Mapping[str, tuple[Configure, Mapping[str, Any]]],
    keys: Collection[str],
    media: Callable[[ConfigKeys, int], MediaRecipe | None],
    unused: Collection[str] = (),
) -> Recipe:
    """Return the recipe of a text model with an encoder.

    texts: by the text model's type, its family and the sizes that transformers gives it and files
    leave out. keys: of config.json that `media` reads, given the size of the model's vectors.
    unused: keys that change nothing. Raises CheckpointError, InvalidRequest.
    """
    assert config is not None, f"the registry says that {family} needs a checkpoint"
    kind = config.get(_TEXT_TYPE)
    if not isinstance(kind, str) or kind not in texts:
        raise CheckpointError(
            f"the text_config of this {family} checkpoint has model_type = {kind!r}; supported: "
            f"{', '.join(texts)}"
        )
    configure, defaults = texts[kind]
    others = (*keys, *unused, _TEXT_TYPE)
    text = {key: value for key, value in config.items() if key not in others}
    recipe = configure({**defaults, **text, "model_type": kind}, values)
    # The family of the text model has checked its keys.
    own = ConfigKeys(config, KnownKeys(family, tuple(keys), dict.fromkeys(config, anything)))
    return replace(recipe, media=encoders(media(own, recipe.embed)))
