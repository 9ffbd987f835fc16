"""A deep model judged by a shallow one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from model_server.engine.buckets import Bucket
from model_server.engine.paging.window_pages import window_page_count
from model_server.kernels.pages import LayerPages
from model_server.plan.compiled import measure
from model_server.plan.depth import (
    Depths,
    Growth,
    depths_of,
    further_layers,
    growth_of,
    only_layers,
    shallow,
    uneven_bytes,
    whole,
)
from model_server.plan.hlo.module import parse, runs_of
from model_server.plan.hlo.traffic import HbmBytes, StepTraffic, traffic_of
from model_server.plan.work import anatomy_of
from tests.each_case import each_case
from tests.model_server.plan.measures import NO_TRAFFIC, deployed, measured
from tests.model_server.tpu_compiler import needs_compiler

_BUCKET = Bucket(8, 0)

# Two layers of one product each, an all-reduce after the first, and a loop in the second.
_TEXT = """HloModule step, num_partitions=4

%body (at: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %at = (s32[], f32[8,128]{1,0}) parameter(0)
  %n = s32[] get-tuple-element(%at), index=0
  %x = f32[8,128]{1,0} get-tuple-element(%at), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%n, %one)
  %more = f32[8,128]{1,0} add(%x, %x)
  ROOT %out = (s32[], f32[8,128]{1,0}) tuple(%next, %more)
}

%condition (at.1: (s32[], f32[8,128])) -> pred[] {
  %at.1 = (s32[], f32[8,128]{1,0}) parameter(0)
  %n.1 = s32[] get-tuple-element(%at.1), index=0
  %end = s32[] constant(3)
  ROOT %less = pred[] compare(%n.1, %end), direction=LT
}

ENTRY %main (tokens: f32[8,128], w0: f32[128,128], w1: f32[128,128]) -> f32[8,128] {
  %tokens = f32[8,128]{1,0} parameter(0), metadata={op_name="vector"}
  %w0 = f32[128,128]{1,0} parameter(1), metadata={op_name="leaves[0]"}
  %w1 = f32[128,128]{1,0} parameter(2), metadata={op_name="leaves[1]"}
  %twice = f32[8,128]{1,0} add(%tokens, %tokens)
  %dot.0 = f32[8,128]{1,0} dot(%twice, %w0)
  %sum = f32[8,128]{1,0} all-reduce(%dot.0), replica_groups={{0,1,2,3}}
  %dot.1 = f32[8,128]{1,0} dot(%sum, %w1)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,128]{1,0}) tuple(%zero, %dot.1)
  %loop = (s32[], f32[8,128]{1,0}) while(%start), condition=%condition, body=%body
  ROOT %end.1 = f32[8,128]{1,0} get-tuple-element(%loop), index=1
}
"""
_ROWS, _WEIGHT = 8 * 128 * 4, 128 * 128 * 4


@each_case(
    "kinds, expected",
    [
        ("a" * 96, (7, 8, range(2, 3))),
        ("ab" * 23, (6, 8, range(2, 4))),  # Gemma 2: a window in every second layer
        ("aaaaab" * 10 + "aa", (4, 10, range(2, 8))),  # Gemma 3
        ("ddd" + "r" * 58, (7, 8, range(4, 5))),  # DeepSeek-V3: three dense layers first
        ("a" * 9, None),
        ("abc" * 2, None),
        ("abcdefghijkl", None),
    ],
)
def test_some_layers_tell_of_all_where_their_pattern_is_long_enough(
    kinds: str, expected: tuple[int, int, range] | None
) -> None:
    found = depths_of(kinds)
    assert (found and (found.few, found.more, found.typical)) == expected


def test_what_the_typical_layers_move_is_added_for_those_that_were_not_compiled() -> None:
    shallow = measured(
        _BUCKET,
        flops=20.0,
        traffic=StepTraffic(HbmBytes(100, 40, 8, 0), {"all-reduce": 70, "all-gather": 5}, 9),
        further=StepTraffic(HbmBytes(50, 20, 5, 0), {"all-reduce": 35}, 5),
    )
    found = whole(shallow, Growth(0, 0, 0, 0), Depths(6, 8, 18, range(2, 4)), 2.5)
    assert found.traffic == StepTraffic(
        HbmBytes(150, 60, 13, 0), {"all-reduce": 105, "all-gather": 5}, 14
    )
    assert (found.flops, found.further) == (50.0, None)


def test_the_memory_of_a_layer_comes_from_one_bucket_and_counts_for_each() -> None:
    few = measured(_BUCKET, arguments=500, temporaries=120, outputs=3, code=40)
    more = measured(_BUCKET, arguments=600, temporaries=100, outputs=3, code=44)
    depths = Depths(7, 8, 10, range(2, 3))
    growth = growth_of(few, more, depths)
    assert growth == Growth(arguments=100, temporaries=0, outputs=0, code=4)
    other = measured(Bucket(8, 4), arguments=650, temporaries=9, code=90, further=NO_TRAFFIC)
    found = whole(other, growth, depths, 1.0)
    assert (found.arguments, found.temporaries, found.code) == (850, 9, 98)


def test_layers_that_make_up_no_whole_period_are_told_by_their_own_kind() -> None:
    whole_periods = Depths(6, 8, 18, range(2, 4))
    assert whole_periods.missing == [(range(2, 4), 5)]
    # Layers 12 to 79, of which every eighth attends: eight periods, and 12 to 15 as 4 to 7.
    assert Depths(4, 12, 80, range(2, 10)).missing == [(range(2, 10), 8), ({4, 5, 6, 7}, 1)]


def _layer_of(parameter: str) -> int | None:
    found = re.fullmatch(r"leaves\[(\d+)\]", parameter)
    return int(found[1]) if found else None


def test_a_layer_has_what_depends_on_its_weights_and_on_no_later_ones() -> None:
    program = parse(_TEXT)
    first = traffic_of(only_layers(program, {0}, _layer_of))
    # The product reads rows and weights, the exchange its rows; each writes rows.
    assert (first.moved.read, first.moved.written) == (2 * _ROWS + _WEIGHT, 2 * _ROWS)
    assert (first.sent, first.exchanges) == ({"all-reduce": 2 * 3 * _ROWS // 4}, 1)


# Small computations of two layers, which XLA makes one fusion of, before the first layer is done.
_JOINED = """HloModule step, num_partitions=1

%both (a: f32[8,128], b: f32[8,128]) -> (f32[8,128], f32[8,128]) {
  %a = f32[8,128]{1,0} parameter(0)
  %b = f32[8,128]{1,0} parameter(1)
  %a.1 = f32[8,128]{1,0} add(%a, %a)
  %b.1 = f32[8,128]{1,0} add(%b, %b)
  ROOT %two = (f32[8,128]{1,0}, f32[8,128]{1,0}) tuple(%a.1, %b.1)
}

ENTRY %main (p0: f32[8,128], p1: f32[8,128], w0: f32[128,128], w1: f32[128,128]) -> f32[8,128] {
  %p0 = f32[8,128]{1,0} parameter(0), metadata={op_name="leaves[0]"}
  %p1 = f32[8,128]{1,0} parameter(1), metadata={op_name="leaves[1]"}
  %w0 = f32[128,128]{1,0} parameter(2), metadata={op_name="leaves[0]"}
  %w1 = f32[128,128]{1,0} parameter(3), metadata={op_name="leaves[1]"}
  %joined = (f32[8,128]{1,0}, f32[8,128]{1,0}) fusion(%p0, %p1), kind=kLoop, calls=%both
  %first = f32[8,128]{1,0} get-tuple-element(%joined), index=0
  %second = f32[8,128]{1,0} get-tuple-element(%joined), index=1
  %dot.0 = f32[8,128]{1,0} dot(%first, %w0)
  %sum = f32[8,128]{1,0} add(%dot.0, %second)
  ROOT %dot.1 = f32[8,128]{1,0} dot(%sum, %w1)
}
"""


def test_a_fusion_for_two_layers_does_not_make_one_of_them() -> None:
    program = parse(_JOINED)
    first = traffic_of(only_layers(program, {0}, _layer_of)).moved
    assert (first.read, first.written) == (_ROWS + _WEIGHT, _ROWS)


def test_a_loop_of_a_layer_counts_as_often_as_it_runs() -> None:
    program = parse(_TEXT)
    second = only_layers(program, {1}, _layer_of)
    assert [run.times for run in runs_of(second)] == [1, 3]
    rounds = 3 * 2 * _ROWS + 3 * 4  # its sums, and the counter
    moved = traffic_of(second).moved
    assert moved.read - rounds <= _ROWS + _WEIGHT + 3 * 8
    assert traffic_of(second).exchanges == 0


def test_the_layers_and_what_is_before_them_make_up_the_whole() -> None:
    program = parse(_TEXT)
    parts = [traffic_of(only_layers(program, {n}, _layer_of)).moved for n in (-1, 0, 1)]
    whole = traffic_of(program).moved
    scalars = 64
    assert abs(sum(part.read for part in parts) - whole.read) <= scalars
    assert sum(part.written for part in parts) - whole.written <= scalars


def test_pages_that_layers_do_not_have_alike_are_all_counted() -> None:
    """Of the 62 layers of Gemma 3 27B 10 see all, of the first 10 one, and of every 6 one."""
    made = deployed("google/gemma-3-27b", "v5e:2x4", {"MAX_CONTEXT": "32768"})
    depths = Depths(4, 10, 62, range(2, 8))
    layer = made.page_bytes(64) // 62
    wide, narrow = (
        (count + 1) * layer for count in (made.limits.pages, window_page_count(made.limits))
    )
    counted = wide + 9 * narrow + round((wide + 5 * narrow) / 6 * 52)
    assert counted + uneven_bytes(made, depths) == made.memory.kv == 10 * wide + 52 * narrow
    alike = deployed("google/gemma-3-27b", "v5e:2x4", {"MAX_CONTEXT": "1024"})
    assert uneven_bytes(alike, depths) == 0


_SMALL_HYBRID: dict[str, Any] = {
    "model_type": "minimax",
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "layer_types": (["linear_attention"] * 7 + ["full_attention"]) * 3,
    "max_position_embeddings": 4096,
    "num_attention_heads": 16,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 4,
    "rope_theta": 10000,
    "vocab_size": 32000,
}


def _written(folder: Path, config: dict[str, Any]) -> str:
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return str(file)


def test_layers_with_a_state_are_not_taken_for_layers_that_attend(tmp_path: Path) -> None:
    made = deployed(_written(tmp_path, _SMALL_HYBRID), "v5e:1x1", {})
    kinds = anatomy_of(made.recipe).kinds
    assert kinds[0] == kinds[6] != kinds[7] == kinds[15]
    depths = Depths(4, 12, 24, range(2, 10))
    assert depths_of(kinds) == depths
    few = shallow(made, None, depths.more)
    assert [isinstance(pages, LayerPages) for pages in few.pool_shapes] == [False] * 7 + [True] + [
        False
    ] * 4
    # Of the first 12 layers one attends, and of the further 12 two.
    held = few.pages_of(made.limits).pool(made.limits.pages)
    one_period = held - shallow(made, None, 4).pages_of(made.limits).pool(made.limits.pages)
    attending, recurrent = ((made.layer_pages[n] + 1) * made.layer_bytes(64)[n] for n in (7, 0))
    assert one_period == attending + 7 * recurrent
    weights = made.weight_bytes - few.weight_bytes
    assert made.memory.kv == 3 * attending + 21 * recurrent
    counted = (
        held
        + few.weight_bytes
        + round((one_period + few.weight_bytes - shallow(made, None, 4).weight_bytes) / 8 * 12)
    )
    assert counted + uneven_bytes(made, depths) == made.memory.kv + few.weight_bytes + weights


def test_both_halves_of_a_layer_of_two_stand_for_the_further_ones() -> None:
    made = deployed("tiiuae/Falcon-H1-7B", "v5e:2x2", {"MAX_CONTEXT": "8192"})
    layers = made.cache.layers
    assert depths_of(anatomy_of(made.recipe).kinds) == Depths(6, 8, layers, range(2, 4))


def test_a_model_whose_last_layers_borrow_keys_is_compiled_whole() -> None:
    made = deployed("google/gemma-3n-E4B", "v5e:2x2", {"MAX_CONTEXT": "8192"})
    anatomy = anatomy_of(made.recipe)
    assert [layer.memory for layer in anatomy.layers] == ["own"] * 20 + ["lent"] * 15
    assert depths_of(anatomy.kinds) is None


@pytest.mark.nightly
@needs_compiler
def test_a_hybrid_told_by_some_layers_is_as_it_is_when_all_are_compiled(tmp_path: Path) -> None:
    made = deployed(_written(tmp_path, _SMALL_HYBRID), "v5e:1x1", {"NUM_CACHE_SLOTS": "8"})
    depths = depths_of(anatomy_of(made.recipe).kinds)
    assert depths is not None
    few, more = (shallow(made, None, count).program for count in (depths.few, depths.more))
    measured = measure(more, _BUCKET, further_layers(made, depths))
    growth = growth_of(measure(few, _BUCKET), measured, depths)
    told, compiled = whole(measured, growth, depths, 1.0), measure(made.program, _BUCKET)
    assert told.arguments + uneven_bytes(made, depths) == pytest.approx(
        compiled.arguments, rel=0.02
    )
    assert told.traffic.moved.total == pytest.approx(compiled.traffic.moved.total, rel=0.05)
