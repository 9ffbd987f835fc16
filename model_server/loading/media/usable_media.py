"""Decides if a model takes images here, where some servers cannot compute what others can."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace

from model_server.models.recipe import Recipe
from sax.errors import InvalidRequest

logger = logging.getLogger(__name__)


def with_usable_media(recipe: Recipe, overrides: Mapping[str, str], *, proxied: bool) -> Recipe:
    """Return the recipe, without image input where it cannot be served; its note says why.

    overrides: as published: IMAGES or SOUNDS true asks for it. proxied: the devices are behind a
    proxy server. Raises InvalidRequest if it was asked for.
    """
    if recipe.media is None or (why := _why_not(recipe, proxied)) is None:
        return recipe
    key = recipe.media.override
    if json.loads(overrides.get(key, "null")) is True:
        raise InvalidRequest(
            f"{key} is true, but {why}: publish it without {key}, for text only",
            param=f"overrides.{key}",
        )
    logger.warning("the model is served for text only: %s", why)
    note = f"It takes no {key.lower()} here: {why}."
    return replace(
        recipe, media=None, media_rows=None, note=f"{recipe.note} {note}" if recipe.note else note
    )


def _why_not(recipe: Recipe, proxied: bool) -> str | None:
    if proxied:
        return "behind a proxy server no images or sounds are encoded yet"
    if recipe.speculation.draft is not None:
        return "its draft model drafts from text alone"
    return None
