"""One value says how a model lies on devices, wherever these are."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from model_server.config import ModelServerConfig
from model_server.disaggregation.handed_pages import transit_room
from model_server.engine.paging.window_pages import window_page_count
from model_server.kernels.cpu import native
from model_server.loading.asked_limits import AskedLimits
from model_server.loading.deployment import Deployment, deploy, plan_pages
from model_server.loading.memory_plan import FreeMemory, PageBytes
from model_server.loading.placed_model import place_model
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import layout_of, own_device
from sax.errors import InvalidRequest, MemoryPlanError
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
    assert AskedLimits(sizes, CONFIG).least_bytes == AskedLimits(made, CONFIG).least_bytes
    assert plan_pages(sizes, CONFIG, FREE).limits == made.limits
    four = place_model(recipe(), None, layout_of((1, 1, 4)))
    assert four.page_bytes(8) == PAGE // 4
    assert sizes.weight_bytes // 4 < four.weight_bytes < sizes.weight_bytes  # norms are copied


def test_draft_tokens_take_the_rows_that_slots_leave_unless_they_were_asked_for() -> None:
    plain, asked, off = (deployed(SPECULATION=mode) for mode in ("null", '"ngram"', '"off"'))
    assert (plain.limits.draft_tokens, plain.limits.decodes) == (8, 4)
    assert (asked.limits.draft_tokens, asked.limits.decodes) == (8, 9)
    assert (off.limits.draft_tokens, off.limits.decodes) == (0, 4)
    assert plain.buckets == off.buckets
    assert max(bucket.decodes for bucket in asked.buckets) == 9
    assert asked.limits.max_logit_rows == 9
    assert asked.memory.total > plain.memory.total
    few = deployed(SPECULATION='"ngram"', MAX_GUESSES="2")
    assert (few.limits.draft_tokens, few.buckets) == (2, plain.buckets)


def test_batch_sizes_that_were_asked_for_are_those_that_are_compiled() -> None:
    made = deployed(BATCH_SIZE="[3, 6, 20]", NUM_SAMPLES="1", NUM_CACHE_SLOTS="null")
    assert made.limits.slots == 20
    assert [each.decodes for each in made.buckets if not each.blocks] == [2, 3, 6, 20]
    assert {each.decodes for each in made.buckets if each.blocks} == {20}


def test_a_pipeline_drafts_only_if_it_was_asked_to() -> None:
    for mode, draft_tokens in (("null", 0), ('"ngram"', 8)):
        stage = recipe(SPECULATION=mode, NUM_STAGES="2").cut()[0]
        made = deploy(stage, None, layout_of().placed(), CONFIG, FREE)
        assert made.limits.draft_tokens == draft_tokens


def test_the_cache_is_float32_where_xla_attends_on_a_cpu_unless_told_otherwise() -> None:
    large = {"DTYPE": '"bfloat16"', "DIMS_PER_HEAD": "1168"}
    assert deployed(**large).kv_dtype == jnp.float32
    assert deployed(KV_CACHE_DTYPE='"int8"').kv_dtype == jnp.int8


@pytest.mark.skipif(not native.available(), reason="no compiler built the native kernels here")
def test_the_cache_has_the_dtype_of_the_model_where_native_kernels_attend() -> None:
    def on_one_device(**overrides: str) -> Deployment:
        of = recipe(DTYPE='"bfloat16"', **overrides)
        return deploy(of, None, own_device().placed(), CONFIG, FREE)

    assert on_one_device(DIMS_PER_HEAD="16").kv_dtype == jnp.bfloat16
    assert on_one_device(DIMS_PER_HEAD="8").kv_dtype == jnp.bfloat16
    assert on_one_device(DIMS_PER_HEAD="16", KV_CACHE_DTYPE='"float32"').kv_dtype == jnp.float32


@pytest.mark.skipif(not native.available(), reason="no compiler built the native kernels here")
def test_copies_of_a_page_leave_a_pool_of_bfloat16_in_place() -> None:
    of = recipe(DTYPE='"bfloat16"', DIMS_PER_HEAD="16")
    program = deploy(of, None, own_device().placed(), CONFIG, FREE).program
    memory = program.lower_copy().compile().memory_analysis()
    pool = sum(each.size * each.dtype.itemsize for each in jax.tree.leaves(program.pages))
    assert memory is not None
    assert memory.alias_size_in_bytes == pool
    assert memory.temp_size_in_bytes < pool // 4


@pytest.mark.skipif(not native.available(), reason="no compiler built the native kernels here")
def test_a_step_calls_the_native_kernels_and_leaves_xla_no_norm_gate_or_rotation() -> None:
    """Answers would be the same without them, only slower."""
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 96,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64,
    }
    of = make_recipe("llama", config, {"DTYPE": '"bfloat16"'})
    one = deploy(of, None, own_device().placed(), replace(CONFIG, page_size=16), FREE)
    text = one.program.lower(one.buckets[0]).as_text()
    assert {"plain", "attend_over_pages", "rms_norm", "gated", "heads"} <= set(
        re.findall(r"@sax_cpu_(\w+)", text)
    )
    assert "rsqrt" not in text


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


def auto(pages: int, **overrides: str) -> Deployment:
    """Deploy on memory that holds so many pages beside the model."""
    made = deployed()
    rest = made.memory.total - made.memory.kv
    return deploy(
        recipe(MAX_CONTEXT='"auto"', **overrides),
        None,
        layout_of().placed(),
        CONFIG_AUTO,
        FreeMemory(rest + (pages + 1) * PAGE, 0),
    )


CONFIG_AUTO = ModelServerConfig(slots=4, page_size=8)


@functools.cache
def own() -> int:
    """The model's longest context."""
    return recipe().max_context


@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_an_automatic_context_is_the_longest_that_every_slot_can_hold(data: st.DataObject) -> None:
    pages = data.draw(st.integers(4 * 32, 4 * own() // 8 + 40))
    limits = auto(pages).limits
    assert limits.slots * limits.pages_per_sequence <= limits.pages
    assert limits.max_context == min(own(), pages // 4 * 8)
    one_more = 4 * (limits.pages_per_sequence + 1)
    assert limits.max_context == own() or one_more > pages


def test_an_automatic_context_keeps_to_the_bytes_of_pages_that_were_given() -> None:
    made = auto(10_000, KV_CACHE_BYTES=str((4 * 40 + 1) * PAGE))
    assert made.limits.max_context == min(own(), 40 * 8)


def test_memory_too_small_for_the_shortest_automatic_context_is_refused() -> None:
    with pytest.raises(MemoryPlanError, match="--slots"):
        auto(4 * 32 - 1)


def test_the_flag_asks_for_an_automatic_context_unless_the_publication_gives_a_number() -> None:
    flag = ModelServerConfig(slots=4, page_size=8, max_context="auto")
    free = FreeMemory(auto(4 * 40).memory.total, 0)
    by_flag = deploy(recipe(), None, layout_of().placed(), flag, free)
    assert by_flag.limits.max_context == min(own(), 320)
    given_number = deploy(recipe(MAX_CONTEXT="64"), None, layout_of().placed(), flag, free)
    assert given_number.limits.max_context == 64
    short = ModelServerConfig(slots=4, page_size=8, max_context=64)
    capped = deploy(recipe(MAX_CONTEXT='"auto"'), None, layout_of().placed(), short, free)
    assert capped.limits.max_context == 64


def test_the_parts_of_a_plan_are_all_of_it() -> None:
    made = deployed()
    parts = made.parts
    assert parts.total == made.total_bytes == parts.least
    assert (parts.slots, parts.context, parts.tokens) == (4, 64, 4 * 64)
    assert min(parts.weights, parts.kv, parts.state, parts.workspace) > 0


def test_one_model_may_have_fewer_bytes_of_pages_than_the_flag_says() -> None:
    config = replace(CONFIG, kv_cache_bytes=2**29)
    made = deploy(recipe(KV_CACHE_BYTES=str(17 * PAGE)), None, layout_of().placed(), config, FREE)
    assert made.limits.pages == 16


def test_room_for_adapters_is_refused_where_no_weight_can_have_one() -> None:
    with pytest.raises(InvalidRequest, match="MAX_ADAPTERS"):
        deployed(MAX_ADAPTERS="2")


def gemma(context: int = 4096, slots: int = 4, **overrides: str) -> Any:
    """Five of six layers see 16 tokens; at the end there is one more that does."""
    config = {
        "model_type": "gemma3_text",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "vocab_size": 97,
        "max_position_embeddings": 4096,
        "sliding_window": 16,
    }
    given = {"MAX_CONTEXT": str(context), "NUM_CACHE_SLOTS": str(slots), "DTYPE": '"float32"'}
    return make_recipe("auto", config, given | overrides)


WHOLE = ModelServerConfig(page_size=8)
LAYER = 2 * 2 * 8 * 8 * 4  # bytes of a page: keys and values, K, Q, G, bytes


def deploy_gemma(part: Any, config: ModelServerConfig = WHOLE, free: int = 2**30) -> Deployment:
    return deploy(part, None, layout_of().placed(), config, FreeMemory(free, 0))


def test_layers_with_a_window_have_only_the_pages_that_their_windows_take() -> None:
    made = deploy_gemma(gemma())
    own = window_page_count(made.limits)
    assert made.limits.pages == 4 * 512
    assert own < 4 * 50
    pages = made.allocate_pages()
    assert [layer.keys.shape[0] for layer in pages] == [own + 1] * 5 + [2049, own + 1]
    assert [layer.keys.shape for layer in made.pool_shapes] == [each.keys.shape for each in pages]
    assert made.memory.kv == (2049 + 6 * (own + 1)) * LAYER
    assert made.memory.kv == sum(leaf.nbytes for leaf in jax.tree.leaves(pages))
    assert made.with_pages(600).memory.kv == (601 + 6 * (own + 1)) * LAYER
    assert made.with_pages(9).memory.kv == 7 * 10 * LAYER


@example(
    page=1, own=7, most=15, free=129, beside=1
)  # a page more, and no more of the window layers
@given(
    page=st.integers(1, 9),
    own=st.integers(0, 9),
    most=st.integers(0, 50),
    free=st.integers(0),
    beside=st.integers(1, 9),
)
def test_the_pages_that_fit_are_the_most_that_do(
    page: int, own: int, most: int, free: int, beside: int
) -> None:
    of = PageBytes(page, own, most, beside)
    fitting = of.fitting(free)
    assert fitting < 0 or of.pool(fitting) <= free
    assert of.pool(max(fitting, -1) + 1) > free


def test_memory_that_windows_leave_goes_to_the_layers_that_see_all() -> None:
    """As much memory as 700 pages of all layers take."""
    whole = deploy_gemma(gemma())
    rest = whole.memory.total - whole.memory.kv
    free = rest + 7 * 701 * LAYER
    config = replace(WHOLE, kv_cache_bytes=7 * 701 * LAYER)
    made = deploy_gemma(gemma(slots=2), config, free)
    assert made.limits.pages == 2 * 512
    assert made.memory.kv <= 7 * 701 * LAYER


def test_an_automatic_context_counts_what_windows_leave() -> None:
    kv = 7 * 701 * LAYER
    made = deploy_gemma(gemma(MAX_CONTEXT='"auto"', slots=4), replace(WHOLE, kv_cache_bytes=kv))
    assert made.limits.max_context > 700 // 4 * 8
    assert made.limits.pages >= 4 * made.limits.pages_per_sequence
    assert made.memory.kv <= kv


def test_layers_have_pages_in_common_where_that_frees_none() -> None:
    assert deploy_gemma(gemma(context=16)).limits.windows.sliding is None
    assert deploy_gemma(gemma(context=17)).limits.windows.sliding == 16


def test_pages_in_transit_are_planned_beside_the_pool() -> None:
    """Of four contexts of the layers that see all, and of the windows of sixteen prompts."""
    alone = deploy_gemma(gemma())
    for directions, role in ((1, {"prefill": True}), (2, {"prefill_servers": ("host:1",)})):
        role = replace(WHOLE, **{"prefill": True, **role})
        made = deploy_gemma(gemma(), role)
        assert (made.limits, made.memory.kv) == (alone.limits, alone.memory.kv)
        room = transit_room(made.limits)
        assert room == (4 * made.limits.pages_per_sequence, 16 * 3)
        moved = LAYER * (room.pages + 6 * room.window_pages)
        assert made.memory.total - alone.memory.total == directions * moved


def test_every_stage_knows_which_of_its_layers_have_a_window() -> None:
    stages = [deploy_gemma(part) for part in gemma(NUM_STAGES="2").cut()]
    own = window_page_count(stages[0].limits)
    assert stages[1].limits == stages[0].limits
    assert [each.layer_pages for each in stages] == [(own,) * 4, (own, 2048, own)]
    assert [each.program.window_layers for each in stages] == [(True,) * 4, (True, False, True)]
    assert stages[0].memory.kv == 4 * (own + 1) * LAYER
    follower = stages[1].following(structs.replace(stages[0].limits, pages=1000))
    assert follower.memory.kv == (1001 + 2 * (own + 1)) * LAYER
