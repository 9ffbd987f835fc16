"""How much of a model one server holds: slots, pages and context, from the memory of its devices.

All bytes are of one device of the mesh. Decides before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from model_server.config import ModelServerConfig
from model_server.devices import Devices
from model_server.disaggregation.apart import CONTEXTS
from model_server.engine.refused import told_as_plan_error
from model_server.engine.types import EngineLimits
from model_server.kernels.choice import kernel_for
from model_server.kernels.paged import Kernel
from model_server.kernels.pages import CacheShape
from model_server.memory_plan import MemoryPlan, plan
from model_server.models.recipe import Recipe
from model_server.models.sharding import Layout, bytes_per_device, layout_of, make_mesh
from model_server.models.weight import Blueprint

PREFILL_BLOCKS = (1, 4, 8)  # bucket sizes, in blocks of prompt tokens per step
# Tokens of one prompt that attend together, and read its cached tokens together. An accelerator
# computes several hundred tokens in the time that it takes to read the weights, a CPU few.
_CPU_PREFILL_BLOCK, _PREFILL_BLOCK = 32, 128
# Unless told otherwise a CPU server keeps its page pool modest: memory is shared with others.
_CPU_KV_BYTES = 2**30


def plan_capacity(
    recipe: Recipe,
    module: Blueprint,
    layout: Layout,
    config: ModelServerConfig,
    in_use: int,
    own: Sequence[Any] | None = None,
) -> tuple[EngineLimits, MemoryPlan]:
    """The engine's limits and what one device will hold. Raises MemoryPlanError.

    layout: of sizes alone; it may want more devices than this server has. own: devices of this
    process that it takes, where they are not the first of every host.
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
    """Pages beside the pool that are offered to other servers, and fetched from them."""
    return CONTEXTS * per_sequence * (config.gives_pages + config.takes_pages)


def least_bytes(
    recipe: Recipe, module: Blueprint, layout: Layout, config: ModelServerConfig
) -> int:
    """What one device must hold for the model to serve one whole sequence at a time."""
    per_sequence = -(-_context(recipe, config) // config.page_size)
    pages = per_sequence + 1 + pages_on_their_way(config, per_sequence)  # 1: the scratch page
    workspace = _workspace(recipe, layout, recipe.slots or config.slots)
    page = _page_bytes(recipe, layout, config.page_size)
    return weight_bytes(module, layout) + workspace + pages * page


def server_devices(config: ModelServerConfig) -> Devices:
    """The devices of this server, those of all its hosts together."""
    local = jax.local_devices()
    if local[0].platform == "cpu":
        return Devices(jax.device_count(), config.memory_limit * jax.process_count())
    here = sum(_accelerator_limit(device, config) for device in local)
    return Devices(jax.device_count(), here * jax.process_count())


def layout_for(recipe: Recipe) -> Layout:
    """What a recipe asks for; by default every device of the replica shares the work.

    Of sizes alone: whether they are there is part of the plan. Raises InvalidRequest.
    """
    return layout_of(recipe.mesh_shape or (1, 1, len(jax.devices())), recipe.rules)


def weight_bytes(module: Blueprint, layout: Layout) -> int:
    """What one device holds of the weights."""
    return sum(
        bytes_per_device(leaf.shape, leaf.bits, layout.sharding(leaf.shape, leaf.axes, leaf.bits))
        for weight in module.declarations
        for leaf in weight.leaves
    )


def kernel_of(recipe: Recipe, layout: Layout) -> Kernel:
    """What attends on these devices."""
    cache = cache_of(recipe, layout)
    return kernel_for(
        layout.platform,
        layout.mesh,
        layout.axis(cache.query_axis),
        layout.axis(cache.axis),
        kv_dtype(recipe, layout),
    )


def kv_dtype(recipe: Recipe, layout: Layout) -> jnp.dtype:
    """What keys and values are cached as."""
    if recipe.kv_cache_dtype is not None:
        return jnp.dtype(recipe.kv_cache_dtype)
    # On a CPU bf16 products inside the page loop take a slow path; f32 runs at memory speed.
    return jnp.dtype("float32" if layout.platform == "cpu" else recipe.dtype)


def cache_of(recipe: Recipe, layout: Layout) -> CacheShape:
    """What is cached of a token on these devices."""
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
    """The devices of this process that the layout takes; all, where it wants more."""
    if layout.mesh.size >= len(jax.devices()):
        return jax.local_devices()
    devices = make_mesh(tuple(layout.mesh.shape.values())).devices.flat
    return [device for device in devices if device.process_index == jax.process_index()]


def device_limit(devices: Sequence[Any], config: ModelServerConfig) -> int:
    """Bytes that one of these may hold; a process's CPU devices share the machine's memory."""
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
    """Pages for every slot's whole context, within what the flags or the CPU's habit allow."""
    whole = per_sequence * slots
    if config.kv_cache_bytes is not None:
        return min(whole, config.kv_cache_bytes // page - 1)
    if layout.platform == "cpu":
        return min(whole, max(per_sequence, _CPU_KV_BYTES // page - 1))
    return None


def _prefill_block(layout: Layout) -> int:
    return _CPU_PREFILL_BLOCK if layout.platform == "cpu" else _PREFILL_BLOCK


def _workspace(recipe: Recipe, layout: Layout, slots: int) -> int:
    """Bytes of the largest step's temporaries: logits a few times over, and the token batch."""
    tokens = slots + _prefill_block(layout) * max(PREFILL_BLOCKS)
    logits = 4 * max(slots, 2) * recipe.vocab * 6
    return logits + 4 * tokens * recipe.embed * 32 + 64 * 2**20
