"""The recipe of a model as this server serves it, and the refusal of what it does not serve."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.config import ModelServerConfig
from model_server.islands import is_proxied
from model_server.models.layers.embedder import EmbedRecipe
from model_server.models.media.media_recipe import names_of
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from sax.errors import InvalidRequest, ModelPathNotFound
from sax.types import ModelSpec

logger = logging.getLogger(__name__)


def with_usable_media(recipe: Recipe, overrides: Mapping[str, str], *, proxied: bool) -> Recipe:
    """Return the recipe, without images and sounds where they cannot be served; its note says why.

    overrides: as published: IMAGES or SOUNDS true asks for them. proxied: the devices are behind a
    proxy server. Raises InvalidRequest if it was asked for.
    """
    if not recipe.media or (why := _why_not(recipe, proxied)) is None:
        return recipe
    for key in (each.override for each in recipe.media):
        if json.loads(overrides.get(key, "null")) is True:
            raise InvalidRequest(
                f"{key} is true, but {why}: publish it without {key}, for text only",
                param=f"overrides.{key}",
            )
    logger.warning("the model is served for text only: %s", why)
    note = f"It takes no {names_of(recipe.media)} here: {why}."
    return replace(
        recipe,
        media=(),
        media_rows=None,
        adapters=recipe.adapters and recipe.adapters.for_published,
        note=f"{recipe.note} {note}" if recipe.note else note,
    )


def _why_not(recipe: Recipe, proxied: bool) -> str | None:
    if proxied:
        return "behind a proxy server no images or sounds are encoded yet"
    if recipe.speculation.drafter is not None:
        return "what drafts its tokens reads text alone"
    return None


def check_offered(path: str, filter_regex: str) -> None:
    """Raise ModelPathNotFound for a path that --model_filter_regex excludes."""
    if not re.fullmatch(filter_regex, path):
        raise ModelPathNotFound(
            f"{path} is known here but not offered: this server was started with "
            f"--model_filter_regex {filter_regex!r}",
            param="model_path",
        )


def recipe_of(spec: ModelSpec, config: Mapping[str, Any] | None) -> Recipe | EmbedRecipe:
    """Return a model's recipe, with image input where it can be served.

    Raises as `make_recipe` does.
    """
    made = make_recipe(spec.model_path, config, spec.overrides)
    if not isinstance(made, Recipe) or not made.media:
        return made
    return with_usable_media(made, spec.overrides, proxied=is_proxied())


def check_routed_experts(recipe: Recipe, config: ModelServerConfig) -> None:
    """Raise InvalidRequest where a host could not tell which experts all tokens used."""
    if not recipe.routed_experts:
        return
    for holds, where, remedy in (
        (recipe.stages > 1, "stages before the last give no answers", "publish without NUM_STAGES"),
        (
            config.gives_pages or config.takes_pages,
            "other servers or islands compute its prompts",
            "start the server without --prefill, --prefill_servers and --prefill_islands",
        ),
    ):
        if holds:
            raise InvalidRequest(
                f"RETURN_ROUTED_EXPERTS is true, but {where}: {remedy}, or leave it out",
                param="overrides.RETURN_ROUTED_EXPERTS",
            )


def check_behind_proxy(recipe: Recipe, config: ModelServerConfig) -> None:
    """Raise InvalidRequest for what a model cannot have on islands behind a proxy server."""
    if not is_proxied():
        return
    for has, what, remedy in (
        (recipe.adapters is not None, "room for adapters", "publish it without MAX_ADAPTERS"),
        (
            recipe.draft is not None,
            "a draft model",
            "publish it without SPECULATION and DRAFT_MODEL",
        ),
        (
            config.prefill or bool(config.prefill_servers),
            "prefill on other servers",
            "start it with --prefill_islands in place of --prefill and --prefill_servers",
        ),
        (
            recipe.stages > 1 and bool(config.prefill_islands),
            "stages beside islands for prompts",
            "publish it without NUM_STAGES, or start the server without --prefill_islands",
        ),
    ):
        if has:
            raise InvalidRequest(f"behind a proxy server a model has no {what} yet: {remedy}")
