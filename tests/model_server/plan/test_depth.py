"""A deep model judged by a shallow one."""

from __future__ import annotations

import re

import pytest

from model_server.engine.buckets import Bucket
from model_server.engine.paging.near_count import near_count
from model_server.plan.depth import (
    Depths,
    Growth,
    depths_of,
    growth_of,
    only_layers,
    uneven_pages,
    whole,
)
from model_server.plan.hlo.module import parse, runs_of
from model_server.plan.hlo.traffic import HbmBytes, StepTraffic, traffic_of
from tests.model_server.plan.measures import NO_TRAFFIC, deployed, measured

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


@pytest.mark.parametrize(
    ("kinds", "expected"),
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
        layers=StepTraffic(HbmBytes(10, 4, 1, 0), {"all-reduce": 7}, 1),
    )
    found = whole(shallow, Growth(0, 0, 0, 0), Depths(6, 8, 18, range(2, 4)), 2.5)
    assert found.traffic == StepTraffic(
        HbmBytes(150, 60, 13, 0), {"all-reduce": 105, "all-gather": 5}, 14
    )
    assert (found.flops, found.layers) == (50.0, None)


def test_the_memory_of_a_layer_comes_from_one_bucket_and_counts_for_each() -> None:
    few = measured(_BUCKET, arguments=500, temporaries=120, outputs=3, code=40)
    more = measured(_BUCKET, arguments=600, temporaries=100, outputs=3, code=44)
    depths = Depths(7, 8, 10, range(2, 3))
    growth = growth_of(few, more, depths)
    assert growth == Growth(arguments=100, temporaries=0, outputs=0, code=4)
    other = measured(Bucket(8, 4), arguments=650, temporaries=9, code=90, layers=NO_TRAFFIC)
    found = whole(other, growth, depths, 1.0)
    assert (found.arguments, found.temporaries, found.code) == (850, 9, 98)


def _layer_of(parameter: str) -> int | None:
    found = re.fullmatch(r"leaves\[(\d+)\]", parameter)
    return int(found[1]) if found else None


def test_a_layer_has_what_depends_on_its_weights_and_on_no_later_ones() -> None:
    program = parse(_TEXT)
    first = traffic_of(only_layers(program, {0}, _layer_of))
    # The product reads rows and weights, the exchange its rows; each writes rows.
    assert (first.moved.read, first.moved.written) == (2 * _ROWS + _WEIGHT, 2 * _ROWS)
    assert (first.sent, first.exchanges) == ({"all-reduce": 2 * 3 * _ROWS // 4}, 1)


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
    wide, narrow = ((count + 1) * layer for count in (made.limits.pages, near_count(made.limits)))
    counted = wide + 9 * narrow + round((wide + 5 * narrow) / 6 * 52)
    assert counted + uneven_pages(made, depths) == made.memory.kv == 10 * wide + 52 * narrow
    alike = deployed("google/gemma-3-27b", "v5e:2x4", {"MAX_CONTEXT": "1024"})
    assert uneven_pages(alike, depths) == 0
