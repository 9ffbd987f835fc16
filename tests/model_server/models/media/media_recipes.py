"""Recipes of golden cases with image input, made of their files alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from model_server.checkpoints.text_part import text_config
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from sax.errors import CheckpointError
from tests.model_server.models.media.media_cases import (
    golden_media_of,
    images_of,
    media_config_of,
    preprocessor_of,
)
from tests.model_server.models.media.media_cases import prepared_of as prepared_by
from tests.model_server.models.media.media_runs import recipe_of
from tests.model_server.models.refusals import refused_otherwise


def made(config: dict[str, Any], given: dict[str, Any] | None, **overrides: str) -> Recipe:
    """The recipe of a config.json and a preprocessor_config.json; None: there is none."""
    outer = text_config(config)
    config = outer if given is None else {**outer, "preprocessor_config": given}
    recipe = make_recipe("auto", config, overrides)
    assert isinstance(recipe, Recipe)
    return recipe


def media_of(
    name: str, outer: dict[str, Any] | None = None, vision: dict[str, Any] | None = None, **own: Any
) -> MediaRecipe:
    """The recipe of a case, with changes to its config, vision_config and preprocessor_config."""
    config = media_config_of(name) | (outer or {})
    config["vision_config"] = config["vision_config"] | (vision or {})
    return recipe_of(made(config, preprocessor_of(name) | own))


def seen_otherwise(
    name: str, cases: Iterable[tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]]
) -> dict[str, str]:
    """What is told of changes to a case's files that are not refused with these words.

    cases: changes to config.json, its vision_config and preprocessor_config.json each, and words.
    """
    return refused_otherwise(
        lambda changes: media_of(name, changes[0], changes[1], **changes[2]),
        [(each[:3], each[3]) for each in cases],
        CheckpointError,
    )


def prepared_images(name: str) -> list[PreparedMedia]:
    recipe = media_of(name)
    return [prepared_by(recipe, image) for image in images_of(name)]


def pixels_of(name: str, number: int) -> np.ndarray:
    """Pixels of an image as the reference's processor makes them, f32[..., 3, h, w]."""
    return golden_media_of(name)[f"pieces_{number}"]


def patches_at(pixels: np.ndarray, places: np.ndarray, patch: int) -> np.ndarray:
    """f32[p, C]: the patches of f32[3, h, w] at rows and columns i32[p, 2]."""
    cut = [
        pixels[:, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
        for row, column in places
    ]
    return np.stack(cut).reshape(len(places), -1)
