"""A family that puts an encoder in front of a text model of another family."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, anything
from model_server.models.media.media_recipe import MediaRecipe, encoders
from model_server.models.recipe import Recipe
from model_server.models.weights.low_rank import AdapterRoom, OwnAdapter
from sax.errors import CheckpointError

Configure = Callable[[Mapping[str, Any] | None, Mapping[str, Any]], Recipe]

_MOST_RANK = 512
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


def with_own_adapters(
    recipe: Recipe, given: Mapping[str, Any], folders: Mapping[str, str]
) -> Recipe:
    """Return a recipe with places for the checkpoint's own adapters, which prompts with media use.

    given: their configs, by folder. folders: by kind of media; a kind that the model does not take
    needs none. Raises CheckpointError.
    """
    taken = {each.kind for each in recipe.media}
    own = [OwnAdapter(kind, at) for kind, at in folders.items() if kind in taken and at in given]
    if not own:
        return recipe
    room = recipe.adapters or AdapterRoom(0, 1)
    rank = max(room.rank, *(_rank(given[each.folder]) for each in own))
    return replace(recipe, adapters=AdapterRoom(room.places + len(own), rank, tuple(own)))


def _rank(config: Mapping[str, Any]) -> int:
    """Return the largest rank of an adapter."""
    others = config.get("rank_pattern") or {}
    ranks = [config.get("r"), *(others.values() if isinstance(others, Mapping) else [others])]
    found = [rank for rank in ranks if type(rank) is int and 0 < rank <= _MOST_RANK]
    if len(found) != len(ranks):
        raise CheckpointError(
            f"adapter_config.json of the checkpoint has r = {config.get('r')!r} and rank_pattern = "
            f"{others!r}; whole numbers from 1 to {_MOST_RANK} are supported"
        )
    return max(found)
