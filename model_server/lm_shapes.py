"""Shapes of a language model's weights, pages and programs, before any exist.

Shared by a server that loads the model on its own devices and by plans for other devices.
"""

from __future__ import annotations

from typing import Any

import jax

from model_server.capacity import PREFILL_BLOCKS, cache_of, kernel_of, kv_dtype
from model_server.engine.buckets import Bucket, closed_set
from model_server.engine.step_program import StepProgram
from model_server.engine.types import EngineLimits
from model_server.kernels.pages import LayerPages
from model_server.models.recipe import Recipe
from model_server.models.sharding import Layout
from model_server.models.weight import Blueprint


def buckets_of(limits: EngineLimits) -> tuple[Bucket, ...]:
    """Return every step shape to compile at load."""
    return closed_set(limits.slots, PREFILL_BLOCKS)


def leaf_shapes(blueprint: Blueprint, layout: Layout) -> list[jax.ShapeDtypeStruct]:
    """Return shapes, dtypes and shardings of the weight arrays."""
    return [
        jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=layout.sharding(leaf.shape, leaf.axes, leaf.bits)
        )
        for weight in blueprint.declarations
        for leaf in weight.leaves
    ]


def pool_shapes(recipe: Recipe, limits: EngineLimits, layout: Layout) -> tuple[LayerPages, ...]:
    """Return shapes, dtypes and shardings of the page pool, per layer."""
    cache = cache_of(recipe, layout)
    sharding = layout.pages(cache.axis)
    shapes = kernel_of(recipe, layout).shapes
    one = shapes(cache, limits.pages, limits.page_size, kv_dtype(recipe, layout))

    def placed(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return (jax.tree.map(placed, one),) * cache.layers


def step_program(
    recipe: Recipe, blueprint: Blueprint, limits: EngineLimits, layout: Layout
) -> StepProgram:
    """Return the step program of this model for the layout's devices."""
    return StepProgram(
        blueprint,
        leaf_shapes(blueprint, layout),
        pool_shapes(recipe, limits, layout),
        limits,
        kernel_of(recipe, layout),
        layout.row_split(),
    )
