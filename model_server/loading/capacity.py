"""Computes slots, pages and context from device memory, before anything is allocated.

All byte counts are per device of the mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from model_server.config import ModelServerConfig
from model_server.disaggregation.transfers import CONTEXTS
from model_server.engine.buckets import Bucket, closed_set
from model_server.engine.step_program import StepProgram, told_as_plan_error
from model_server.engine.types import EngineLimits
from model_server.kernels.choice import kernel_for
from model_server.kernels.paged import Kernel
from model_server.kernels.pages import CacheShape, LayerPages
from model_server.loading.memory_plan import Devices, MemoryPlan, plan
from model_server.models.recipe import Recipe
from model_server.models.weights.sharding import Layout, bytes_per_device, layout_of, make_mesh
from model_server.models.weights.weight import Blueprint, leaf_shapes

PREFILL_BLOCKS = (1, 4, 8)  # bucket sizes, in blocks of prompt tokens per step
# Prompt tokens that attend together and share one read of the cached tokens. In the time it takes
# to read the weights, an accelerator computes several hundred tokens, a CPU only a few.
_CPU_PREFILL_BLOCK, _PREFILL_BLOCK = 32, 128
# Default page pool of a CPU server: modest, because other processes share the memory.
_CPU_KV_BYTES = 2**30


def plan_capacity(
    recipe: Recipe,
    module: Blueprint,
    layout: Layout,
    config: ModelServerConfig,
    in_use: int,
    own: Sequence[Any] | None = None,
) -> tuple[EngineLimits, MemoryPlan]:
    """Return the engine's limits and the memory plan of one device. Raises MemoryPlanError.

    layout: sizes only; it may want more devices than this server has. own: the devices of this
    process to use, if they are not the first ones of every host.
    """
    slots, context = recipe.slots or config.slots, _context(recipe, config)
    page = _page_bytes(recipe, layout, config.page_size)
    per_sequence = -(-context // config.page_size)
    travelling = page * pages_on_their_way(config, per_sequence)
    planned = plan(
        weights=weight_bytes(module, layout),
        kv_bytes_per_page=page,
        workspace=_workspace(recipe, layout, slots) + travelling,
        limit=device_limit(own or _of_this_process(layout), config),
        in_use=in_use,
        wanted_pages=_wanted_pages(config, layout, page, per_sequence, slots),
        min_pages=per_sequence,
        devices=layout.mesh.size,
    )
    block = _prefill_block(layout)
    limits = EngineLimits(
        slots=slots,
        pages=planned.pages,
        page_size=config.page_size,
        max_context=context,
        token_budget=slots + block * max(PREFILL_BLOCKS),
        max_logit_rows=max(slots, 2),
        prefill_block=block,
        max_prefill_blocks=max(PREFILL_BLOCKS),
        queue=config.queue,
    )
    return limits, planned


def pages_on_their_way(config: ModelServerConfig, per_sequence: int) -> int:
    """Pages outside the pool, for KV handoff: offered to other servers or being fetched."""
    return CONTEXTS * per_sequence * (config.gives_pages + config.takes_pages)


def least_bytes(
    recipe: Recipe, module: Blueprint, layout: Layout, config: ModelServerConfig
) -> int:
    """Bytes that one device needs to serve one whole sequence at a time."""
    per_sequence = -(-_context(recipe, config) // config.page_size)
    pages = per_sequence + 1 + pages_on_their_way(config, per_sequence)  # 1: the scratch page
    workspace = _workspace(recipe, layout, recipe.slots or config.slots)
    page = _page_bytes(recipe, layout, config.page_size)
    return weight_bytes(module, layout) + workspace + pages * page


def server_devices(config: ModelServerConfig) -> Devices:
    """Return the devices of all hosts of this server."""
    local = jax.local_devices()
    if local[0].platform == "cpu":
        return Devices(jax.device_count(), config.memory_limit * jax.process_count())
    here = sum(_accelerator_limit(device, config) for device in local)
    return Devices(jax.device_count(), here * jax.process_count())


def layout_for(recipe: Recipe) -> Layout:
    """Return the recipe's layout; by default all devices of the replica share the work.

    Sizes only: the plan checks that the devices exist. Raises InvalidRequest.
    """
    return layout_of(recipe.mesh_shape or (1, 1, len(jax.devices())), recipe.rules)


def weight_bytes(module: Blueprint, layout: Layout) -> int:
    """Bytes of weights on one device."""
    return sum(
        bytes_per_device(leaf.shape, leaf.bits, layout.sharding(leaf.shape, leaf.axes, leaf.bits))
        for weight in module.declarations
        for leaf in weight.leaves
    )


def kernel_of(recipe: Recipe, layout: Layout) -> Kernel:
    """Return the attention kernel for these devices."""
    cache = cache_of(recipe, layout)
    return kernel_for(
        layout.platform,
        layout.mesh,
        layout.axis(cache.query_axis),
        layout.axis(cache.axis),
        kv_dtype(recipe, layout),
    )


def kv_dtype(recipe: Recipe, layout: Layout) -> jnp.dtype:
    """Return the dtype of cached keys and values."""
    if recipe.kv_cache_dtype is not None:
        return jnp.dtype(recipe.kv_cache_dtype)
    # On a CPU bf16 products inside the page loop take a slow path; f32 runs at memory speed.
    return jnp.dtype("float32" if layout.platform == "cpu" else recipe.dtype)


def cache_of(recipe: Recipe, layout: Layout) -> CacheShape:
    """Return the shape of one token's cache on these devices."""
    return recipe.cache(layout.shards("heads"))


def _context(recipe: Recipe, config: ModelServerConfig) -> int:
    return min(recipe.max_context, config.max_context or recipe.max_context)


def _page_bytes(recipe: Recipe, layout: Layout, page_size: int) -> int:
    cache = cache_of(recipe, layout)
    shapes = kernel_of(recipe, layout).shapes
    with told_as_plan_error():
        whole = cache.bytes_per_page(page_size, kv_dtype(recipe, layout), shapes)
    return whole // layout.shards(cache.axis)


def _of_this_process(layout: Layout) -> list[Any]:
    """This process's devices in the layout; all of them if the layout wants more than there are."""
    if layout.mesh.size >= len(jax.devices()):
        return jax.local_devices()
    devices = make_mesh(tuple(layout.mesh.shape.values())).devices.flat
    return [device for device in devices if device.process_index == jax.process_index()]


def device_limit(devices: Sequence[Any], config: ModelServerConfig) -> int:
    """Bytes that one of these devices may hold; CPU devices share the machine's memory."""
    device = devices[0]
    if device.platform == "cpu":
        return config.memory_limit // len(devices)
    return _accelerator_limit(device, config)


def _accelerator_limit(device: Any, config: ModelServerConfig) -> int:
    if config.memory_limit_bytes:
        return config.memory_limit_bytes
    stats = device.memory_stats() or {}
    return stats.get("bytes_limit") or config.memory_limit


def _wanted_pages(
    config: ModelServerConfig, layout: Layout, page: int, per_sequence: int, slots: int
) -> int | None:
    """Pages for the whole context of every slot, capped by the flags or the CPU default."""
    whole = per_sequence * slots
    if config.kv_cache_bytes is not None:
        return min(whole, config.kv_cache_bytes // page - 1)
    if layout.platform == "cpu":
        return min(whole, max(per_sequence, _CPU_KV_BYTES // page - 1))
    return None


def _prefill_block(layout: Layout) -> int:
    return _CPU_PREFILL_BLOCK if layout.platform == "cpu" else _PREFILL_BLOCK


def _workspace(recipe: Recipe, layout: Layout, slots: int) -> int:
    """Bytes of the largest step's temporaries: several copies of the logits, and its tokens."""
    tokens = slots + _prefill_block(layout) * max(PREFILL_BLOCKS)
    logits = 4 * max(slots, 2) * recipe.vocab * 6
    return logits + 4 * tokens * recipe.embed * 32 + 64 * 2**20


def buckets_of(limits: EngineLimits) -> tuple[Bucket, ...]:
    """Return every step shape to compile at load."""
    return closed_set(limits.slots, PREFILL_BLOCKS)


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
