"""Work counted from the shapes of a model; compiles nothing."""

from __future__ import annotations

import pytest

from model_server.engine.buckets import Bucket
from model_server.plan.hlo.traffic import HbmBytes, StepTraffic
from model_server.plan.slices import CHIPS
from model_server.plan.speeds import planned_step
from model_server.plan.work import LayerType, Workload, expected_experts
from tests.model_server.plan.measures import deployed, measured
from tests.model_server.tpu_compiler import needs_compiler

pytestmark = needs_compiler


def test_a_step_reads_every_weight_once_and_computes_twice_its_parameters() -> None:
    work = Workload(deployed("Llama-3-8B", "v5e:2x4", {})).of(Bucket(8, 0), 2048)
    table = 128256 * 4096
    assert work.weights == pytest.approx((8.03e9 - table) * 2 / 8, rel=0.01)
    assert work.flops - work.attention_flops == pytest.approx(
        2 * 8 * (8.03e9 - table) / 8, rel=0.01
    )
    # keys and values of 8 heads of 128 in 32 layers, one head on each chip
    assert work.cache == pytest.approx(8 * 2048 * 32 * 2 * 128 * 2, rel=0.01)
    assert work.attention_flops == 8 * 2048 * 32 * 4 * 128 * 4  # 4 of 32 heads on each


def test_a_window_bounds_what_is_read_of_a_long_context() -> None:
    anatomy = Workload(deployed("google/gemma-2-9b", "v5e:2x2", {})).anatomy
    assert anatomy.layers[:2] == (LayerType(window=4096), LayerType(window=None))
    assert anatomy.seen(8192) == 21 * (4096 + 8192)


def test_of_experts_only_those_that_the_batch_chooses_are_read() -> None:
    work = Workload(deployed("Qwen/Qwen3-30B-A3B", "v5e:2x4", {}))
    assert work.anatomy.experts_per_token == 8
    alone = work.of(Bucket(2, 0), 1).weights
    full = work.of(Bucket(32, 8), 2048).weights
    assert alone < 0.25 * full
    assert expected_experts(128, 8, 1) == pytest.approx(8)
    assert expected_experts(8, 8, 5) == 8


def test_the_rest_of_the_experts_is_not_moved_either() -> None:
    deployment = deployed("Qwen/Qwen3-30B-A3B", "v5e:2x4", {})
    work, bucket = Workload(deployment), Bucket(2, 0)
    least = work.of(bucket, 1)
    assert least.untouched == pytest.approx(deployment.weight_bytes * 0.95 * 112 / 128, rel=0.03)
    assert Workload(deployed("Llama-3-8B", "v5e:2x4", {})).of(bucket, 1).untouched == 0
    chip = CHIPS["v5e"]
    in_kernels = measured(bucket, traffic=_traffic(kernels=2 * least.untouched))
    assert planned_step(work, chip, in_kernels, 1).compiled_bytes == least.untouched + least.cache
    in_loops = measured(bucket, traffic=_traffic(read=2 * least.untouched))
    moved = planned_step(work, chip, in_loops, 1).compiled_bytes
    assert moved == 2 * least.untouched + least.cache


def _traffic(read: int = 0, kernels: int = 0) -> StepTraffic:
    return StepTraffic(HbmBytes(read, 0, kernels, 0), {}, 0)


def test_a_layer_with_a_state_reads_and_writes_it_once_for_each_sequence() -> None:
    made = deployed("Qwen/Qwen3-Next-80B-A3B", "v5e:4x4", {"MAX_CONTEXT": "8192"})
    work = Workload(made)
    assert [layer.memory for layer in work.anatomy.layers[:4]] == ["state"] * 3 + ["own"]
    assert work.anatomy.seen(100) == 12 * 100
    memory = 32 // 16 * 128 * 128  # of two of 32 heads
    before = 3 * (2048 + 2048 + 4096) // 16  # of the convolutions
    step = work.of(Bucket(8, 0), 2048)
    assert step.states == 2 * 8 * 36 * 4 * (memory + before)
    # keys and values of 2 heads of 256, which are on 16 chips
    assert step.cache == 12 * (8 * 2048 + 8) * 2 * 256 * 2
    assert work.of(Bucket(8, 4), 2048).states == step.states * 9 // 8


def test_a_borrowing_layer_reads_what_another_has_written() -> None:
    work = Workload(deployed("google/gemma-3n-E4B", "v5e:1x1", {"MAX_CONTEXT": "2048"}))
    assert work.anatomy.layers[19] == LayerType(window=None)
    assert work.anatomy.layers[34] == LayerType(window=None, memory="lent")
    token = 2 * 2 * 256 * 2
    read = 7 * 1024 + 28 * 512
    assert work.of(Bucket(8, 0), 1024).cache == 8 * (read + 20) * token
