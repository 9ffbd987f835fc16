"""How much of a model one server holds: slots, pages and context, from the memory of its devices.

All bytes are of one device of the mesh. Decides before anything is allocated.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from model_server.config import ModelServerConfig
from model_server.disaggregation.apart import CONTEXTS
from model_server.engine.types import EngineLimits
from model_server.kernels.pages import CacheShape
from model_server.memory_plan import MemoryPlan, plan
from model_server.models.recipe import Recipe
from model_server.models.sharding import bytes_per_device, sharding_of
from model_server.models.weight import Blueprint

PREFILL_BLOCK = 32  # tokens of one prompt that attend together
PREFILL_BLOCKS = (1, 4, 8)  # bucket sizes: 32, 128 and 256 prompt tokens per step
# Unless told otherwise a CPU server keeps its page pool modest: memory is shared with others.
_CPU_KV_BYTES = 2**30


def plan_capacity(
    recipe: Recipe, module: Blueprint, mesh: Mesh, config: ModelServerConfig, in_use: int
) -> tuple[EngineLimits, MemoryPlan]:
    """The engine's limits and what one device will hold. Raises MemoryPlanError."""
    slots = recipe.slots or config.slots
    context = min(recipe.max_context, config.max_context or recipe.max_context)
    page = _page_bytes(recipe.cache(mesh.shape["model"]), mesh, config.page_size, kv_dtype(recipe))
    per_sequence = -(-context // config.page_size)
    planned = plan(
        weights=weight_bytes(module, mesh),
        kv_bytes_per_page=page,
        workspace=_workspace(recipe, slots) + page * pages_on_their_way(config, per_sequence),
        limit=device_limit(mesh, config),
        in_use=in_use,
        wanted_pages=_wanted_pages(config, page, per_sequence, slots),
        min_pages=per_sequence,
    )
    limits = EngineLimits(
        slots=slots,
        pages=planned.pages,
        page_size=config.page_size,
        max_context=context,
        token_budget=slots + PREFILL_BLOCK * max(PREFILL_BLOCKS),
        max_logit_rows=max(slots, 2),
        prefill_block=PREFILL_BLOCK,
        max_prefill_blocks=max(PREFILL_BLOCKS),
        queue=config.queue,
    )
    return limits, planned


def pages_on_their_way(config: ModelServerConfig, per_sequence: int) -> int:
    """Pages beside the pool that are offered to other servers, and fetched from them."""
    return CONTEXTS * per_sequence * (config.gives_pages + config.takes_pages)


def weight_bytes(module: Blueprint, mesh: Mesh) -> int:
    """What one device holds of the weights."""
    return sum(
        bytes_per_device(leaf.shape, leaf.bits, sharding_of(leaf.shape, leaf.axes, mesh))
        for weight in module.declarations
        for leaf in weight.leaves
    )


def kv_dtype(recipe: Recipe) -> jnp.dtype:
    """What keys and values are cached as."""
    if recipe.kv_cache_dtype is not None:
        return jnp.dtype(recipe.kv_cache_dtype)
    # On a CPU bf16 products inside the page loop take a slow path; f32 runs at memory speed.
    return jnp.dtype("float32" if jax.default_backend() == "cpu" else recipe.dtype)


def _page_bytes(cache: CacheShape, mesh: Mesh, page_size: int, dtype: jnp.dtype) -> int:
    whole = cache.bytes_per_page(page_size, dtype)
    return whole // mesh.shape["model"] if cache.axis else whole


def device_limit(mesh: Mesh, config: ModelServerConfig) -> int:
    """Bytes that one device may hold; CPU devices share the memory of the machine."""
    device = mesh.devices.flat[0]
    if device.platform == "cpu":
        return config.memory_limit // math.prod(mesh.devices.shape)
    stats = device.memory_stats() or {}
    return config.memory_limit_bytes or stats.get("bytes_limit") or config.memory_limit


def _wanted_pages(
    config: ModelServerConfig, page: int, per_sequence: int, slots: int
) -> int | None:
    """Pages for every slot's whole context, within what the flags or the CPU's habit allow."""
    whole = per_sequence * slots
    if config.kv_cache_bytes is not None:
        return min(whole, config.kv_cache_bytes // page - 1)
    if jax.default_backend() == "cpu":
        return min(whole, max(per_sequence, _CPU_KV_BYTES // page - 1))
    return None


def _workspace(recipe: Recipe, slots: int) -> int:
    """Bytes of the largest step's temporaries: logits a few times over, and the token batch."""
    tokens = slots + PREFILL_BLOCK * max(PREFILL_BLOCKS)
    logits = 4 * max(slots, 2) * recipe.vocab * 6
    return logits + 4 * tokens * recipe.embed * 32 + 64 * 2**20
