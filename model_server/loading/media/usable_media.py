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

    overrides: as published: IMAGES true asks for it. proxied: the devices are behind a proxy
    server. Raises InvalidRequest if it was asked for.
    """
    why = None if recipe.media is None else _why_not(recipe, proxied)
    if why is None:
        return recipe
    if json.loads(overrides.get("IMAGES", "null")) is True:
        raise InvalidRequest(
            f"IMAGES is true, but {why}: publish it without IMAGES, for text only",
            param="overrides.IMAGES",
        )
    logger.warning("the model is served for text only: %s", why)
    takes = "sounds" if recipe.media is not None and recipe.media.kind == "audio" else "images"
    note = f"It takes no {takes} here: {why}."
    return replace(
        recipe, media=None, media_rows=None, note=f"{recipe.note} {note}" if recipe.note else note
    )


def _why_not(recipe: Recipe, proxied: bool) -> str | None:
    if proxied:
        return "behind a proxy server no images or sounds are encoded yet"
    if recipe.speculation.draft is not None:
        return "its draft model guesses from text alone"
    return None
