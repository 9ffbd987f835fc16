"""Recipes of draft heads: layers that predict tokens from hidden states of the model.

A head has the model's tokens, context and dtype, and pages of its own with the numbers of the
model's pages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flax import nnx

from model_server.kernels.pages import CacheShape
from model_server.models.recipe import OwnHead, Recipe
from model_server.models.weights.weight import WeightForm


def own_head_recipe(recipe: Recipe, head: OwnHead) -> Recipe:
    """Return the recipe of the draft layers in a model's own checkpoint, quantised as the model."""
    made = head_recipe(recipe, head.build, recipe.cache)
    return replace(made, unused=head.copies, quantize=recipe.quantize)


def head_recipe(
    recipe: Recipe,
    build: Callable[[WeightForm], nnx.Module],
    cache: Callable[[int], CacheShape],
    layers: int = 1,
) -> Recipe:
    """Return the recipe of a head over a model.

    cache: as of any layer of it that attends.
    """

    def kept(shards: int) -> CacheShape:
        plain = replace(cache(shards), states=(), lenders=(), others=())
        return replace(plain, layers=layers + 1, kept=recipe.embed)

    return replace(
        recipe,
        build=build,
        cache=kept,
        adapters=None,
        draft=None,
        own_head=None,
        shows=None,
        media=(),
        media_rows=None,
        quantize=None,
        speculation=replace(recipe.speculation, draft=None, own=False),
        unused=(),
        windows=(None,) * (layers + 1),
        choosers=(),
        carried=None,
    )
