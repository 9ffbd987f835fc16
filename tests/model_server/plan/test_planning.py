"""From what a compiler measured to a plan, over real slices; compiles nothing."""

from __future__ import annotations

import json

import pytest

from model_server.config import ModelServerConfig
from model_server.engine.buckets import Bucket
from model_server.loading.capacity import weight_bytes
from model_server.plan.advice import attempt, changes, fitting_slices
from model_server.plan.anatomy import LayerType, anatomy_of
from model_server.plan.chips import CHIPS
from model_server.plan.compiled import StepTraffic
from model_server.plan.hlo.traffic import HbmBytes
from model_server.plan.model import open_model
from model_server.plan.planning import make_plan, notes_of, usual_context
from model_server.plan.roofline import DeviceWork, roofline
from model_server.plan.target import Target, recipe_of, target_of
from model_server.plan.topology import topology_of
from model_server.plan.work import expected_experts, work_of
from sax.errors import InvalidRequest, MemoryPlanError
from tests.model_server.plan.measures import measured
from tests.model_server.tpu_compiler import needs_compiler

pytestmark = [pytest.mark.extended, needs_compiler]
_175B = "lm_cloud.LmCloudSpmd175B32Test"


def _target(model: str, topology: str, **overrides: str) -> Target:
    return target_of(model, overrides, topology, ModelServerConfig())


@pytest.mark.extended
def test_the_175b_fits_its_slice_with_room_for_every_slot() -> None:
    """The issue's own case: weights in int8, 16 GB a chip, KV pages beside them."""
    target = _target(_175B, "v5e:4x8")
    weights = weight_bytes(target.blueprint, target.layout)
    assert weights == pytest.approx(174.3e9 / 32, rel=0.01)
    assert target.planned.total < CHIPS["v5e"].usable
    assert target.limits.pages * target.limits.page_size >= 32 * target.limits.max_context


def test_a_step_reads_every_weight_once_and_computes_twice_its_parameters() -> None:
    target = _target("Llama-3-8B", "v5e:2x4")
    anatomy = anatomy_of(target.recipe)
    work = work_of(target, anatomy, Bucket(8, 0), 2048)
    table = 128256 * 4096
    assert work.weights == pytest.approx((8.03e9 - table) * 2 / 8, rel=0.01)
    assert work.flops - work.attention_flops == pytest.approx(
        2 * 8 * (8.03e9 - table) / 8, rel=0.01
    )
    # keys and values of 8 heads of 128 in 32 layers, one head on each chip
    assert work.cache == pytest.approx(8 * 2048 * 32 * 2 * 128 * 2, rel=0.01)
    assert work.attention_flops == 8 * 2048 * 32 * 4 * 128 * 4  # 4 of 32 heads on each


def test_a_window_bounds_what_is_read_of_a_long_context() -> None:
    target = _target("google/gemma-2-9b", "v5e:2x2")
    anatomy = anatomy_of(target.recipe)
    assert anatomy.layers[:2] == (LayerType(window=4096), LayerType(window=None))
    assert anatomy.seen(8192) == 21 * (4096 + 8192)


@pytest.mark.extended
def test_of_experts_only_those_that_the_batch_chooses_are_read() -> None:
    target = _target("Qwen/Qwen3-30B-A3B", "v5e:2x4")
    anatomy = anatomy_of(target.recipe)
    assert anatomy.experts_per_token == 8
    alone = work_of(target, anatomy, Bucket(2, 0), 1).weights
    full = work_of(target, anatomy, Bucket(32, 8), 2048).weights
    assert alone < 0.25 * full
    assert expected_experts(128, 8, 1) == pytest.approx(8)
    assert expected_experts(8, 8, 5) == 8


def test_the_slowest_of_three_bounds_a_step() -> None:
    chip = CHIPS["v5e"]
    reading = roofline(DeviceWork(flops=1e9, bytes=8.19e9, sent=1e3), chip)
    assert (reading.bound, reading.seconds) == ("HBM", pytest.approx(0.01))
    assert roofline(DeviceWork(flops=197e12, bytes=1e9, sent=1e3), chip).bound == "FLOPs"
    assert roofline(DeviceWork(flops=1e9, bytes=1e6, sent=2e9), chip).bound == "links"
    two = roofline(DeviceWork(flops=0, bytes=7380e9 / 2, sent=0), CHIPS["v7x"])
    assert two.seconds == pytest.approx(1)  # a device has half of the chip's memory


def test_a_plan_tells_memory_speeds_and_what_the_program_moves_too_much() -> None:
    target = _target("Llama-3-8B", "v5e:2x4")
    anatomy, context = anatomy_of(target.recipe), usual_context(target)
    work = work_of(target, anatomy, target.buckets[0], context)
    twice = StepTraffic(HbmBytes(2 * work.weights, 0, 0, 0), {}, 0)
    plan = make_plan(
        target,
        anatomy,
        [
            measured(bucket, arguments=target.planned.kv + work.weights, traffic=twice)
            for bucket in target.buckets
        ],
        context,
    )
    assert plan.fits
    assert context == 2048
    assert [each.batch for each in plan.decoding] == [2, 8, 16, 32]
    first = plan.decoding[0]
    moved = 2 * work.weights + work.cache
    assert first.tokens_per_second == pytest.approx(2 / (moved / 819e9))
    assert first.per_chip == pytest.approx(first.tokens_per_second / 8)
    assert plan.buckets[0].efficiency == pytest.approx(moved / work.bytes)
    assert [each.steps for each in plan.first_token] == [1, 1, 8]
    assert plan.memory is not None
    assert plan.memory.kv_tokens == target.limits.pages * 64
    spelled = json.loads(plan.as_json())
    assert spelled["predicted"]["decoding"][0]["batch"] == 2
    assert spelled["buckets"][0]["predicted"]["bound"] == "HBM"


def test_a_mesh_that_does_not_divide_the_heads_is_told_with_one_that_does() -> None:
    target = _target("Qwen/Qwen2.5-7B", "v5e:2x4")  # 28 heads
    (note,) = notes_of(target, anatomy_of(target.recipe))
    assert "28 heads (4 KV heads) do not divide over 8 devices" in note
    assert "ICI_MESH_SHAPE=[1,2,4]" in note
    better = _target("Qwen/Qwen2.5-7B", "v5e:2x4", ICI_MESH_SHAPE="[1,2,4]")
    assert not notes_of(better, anatomy_of(better.recipe))


def test_a_mesh_smaller_than_the_slice_is_told() -> None:
    target = _target(_175B, "v5e:8x8")
    assert "uses 32 of the 64 devices" in notes_of(target, anatomy_of(target.recipe))[0]


def test_a_mesh_larger_than_the_slice_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"needs 32 devices and v5e:4x4 has 16.*\[1,1,16\]"):
        _target(_175B, "v5e:4x4")


def test_what_does_not_fit_is_refused_as_a_load_would_refuse_it() -> None:
    with pytest.raises(MemoryPlanError, match="does not fit"):
        _target("Llama-3-70B", "v5e:2x2")


@pytest.mark.extended
def test_advice_names_only_changes_with_which_it_fits() -> None:
    topology, config = topology_of("v5e:1x1"), ModelServerConfig()
    with open_model("Qwen3-14B") as model:
        found = changes(model, {}, topology, config)
        assert found[0].startswith('--set QUANTIZE="int4": ')
        assert found[-1].startswith("--topology v5e:2x2: ")
        assert not any("int8" in text and "int4" not in text for text in found)
        recipe = recipe_of(model, {"QUANTIZE": '"int4"'})
        assert attempt(model, recipe, topology, config).fits


@pytest.mark.extended
def test_the_smallest_slice_is_found_by_arithmetic() -> None:
    with open_model("Llama-3-70B") as model:
        recipe = recipe_of(model, {})
        sizes = fitting_slices(model, recipe, ModelServerConfig(), ["v5e"])
        assert next(sizes)[0].name == "v5e:4x4"
