"""One value says how a model lies on devices, wherever these are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from msgspec import structs

from model_server.config import ModelServerConfig
from model_server.loading.deployment import Deployment, deploy, place_model
from model_server.loading.memory_plan import FreeMemory
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import layout_of
from sax.errors import MemoryPlanError
from tests.model_server.multihost.staged import LM, TINY

CONFIG = ModelServerConfig(slots=4, page_size=8, max_context=64)
FREE = FreeMemory(2**30, 0)
PAGE = 3 * 2 * 8 * 4 * 8 * 4  # layers, keys and values, G, K, Q, bytes


def recipe(**overrides: str) -> Any:
    return make_recipe(LM, None, TINY | overrides)


def deployed(**overrides: str) -> Deployment:
    return deploy(recipe(**overrides), None, layout_of().placed(), CONFIG, FREE)


def test_every_slot_gets_its_whole_context_if_there_is_room() -> None:
    made = deployed()
    assert made.limits.pages == 4 * 8
    assert made.memory.kv == (4 * 8 + 1) * PAGE
    assert made.page_bytes(8) == PAGE
    assert made.memory.total == made.weight_bytes + made.memory.kv + made.workspace(4)


def test_what_is_in_use_is_not_free() -> None:
    with pytest.raises(MemoryPlanError, match="in use by other models"):
        deploy(recipe(), None, layout_of().placed(), CONFIG, FreeMemory(2**30, 2**30 - 2**20))


def test_pages_are_shaped_and_allocated_alike() -> None:
    made = deployed()
    pages = made.allocate_pages()
    told = jax.tree.map(lambda page: (page.shape, page.dtype, page.sharding), made.pool_shapes)
    assert jax.tree.map(lambda page: (page.shape, page.dtype, page.sharding), pages) == told
    assert made.program.pages == made.pool_shapes
    held = [leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(pages)]
    assert sum(held) == made.memory.kv


def test_a_mesh_without_devices_gives_the_same_sizes() -> None:
    sizes, made = place_model(recipe(), None, layout_of()), deployed()
    assert sizes.weight_bytes == made.weight_bytes
    assert sizes.least_bytes(CONFIG) == made.least_bytes(CONFIG)
    assert sizes.deploy(CONFIG, FREE).limits == made.limits
    four = place_model(recipe(), None, layout_of((1, 1, 4)))
    assert four.page_bytes(8) == PAGE // 4
    assert sizes.weight_bytes // 4 < four.weight_bytes < sizes.weight_bytes  # norms are copied


def test_the_cache_is_float32_on_a_cpu_unless_told_otherwise() -> None:
    assert deployed(DTYPE='"bfloat16"').kv_dtype == jnp.float32
    assert deployed(KV_CACHE_DTYPE='"int8"').kv_dtype == jnp.int8


def test_fewer_pages_make_another_program_of_the_same_model() -> None:
    made = deployed()
    less = made.with_pages(11)
    assert (less.limits.pages, less.memory.pages, less.memory.kv) == (11, 11, 12 * PAGE)
    assert less.program.pages[0].keys.shape[0] == 12
    assert made.program.pages[0].keys.shape[0] == 33
    assert less.blueprint is made.blueprint


def test_the_primarys_limits_are_adopted_if_they_fit() -> None:
    made = deployed()
    wanted = structs.replace(made.limits, pages=20)
    assert made.following(wanted).limits == wanted
    assert made.following(wanted).memory.pages == 20
    text = "this host has memory for 32 KV pages, but the primary planned 33: .* --kv_cache_bytes"
    with pytest.raises(MemoryPlanError, match=text):
        made.following(structs.replace(made.limits, pages=33))


def test_a_stage_is_a_deployment_of_some_layers() -> None:
    parts = recipe(NUM_STAGES="2").cut()
    first, last = (deploy(part, None, layout_of().placed(), CONFIG, FREE) for part in parts)
    assert (first.cache.layers, last.cache.layers) == (2, 1)
    assert first.stage is not None
    assert first.stage.is_first
    assert first.total_bytes == 2 * first.memory.total
